"""What is measured: a backbone, a backbone with a patch, a backbone with a rival's rule."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.fingerprint import digest_facts, digest_file, digest_weights, named_weights
from clipmend.data.nouns import load_nouns
from clipmend.evaluation.embed import image_vectors
from clipmend.evaluation.results import model_names, write_json
from clipmend.evaluation.rivals.base import Rival
from clipmend.evaluation.rivals.compare import make_rivals, tune_for
from clipmend.evaluation.rivals.parser import rule_form
from clipmend.evaluation.suite import EvaluationData, read_folder, read_pairs
from clipmend.negation.patch import PeakPatch

__all__ = ["Method", "RivalMaker", "apply_patches", "backbone_method", "patch_digest"]


@dataclass(frozen=True)
class Method:
    """One column of the tables.

    Args:
        label: ``"MODEL"``, ``"MODEL + PATCH"``, ``"MODEL + query arithmetic"``.
        model: the backbone's name.
        kind: ``"backbone"``, ``"patch"`` or ``"rival"``.
        encoder: the encoder, or a function from a task's kind to it (a rival is tuned for each).
        facts: what decides its numbers, beside the task.
        names: ``model`` and ``pretrained`` for results.
    """

    label: str
    model: str
    kind: Literal["backbone", "patch", "rival"]
    encoder: DualEncoder | Callable[[str], Rival]
    facts: dict[str, Any] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)

    def for_task(self, kind: str) -> tuple[DualEncoder, dict[str, Any], dict[str, str]]:
        """The encoder for a kind of task, all that decides its numbers, and its names."""
        if isinstance(self.encoder, DualEncoder):
            return self.encoder, self.facts, self.names
        rival = self.encoder(kind)
        return rival, {**self.facts, "strengths": rival.setting}, {**self.names, "pretrained": f"{rival.label} ({rival.setting})"}


def backbone_method(encoder: DualEncoder) -> Method:
    """The backbone as it is."""
    model, weights = model_names(encoder)
    facts = {"fingerprint": encoder.fingerprint.to_dict(), "name": "" if encoder.fingerprint.text else encoder.name}
    return Method(encoder.name, encoder.name, "backbone", encoder, facts, {"model": model, "pretrained": weights})


def patch_digest(patch: PeakPatch) -> str:
    """SHA-256 of a patch's weights and settings."""
    weights = named_weights(patch.ecn, "ecn")
    if patch.scn is not None:
        weights |= named_weights(patch.scn, "scn")
    return digest_weights(weights, {"config": json.loads(json.dumps(patch.config.to_dict(), default=str))})


def apply_patches(
    encoder: DualEncoder, patches: Mapping[str, PeakPatch], strength: float = 1.0
) -> tuple[list[Method], dict[str, str]]:
    """A method for each patch that was fitted on ``encoder``, and why the others do not fit, by name."""
    base = backbone_method(encoder)
    methods, reasons = [], {}
    for name, patch in patches.items():
        try:
            mended = patch.apply(encoder, strength)
        except ValueError as error:
            reasons[name] = str(error)
            continue
        shown = name if strength == 1.0 else f"{name} (strength {strength:g})"
        facts = {**base.facts, "patch": patch_digest(patch), "strength": strength, "gate": mended.gate}
        names = {**base.names, "pretrained": "+".join(filter(None, [base.names["pretrained"], shown]))}
        methods.append(Method(f"{encoder.name} + {shown}", encoder.name, "patch", mended, facts, names))
    return methods, reasons


def noun_pairs(count: int = 200) -> list[tuple[str, str]]:
    """``(affirmative, negated)`` texts about common nouns, for a negation direction where there are no pairs of one's own."""
    nouns = [noun for noun in load_nouns() if not noun.mass]
    chosen = nouns[:: max(1, len(nouns) // count)][:count]
    frames = (
        ("a photo of {a}", "a photo without {a}"),
        ("a photo with {a}", "a photo with no {x}"),
        ("there is {a}", "there is no {x}"),
        ("this image features {a}", "this image does not feature {a}"),
    )
    pairs = []
    for k, noun in enumerate(chosen):
        positive, negated = frames[k % len(frames)]
        pairs.append(tuple(text.format(a=noun.indefinite, x=noun.singular) for text in (positive, negated)))
    return pairs  # type: ignore[return-value]


class RivalMaker:
    """Rivals tuned on one validation folder: what they are tuned to is kept, so that a second run need not tune again.

    Args:
        names: some of ``arithmetic, projection, direction``.
        validation: folder with tables as ``clipmend scenes`` or ``clipmend data negate`` writes them, of images that no test has.
        folder: where tuned strengths are kept.
    """

    def __init__(self, names: Sequence[str], validation: str | Path, folder: Path) -> None:
        self.names = list(dict.fromkeys(names))
        self.root = Path(validation)
        self.tuning: EvaluationData = read_folder(validation)
        if not self.tuning.choice:
            raise ValueError(f"{validation}: holds no choice.csv to tune rivals on")
        pairs = self.root / "pairs.csv"
        self.pairs = read_pairs(pairs)[:200] if pairs.is_file() else noun_pairs()
        self.folder = folder
        tables = [self.root / f"{name}.csv" for name in ("choice", "retrieval", "negated_retrieval", "exclusion", "pairs")]
        self.digest = digest_facts({path.name: digest_file(path) for path in tables if path.is_file()})

    def methods(self, encoder: DualEncoder) -> list[Method]:
        """One method for each rival over ``encoder``."""
        base = backbone_method(encoder)
        vectors: dict[str, Tensor] = {}

        def embedded() -> dict[str, Tensor]:
            if not vectors:
                names = self.tuning.images()
                rows, kept = image_vectors(encoder, names, image_root=self.tuning.image_root, progress=True)
                vectors.update({names[i]: row for i, row in zip(kept, rows, strict=True)})
            return vectors

        methods = []
        for rival in make_rivals(encoder, rule_form, self.pairs, self.names):
            facts = {**base.facts, "rival": rival.label, "validation": self.digest}
            methods.append(
                Method(
                    f"{encoder.name} + {rival.label}", encoder.name, "rival", self._tuner(rival, facts, embedded), facts, base.names
                )
            )
        return methods

    def _tuner(self, rival: Rival, facts: Mapping[str, Any], embedded: Callable[[], dict[str, Tensor]]) -> Callable[[str], Rival]:
        tuned: dict[str, Rival] = {}

        def for_kind(kind: str) -> Rival:
            part = kind if kind == "negated_retrieval" and self.tuning.negated_retrieval is not None else "choice"
            if part not in tuned:
                key = digest_facts({**facts, "tuned for": part, "grid": {n: list(v) for n, v in rival.grid.items()}})
                path = self.folder / f"{key[:24]}.json"
                strengths = _kept_strengths(path, len(rival.grid))
                if strengths is None:
                    found = tune_for(rival, part, self.tuning, embedded())
                    strengths = found.strengths
                    write_json(path, {"rival": rival.label, "for": part, "strengths": list(strengths), "score": found.score})
                tuned[part] = rival.at(*strengths)
            return tuned[part]

        return for_kind


def _kept_strengths(path: Path, count: int) -> tuple[float, ...] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["strengths"]
        strengths = tuple(float(value) for value in values)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return strengths if len(strengths) == count else None
