"""Features of a whole data set: survey it, fix the units, make them here or on many processes, and say what was left out."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.backbones.base import LongTextsWarning, OnLong
from clipmend.data.images import DEFAULT_MAX_PIXELS, display_path
from clipmend.features.survey import DataSource, Skip, Survey, survey, write_lines
from clipmend.features.work import CAPTIONS, IMAGES, Job, Layers, Run, Worker, fixed_threads
from clipmend.negation.image_features import skipped_images
from clipmend.negation.units import Maker, UnitFolder, read_manifest

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder
    from clipmend.negation.config import PeakPatchConfig

__all__ = ["FeaturesReport", "make_features"]

FOLDER = "features"
"""Sub-folder of what the user names, so that the latter can be the work folder of a fit."""
SKIPPED = "skipped.jsonl"


@dataclass(frozen=True)
class FeaturesReport:
    """What was made.

    Attributes:
        images: images with an embedding.
        captions: captions with features; ``distinct`` of them differ.
        distinct: captions that were encoded.
        truncated: distinct captions over the encoder's context length.
        skipped: what was left out: rows of the source, and images; also in ``DIR/features/skipped.jsonl``.
        units: units of the whole work.
        made: units made by this run; the others were there.
        seconds: time taken.
    """

    images: int
    captions: int
    distinct: int
    truncated: int
    skipped: list[Skip]
    units: int
    made: int
    seconds: float

    def __str__(self) -> str:
        parts = [f"{self.images:,} images"] if self.images else []
        if self.captions:
            cut = f", {self.truncated:,} truncated" if self.truncated else ""
            parts.append(f"{self.captions:,} captions ({self.distinct:,} distinct{cut})")
        left_out = f"; {len(self.skipped):,} skipped" if self.skipped else ""
        return f"{', '.join(parts)} in {self.units:,} units, {self.made:,} of them made now{left_out}; {self.seconds:.1f} s"


def make_features(
    model: Any,
    data: str | os.PathLike[str],
    directory: str | os.PathLike[str],
    *,
    images: bool = True,
    texts: bool = True,
    config: PeakPatchConfig | None = None,
    workers: int | None = None,
    ray: str | None = None,
    threads: int = 1,
    readers: int | None = None,
    image_batch: int = 32,
    text_batch: int = 64,
    image_unit: int = 512,
    text_unit: int = 4096,
    max_pixels: int | None = DEFAULT_MAX_PIXELS,
    draft: bool = False,
    on_long: OnLong = "warn",
    device: str | None = None,
    progress: bool = False,
    **options: Any,
) -> FeaturesReport:
    """Make the features of every image and caption of a data set, resumably, on one process or many.

    The finished folder's bytes are the same whatever the number of processes and machines, and however often the work was killed,
    on one type of processor and with the same ``threads``.

    Args:
        model: what :func:`clipmend.load` takes; with ``workers`` over 1, or ``ray``, a name.
        data: what :func:`clipmend.data.readers.read` takes as a string (``"webdataset:shards/{000..010}.tar"``), a folder of images
            without captions, or a folder made for ``clipmend fit``, whose images and captions are then exactly those of a fit.
        directory: gets a folder ``features``; a work folder for ``clipmend fit --work``.
        images: make image features.
        texts: make text features.
        config: ``anchor``, ``peak`` and ``scn_layers`` of the text features; what is ``None`` there is taken from the folder or
            else suggested by a diagnosis, as a fit does.
        workers: processes (default: 1, and with ``ray`` one for each processor of the cluster).
        ray: address of a Ray cluster, all of whose machines see the same files under the same names.
        threads: threads of the arithmetic in each process. Part of what fixes the bytes.
        readers: threads in each process that read and decode (default: one a core, at most 8, shared among ``workers``).
        image_batch: images a forward pass.
        text_batch: captions a forward pass.
        image_unit: images a unit of work, which is what a kill can cost each process.
        text_unit: captions a unit of work.
        max_pixels: larger images are skipped.
        draft: decode large JPEGs at a reduced size; see :func:`clipmend.negation.image_features.extract_image_features`.
        on_long: captions over the context length: ``"warn"`` (count them), ``"error"`` or ``"truncate"``.
        device: where the encoder runs; default: the best that is there.
        progress: show a progress bar on a terminal.
        options: the reader's own (``image_column="file"``).

    Returns:
        What was made and what was left out.

    Raises:
        ValueError: nothing to do, every image unusable, a ``directory`` of other data or another encoder, or a model that cannot be
            sent to other processes.
        ImportError: several processes without Ray.
        ConnectionError: no Ray cluster answers at ``ray``; found out before any work.

    Warns:
        LongTextsWarning: captions were truncated.
    """
    import clipmend

    started = time.perf_counter()
    if not (images or texts):
        raise ValueError("nothing to do: neither images nor texts are asked for")
    many = ray is not None or (workers or 1) > 1
    if workers is not None and workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    if "on_error" in options:
        raise ValueError("on_error is always 'skip' here: what cannot be used is left out, and named")
    sizes = {
        "threads": threads, "readers": readers, "image_batch": image_batch, "text_batch": text_batch, "image_unit": image_unit,
        "text_unit": text_unit,
    }  # fmt: skip
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if Path(directory).exists() and not Path(directory).is_dir():
        raise NotADirectoryError(f"{display_path(directory)} is a file; features need a folder")
    if many and not isinstance(model, (str, Path)):
        raise ValueError("several processes load the model each by itself: give its name or folder, not a live one")
    run: Run = _here
    if many:
        from clipmend.features.cluster import check_cluster, run_on_ray  # before any work, since Ray may not be there

        if ray is not None:
            check_cluster(ray)
        run = partial(run_on_ray, workers=workers, address=ray)
    source = DataSource(str(data), options)
    with fixed_threads(threads):
        encoder = clipmend.load(model, device=device) if isinstance(model, (str, Path)) else clipmend.load(model)
        images = images and bool(encoder.fingerprint.image)
        if not (images or texts):
            raise ValueError(f"{encoder.name} has no image side, and texts are not asked for")
        found = survey(source, workers=readers)
        absent = [skip for skip in found.skipped if skip.image]
        if images and absent and not found.places:
            told = f"{display_path(absent[0].image)}: {absent[0].reason}"
            raise ValueError(f"none of {len(absent):,} images can be used; the first: {told}")
        folder = Path(directory) / FOLDER
        layers = _layers(encoder, config, folder) if texts and found.captions else None
        if readers is None and many and ray is None:
            readers = max(2, min(8, (os.cpu_count() or 1) // (workers or 1)))
        job = Job(
            model if isinstance(model, (str, Path)) else encoder, device, folder, source, found.root, layers, threads, readers,
            image_batch, text_batch, image_unit, text_unit, max_pixels, draft,
        )  # fmt: skip
        truncated = _truncated(encoder, found.captions, on_long) if layers else 0
        report = _make(job, encoder, found, run, images, many, progress)
    if truncated and on_long == "warn":
        message = f"{truncated} of {report.distinct} distinct captions exceed {encoder.context_length} tokens and were truncated"
        warnings.warn(LongTextsWarning(message, truncated), stacklevel=2)
    report = replace(report, truncated=truncated, seconds=time.perf_counter() - started)
    if images and found.places and not report.images:
        first = next(skip for skip in report.skipped if skip.image)
        raise ValueError(
            f"none of {len(found.places):,} images can be used; the first: {first.image}: {first.reason}; all in {folder / SKIPPED}"
        )
    return report


def _make(job: Job, encoder: DualEncoder, found: Survey, run: Run, images: bool, many: bool, progress: bool) -> FeaturesReport:
    new = [folder for folder in (job.folder, *job.folder.parents) if not folder.exists()]
    job.folder.mkdir(parents=True, exist_ok=True)
    plans: dict[str, tuple[UnitFolder, Maker]] = {}
    try:
        if images and found.places:
            plans[IMAGES] = job.image_plan(encoder, found.places)
        if job.layers is not None:
            plans[CAPTIONS] = job.text_plan(encoder, found.captions)
        _write_tables(job.folder, found, plans)
        with ExitStack() as stack:
            for units, _ in plans.values():
                stack.enter_context(units.alone())
            tasks = [(kind, unit["id"]) for kind, (units, _) in plans.items() for unit in units.missing()]
            done = stack.enter_context(_bar(len(tasks), progress))
            if tasks:
                run(job if many else replace(job, model=encoder), tasks, done)
            arrays = {kind: units.read() for kind, (units, _) in plans.items()}  # every unit is there, and whole
    except (Exception, KeyboardInterrupt):
        for units, _ in plans.values():
            units.forget()
        _leave_nothing_empty(job.folder, new)
        raise
    unusable = skipped_images(job.folder / IMAGES) if IMAGES in plans else _skipped_before(job.folder / IMAGES)
    skipped = [*found.skipped, *(Skip(found.places[row].image, reason) for row, reason in unusable)]
    write_lines(job.folder / SKIPPED, [skip.to_json() for skip in skipped])
    return FeaturesReport(
        images=len(found.places) - len(unusable) if IMAGES in plans else 0,
        captions=len(found.captions) if CAPTIONS in plans else 0,
        distinct=sum(len(unit["norm"]) for unit in arrays.get(CAPTIONS, [])),
        truncated=0,
        skipped=skipped,
        units=sum(len(units.manifest["units"]) for units, _ in plans.values()),
        made=len(tasks),
        seconds=0.0,
    )


def _skipped_before(folder: Path) -> list[tuple[int, str]]:
    """What an earlier run skipped, where it finished the images of these very tables."""
    try:
        return skipped_images(folder)
    except ValueError:  # none there, or unfinished
        return []


def _write_tables(folder: Path, found: Survey, plans: Collection[str]) -> None:
    """The survey's tables. The plans have refused other data; features that are not planned now must belong to these too."""
    rows = zip(found.captions, found.owners, found.negated, strict=True)
    tables = {
        IMAGES: [place.to_json() for place in found.places],
        CAPTIONS: [{"caption": t, "image": owner if owner >= 0 else None, "negated": denies} for t, owner, denies in rows],
    }
    for kind, table in tables.items():
        path = folder / f"{kind}.jsonl"
        if kind not in plans and (folder / kind).is_dir() and path.is_file():
            with path.open(encoding="utf-8") as file:
                if [json.loads(line) for line in file] != table:
                    raise ValueError(f"{folder} holds features of other {kind}: give another folder, or delete this one")
    for kind, table in tables.items():
        write_lines(folder / f"{kind}.jsonl", table)


def _leave_nothing_empty(folder: Path, new: Sequence[Path]) -> None:
    """After an error: no tables, and no folder that was made for them, unless there is a unit."""
    kinds = [folder / kind for kind in (IMAGES, CAPTIONS)]
    if any(unit.is_dir() and ".tmp-" not in unit.name for kind in kinds for unit in kind.glob("unit-*")):
        return
    with suppress(OSError):  # the error that brought us here is the one to show
        for kind in kinds:
            (kind / "manifest.json").unlink(missing_ok=True)
            (folder / f"{kind.name}.jsonl").unlink(missing_ok=True)
            if kind.is_dir():
                kind.rmdir()
        for made in new:
            made.rmdir()


def _here(job: Job, tasks: Sequence[tuple[str, str]], done: Callable[[], None]) -> None:
    """Make units in this process."""
    worker = Worker(job)
    for kind, unit in tasks:
        worker.make(kind, unit)
        done()


def _layers(encoder: DualEncoder, config: PeakPatchConfig | None, folder: Path) -> Layers:
    """The layers asked for, or else those of the features that are there, or else those that a fit would take."""
    from clipmend.negation.config import PeakPatchConfig
    from clipmend.negation.diagnosis import diagnose

    config = config or PeakPatchConfig()
    manifest = read_manifest(folder / CAPTIONS, "text features")
    if manifest is not None:
        there = manifest["identity"]
        config = replace(
            config,
            peak=config.peak or there["peak"],
            anchor=config.anchor or there["anchor"],
            scn_layers=config.scn_layers or tuple(there["scn_layers"]),
        )
    diagnosis = None if config.peak is not None else diagnose(encoder, probes=False, bootstrap=0)
    resolved = config.resolved(encoder, diagnosis)
    assert resolved.anchor is not None
    assert resolved.peak is not None
    assert resolved.scn_layers is not None
    return Layers(resolved.anchor, resolved.peak, tuple(resolved.scn_layers))


def _truncated(encoder: DualEncoder, captions: Sequence[str], on_long: OnLong) -> int:
    """How many distinct captions are over the context length."""
    from clipmend.data.preflight import long_texts

    distinct = sorted(set(captions))
    long = long_texts(encoder, distinct)
    if long and on_long == "error":
        raise ValueError(
            f"{len(long)} of {len(distinct)} distinct captions exceed {encoder.context_length} tokens; the first: "
            f"{distinct[long[0]]!r:.80}; shorten them, or truncate (on_long='truncate', --on-long truncate)"
        )
    return len(long)


@contextmanager
def _bar(total: int, show: bool) -> Iterator[Callable[[], None]]:
    if not show or not total or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("units", total=total)
        yield lambda: bar.advance(task)
