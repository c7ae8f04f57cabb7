"""A model that reads longer texts, written as a folder of its own: what ``clipmend stretch`` does."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.weights import split_name
from clipmend.data.output import new_folder
from clipmend.dense.positions import KEEP, LENGTH, Stretched, stretch
from clipmend.dense.saving import library_of, save_encoder

__all__ = ["CutCaptions", "LongerModel", "count_truncated", "write_longer"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


@dataclass(frozen=True)
class CutCaptions:
    """How many of a list of captions do not fit.

    Args:
        captions: all of them, repetitions included.
        before: over the old length.
        after: over the new length.
    """

    captions: int
    before: int
    after: int

    def share(self, cut: int) -> float:
        """``cut`` in percent of all."""
        return 100 * cut / max(1, self.captions)


@dataclass(frozen=True)
class LongerModel:
    """What :func:`write_longer` wrote.

    Args:
        folder: the new folder.
        library: whose format it is in, ``"transformers"`` or ``"open_clip"``.
        stretched: the numbers of positions.
        cut: how many captions are truncated, before and now; ``None`` where none were given.
    """

    folder: Path
    library: str
    stretched: Stretched
    cut: CutCaptions | None


def count_truncated(encoder: DualEncoder, captions: Sequence[str], length: int | None = None) -> int:
    """How many captions have more than ``length`` tokens, special tokens included, by the encoder's own tokenizer.

    Args:
        encoder: from :func:`clipmend.load`.
        captions: the captions.
        length: default: the encoder's context length.

    Raises:
        ValueError: an encoder without a tokenizer of its own to ask.
    """
    tower: Any = getattr(encoder, "tower", None)
    if tower is None:
        raise ValueError(f"{encoder.name} has no tokenizer of its own to count tokens with")
    tokens = copy.copy(tower.tokens)
    tokens.context_length = tower.context_length if length is None else length
    return len(tokens(captions).long)


def write_longer(
    name: str,
    folder: str | os.PathLike[str],
    *,
    length: int = LENGTH,
    keep: int = KEEP,
    captions: Sequence[str] | None = None,
    overwrite: bool = False,
) -> LongerModel:
    """Load a CLIP, stretch its positions (:func:`~clipmend.dense.positions.stretch`) and write it to a folder of its own.

    The folder opens in plain transformers (or open_clip, whichever the model is of) at the new length, tokenizer included. It is
    written beside its place and renamed into it. Weights are float32.

    Args:
        name: as for :func:`clipmend.load`; with ``MODEL::FILE`` a checkpoint in Long-CLIP's own layout becomes an ordinary model
            (``length`` as it is there: nothing is stretched).
        folder: new or empty.
        length: most tokens of a text.
        keep: rows of the table kept as they are.
        captions: count how many of these are truncated, before and after.
        overwrite: replace a folder that is not empty.

    Raises:
        ValueError: a model that cannot be stretched, sizes out of range, or ``folder`` is the model's own.
        FileExistsError: the folder is not empty.
        OSError: the model cannot be read.
    """
    import clipmend

    target = Path(folder)
    source = split_name(name)[0].removeprefix("open_clip:").removeprefix("local-dir:")
    if os.path.isdir(source) and os.path.realpath(source) == os.path.realpath(target):
        raise ValueError(f"{target} is the model's own folder; write the longer model to another one")
    with new_folder(target, overwrite) as work:  # first, so that a folder in the way is told before a model is read
        encoder: Any = clipmend.load(name, device="cpu")
        library = library_of(encoder)
        before = encoder.context_length
        stretched = stretch(encoder.model, length, keep)
        cut = None
        if captions is not None:
            cut = CutCaptions(len(captions), count_truncated(encoder, captions, before), count_truncated(encoder, captions, length))
        save_encoder(encoder, work)
        written = LongerModel(target, library, stretched, cut)
        (work / "README.md").write_text(_card(name, written), encoding="utf-8")
    return written


def _card(name: str, written: LongerModel) -> str:
    from jinja2 import Environment, StrictUndefined

    import clipmend

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["quoted"] = lambda text: json.dumps(str(text), ensure_ascii=False)
    template = environment.from_string(files("clipmend.dense").joinpath("longer.md.j2").read_text("utf-8"))
    model, weights = split_name(name)
    return template.render(
        base_model=model if _HUB_ID.fullmatch(model) and not os.path.exists(model) else None,
        source=Path(model).name if os.path.isdir(model) else model,  # not the path on the machine that wrote it
        weights=None if weights is None else Path(weights).name,
        written=written,
        stretched=written.stretched,
        version=clipmend.__version__,
    )
