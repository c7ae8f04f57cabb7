"""A fine-tuned model: what was done, what was measured, and a folder that plain transformers or open_clip opens."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.weights import split_name
from clipmend.data.output import new_folder
from clipmend.dense.config import FinetuneConfig
from clipmend.dense.saving import library_of, save_encoder

__all__ = ["RECORD", "FineTuned", "Truncated", "refreshed"]

RECORD = "finetune.json"
"""Name of the file beside the weights that says how they were made."""

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_AT_ONCE = 4096


@dataclass(frozen=True)
class Truncated:
    """How many training captions the model does not read to their end.

    Args:
        captions: all of them.
        cut: over ``length`` tokens.
        length: text positions that the model is trained with.
        before: text positions that it had.
        cut_before: over ``before`` tokens.
    """

    captions: int
    cut: int
    length: int
    before: int
    cut_before: int

    @classmethod
    def count(cls, encoder: Any, captions: Sequence[str], before: int) -> Truncated:
        """Count with the encoder's own tokenizer."""
        from clipmend.dense.longer import count_truncated

        length = int(encoder.context_length)
        parts = [captions[begin : begin + _AT_ONCE] for begin in range(0, len(captions), _AT_ONCE)]
        cut = sum(count_truncated(encoder, part) for part in parts)
        earlier = cut if before == length else sum(count_truncated(encoder, part, before) for part in parts)
        return cls(len(captions), cut, length, before, earlier)

    def told(self) -> str:
        """In words."""
        share = 100 * self.cut / max(1, self.captions)
        text = f"{self.cut:,} of {self.captions:,} captions ({share:.1f}%) are cut at {self.length:,} tokens"
        return text if self.before == self.length else f"{text}, {self.cut_before:,} were at {self.before:,}"


@dataclass
class FineTuned:
    """What :func:`~clipmend.dense.training.finetune` gives.

    Args:
        encoder: the trained model as an encoder, frozen again.
        config: how it was trained.
        history: the validations: ``step``, recalls in percent, and ``score``, the mean of both at 1.
        best_step: the step whose state the model is in.
        steps: of the training.
        data: name of the data.
        data_digest: of captions and image names.
        pairs: trained on.
        held_out: images held out.
        truncated: captions cut.
        processes: that trained.
        seconds: of this run (of the last one, where it was resumed).
        notes: what was told at the start.
        lens: summary of the saturation lens; empty where it was off.
        command: the command line, where there was one.
    """

    encoder: DualEncoder
    config: FinetuneConfig
    history: list[dict[str, Any]]
    best_step: int
    steps: int
    data: str
    data_digest: str
    pairs: int
    held_out: int
    truncated: Truncated
    processes: int = 1
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    lens: dict[str, float] = field(default_factory=dict)
    command: str = ""

    @property
    def model(self) -> Any:
        """The live model of transformers or open_clip."""
        return self.encoder.model  # type: ignore[attr-defined]

    @property
    def validation(self) -> dict[str, float]:
        """What was measured of the state that the model is in."""
        return next((e for e in self.history if e["step"] == self.best_step), {})

    def to_dict(self) -> dict[str, Any]:
        """Everything but the model, JSON-able."""
        import clipmend

        return {
            "base_model": _public(self.encoder.name)[0],
            "config": self.config.to_dict(),
            "data": {"name": self.data, "digest": self.data_digest, "pairs": self.pairs, "held_out_images": self.held_out},
            "truncated": vars(self.truncated),
            "negatives_per_query": self.config.batch_size - 1,
            "processes": self.processes,
            "steps": self.steps,
            "best_step": self.best_step,
            "history": self.history,
            "lens": self.lens,
            "seconds": self.seconds,
            "command": self.command,
            "versions": {"clipmend": clipmend.__version__},
        }

    def save(
        self, folder: str | os.PathLike[str], overwrite: bool = False, *, also: Callable[[Path], object] | None = None
    ) -> Path:
        """Write the model as an ordinary one of its own library, with a model card and :data:`RECORD`.

        transformers: ``from_pretrained(folder)`` of model, tokenizer and image processor; open_clip: ``local-dir:FOLDER``. Both at
        the length that it was trained with. It is written beside its place and renamed into it.

        Args:
            folder: new or empty.
            overwrite: replace one that is not empty.
            also: writes further files; called with the folder before it is put in place.

        Raises:
            FileExistsError: the folder is not empty and ``overwrite`` is false. OSError: it cannot be written.
        """
        target = Path(folder)
        with new_folder(target, overwrite) as work:
            with quiet_loading():
                save_encoder(self.encoder, work)
            (work / RECORD).write_text(json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            (work / "README.md").write_text(self.card(), encoding="utf-8")
            if also is not None:
                also(work)
        return target

    def card(self) -> str:
        """The model card, Markdown with the metadata block that the hub reads."""
        from jinja2 import Environment, StrictUndefined

        import clipmend

        environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
        environment.filters["quoted"] = lambda text: json.dumps(str(text), ensure_ascii=False)
        environment.filters["cell"] = lambda value: json.dumps(value, ensure_ascii=False).replace("|", "\\|")
        template = environment.from_string(files("clipmend.dense").joinpath("finetuned.md.j2").read_text("utf-8"))
        source, base = _public(self.encoder.name)
        settings = self.config.to_dict()
        recipe = settings.pop("recipe")
        return template.render(
            done=self, source=source, base_model=base, library=library_of(self.encoder), settings=settings, recipe=recipe,
            about=self.config.recipe.about, chosen=self.validation, first=self.history[0] if self.history else {},
            version=clipmend.__version__,
        )  # fmt: skip


def _public(name: str) -> tuple[str, str | None]:
    """A model's name without the paths of the machine, and its hub id where it is one."""
    model, weights = split_name(name)
    plain = model.removeprefix("open_clip:").removeprefix("local-dir:")
    hub = model if _HUB_ID.fullmatch(model) and not os.path.exists(model) else None
    shown = Path(plain).name if os.path.isabs(plain) or os.path.isdir(plain) else model  # not the path on the machine
    return (shown if weights is None else f"{shown} with {Path(weights).name}"), hub


def refreshed(encoder: Any) -> Any:
    """An encoder made again over its live model, which was changed: its length, its weights' digest and its logit scale are new."""
    from clipmend.backbones.open_clip import OpenClipEncoder
    from clipmend.backbones.transformers_clip import TransformersEncoder

    if isinstance(encoder, TransformersEncoder):
        return TransformersEncoder(encoder.model, encoder.tower.tokens.tokenizer, encoder.image_processor, name=encoder.name)  # type: ignore[attr-defined]
    tokens = encoder.tower.tokens
    tokenizer = tokens.tokenizer
    if not hasattr(tokenizer, "sot_token_id"):  # a wrapper that the encoder does not keep: such towers cannot be stretched
        encoder._fingerprint = encoder.tower._digest = None
        encoder.logit_scale = float(encoder.model.logit_scale.detach().float().exp())
        return encoder
    if hasattr(tokenizer, "context_length"):
        tokenizer.context_length = int(getattr(encoder.model, "text", encoder.model).context_length)
    return OpenClipEncoder(encoder.model, tokenizer, encoder.preprocess, preprocessing=encoder.preprocessing, name=encoder.name)
