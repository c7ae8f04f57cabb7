"""What the commands about dense captions read: sets by name, their options, and what a model was trained on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from clipmend.data.dense import DenseData

__all__ = ["SkipRows", "Test", "one_each", "read_test", "read_training", "set_options", "without_set"]

SkipRows = Annotated[bool, typer.Option("--skip-rows", help="Leave out rows that cannot be used, counted, instead of stopping.")]


@dataclass
class Test:
    """A test set, and the digests of its images."""

    data: DenseData
    digests: list[str]


def without_set(data: list[Path]) -> ValueError:
    """The error for ``--data`` without ``--set``: the sets by name, and the one that the path looks like."""
    from clipmend.data.dense import DENSE_SETS
    from clipmend.data.readers import recognise

    likely = ""
    if data:
        try:
            likely = recognise(data[0])[0]
        except (ValueError, OSError):  # nothing is there, or nothing that is known: then there is nothing to suggest
            likely = ""
    names = f"the sets are {', '.join(sorted(DENSE_SETS))}"
    if not data:
        return ValueError(f"give a --data for each --set: there is neither; {names}")
    looks = f"; {data[0]} looks like --set {likely}" if likely in DENSE_SETS else ""
    return ValueError(f"give a --set for each --data: there are 0 --set and {len(data)} --data{looks}; {names}")


def one_each(values: list[Any] | None, sets: list[str], name: str, spread: bool = True) -> list[Any]:
    if not values:
        return [None] * len(sets)
    if len(values) == 1 and (spread or len(sets) == 1):
        return list(values) * len(sets)
    if len(values) != len(sets):
        raise ValueError(f"give one {name} for each --set{', or one for all' if spread else ''}, not {len(values)}")
    return list(values)


def set_options(given: dict[str, Any], sets: list[str]) -> dict[str, dict[str, Any]]:
    """The options of each set.

    Raises:
        ValueError: an option that none of the sets takes.
    """
    from clipmend.data.dense import DENSE_SETS

    takes = {name: set(DENSE_SETS[name].options()) for name in sets if name in DENSE_SETS}
    unknown = [option for option in given if takes and not any(option in options for options in takes.values())]
    if unknown:
        known = ", ".join(sorted({option for options in takes.values() for option in options})) or "no options"
        raise ValueError(f"--option {unknown[0]}: none of these sets takes it; they take {known}")
    return {name: {option: value for option, value in given.items() if option in options} for name, options in takes.items()}


def read_test(
    name: str, path: Path, split: str | None, image_root: Path | None, skip_rows: bool, skip_missing: bool, options: dict[str, Any]
) -> Test:
    from clipmend.data.dense import read_dense

    on_error: Any = "skip" if skip_rows else "raise"
    try:
        found = read_dense(name, path, split=split, image_root=image_root, on_error=on_error, **options)
    except ValueError as error:
        if skip_rows or ": line " not in str(error):
            raise
        raise ValueError(f"{error}; --skip-rows leaves such rows out, counted") from error
    missing = found.missing()
    if missing and not skip_missing:
        raise found.missing_error(missing)  # before any model is loaded
    with _bar("Reading the images for their digests", len(found.images)) as advance:
        return Test(found, found.digests(advance=advance))


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], Any]]:
    """A progress bar on a terminal; gives what to call after each item."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def read_training(
    sets: list[str], paths: list[Path], split: str | None, models: int, curve: bool, known: dict[str, Any]
) -> list[DenseData]:
    from clipmend.data.dense import read_dense

    if len(sets) != len(paths):
        raise ValueError(f"give a --train-data for each --train-set: there are {len(sets)} and {len(paths)}")
    if split is not None and not sets:
        raise ValueError("--train-split needs --train-set and --train-data")
    if len(sets) > 1 and (curve or len(sets) != models):
        raise ValueError(f"give one --train-set, or one for each model: there are {len(sets)} for {models} models")
    found: dict[tuple[str, str], DenseData] = {}
    for name, path in zip(sets, paths, strict=True):
        own = known.get(name)
        usual = "train" if own is not None and own.default == "test" and (not own.splits or "train" in own.splits) else None
        if (name, str(path)) not in found:
            found[name, str(path)] = read_dense(name, path, split=split or usual, on_error="skip")
    return [found[name, str(path)] for name, path in zip(sets, paths, strict=True)]
