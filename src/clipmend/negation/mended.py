"""``Mended``: a backbone with a patch on its text side, itself a :class:`~clipmend.backbones.base.DualEncoder`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, LongTextsWarning, OnLong, PreparedTexts, TextStates
from clipmend.backbones.progress import track
from clipmend.backbones.tokens import check_texts, refuse_blank
from clipmend.backbones.wrapper import TextSideWrapper
from clipmend.negation.gate import has_negation

if TYPE_CHECKING:
    from clipmend.negation.patch import PeakPatch

__all__ = ["Mended"]

_CHUNK = 512  # texts whose token states are held at once: 80 MB at 77 tokens of width 512
_PAIRS = 8192  # image-text pairs the score correction sees at once


@dataclass(frozen=True)
class _Corrected:
    """Of ``N`` texts: ``unit [N, D]``, ``norm [N]`` of the plain embedding, ``context [N, L, D]`` or ``None``."""

    unit: Tensor
    norm: Tensor
    context: Tensor | None


class Mended(TextSideWrapper):
    """A dual encoder whose text embeddings are corrected; made by :meth:`PeakPatch.apply`.

    Images, states, sizes and fingerprint are the backbone's own, so that an existing image index keeps working. Text embeddings
    come from one pass of the backbone and one of the ECN; :meth:`score` adds the SCN's correction where the patch has one.
    Thread-safe; the networks are copies, so that the patch may go on training.

    Args:
        encoder: the backbone.
        patch: the patch, already checked against ``encoder``.
        strength: multiplies the ECN's alpha and the SCN's correction; with 0 every result is the backbone's own tensor.
        gate: captions without any negation cue get exactly the row that ``encoder.encode_texts`` gives for the same list. (The gate
            is about embeddings: the SCN, where there is one, weighs every pair, or options with and without negation would not
            compare.) In a list that has both kinds, negated captions go through the backbone twice. ``None``: as the patch's
            configuration says.

    Attributes:
        encoder, patch, strength: as given.
        gate: whether there is one.
        gate_asked: ``gate`` as given; ``None`` where it was left to the patch, so that a search may choose
            (:class:`~clipmend.search.Searcher`).
    """

    def __init__(self, encoder: DualEncoder, patch: PeakPatch, strength: float = 1.0, gate: bool | None = None) -> None:
        super().__init__(encoder)
        self.patch, self.strength, self.gate_asked = patch, float(strength), None if gate is None else bool(gate)
        self.gate = bool(patch.config.gate if gate is None else gate)
        self.name = f"{encoder.name} + patch"
        self._ecn = _frozen(patch.ecn, self.device)
        self._scn = None if patch.scn is None else _frozen(patch.scn, self.device)
        config = patch.config
        assert config.peak is not None
        assert config.anchor is not None
        assert config.scn_layers is not None
        self._peak, self._anchor, self._scn_layers = config.peak, config.anchor, config.scn_layers

    def __repr__(self) -> str:
        return f"Mended({self.encoder!r}, peak={self._peak}, strength={self.strength:g}, gate={self.gate})"

    def adjusted(self, strength: float | None = None, gate: bool | None = None) -> Mended:
        """The same encoder and patch at another strength or gate; the networks are shared, so that this costs nothing.

        Args:
            strength: as for the class; ``None``: as here.
            gate: as for the class; ``None``: as here.

        Raises:
            ValueError: a strength that is negative or not finite.
        """
        strength = self.strength if strength is None else float(strength)
        asked = self.gate_asked if gate is None else bool(gate)
        gate = self.gate if gate is None else bool(gate)
        if not (math.isfinite(strength) and strength >= 0):
            raise ValueError(f"strength must be a number of at least 0, not {strength}")
        if (strength, gate, asked) == (self.strength, self.gate, self.gate_asked):
            return self
        other = copy(self)
        other.strength, other.gate, other.gate_asked = strength, gate, asked
        return other

    def mends(self, text: str) -> bool:
        """Whether a text's embedding is corrected here; not where the strength is 0, or the gate leaves the text as it is."""
        return self.strength != 0 and (not self.gate or has_negation(text))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "encoder":  # not set yet, or private to the backbone
            raise AttributeError(name)
        return getattr(self.encoder, name)

    @property
    def corrects_scores(self) -> bool:
        """Whether the patch has a score correction."""
        return self._scn is not None

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        """Embed texts, corrected.

        Args:
            texts: the texts.
            batch_size: texts a forward pass.
            normalize: False: each corrected unit vector times the length of its plain embedding.
            on_long: as for the backbone; reported once a call.
            progress: show a progress bar on a terminal.

        Returns:
            float32 ``[N, D]`` on the CPU.

        Raises:
            ValueError: an embedding that is not finite (the text is named), an empty text (its row is named), or a long text with
                ``on_long="error"``.
        """
        texts = check_texts(texts)
        refuse_blank(texts)
        rows, plain = self._split(texts)
        if plain and not rows:
            return self.encoder.encode_texts(texts, batch_size=batch_size, normalize=normalize, on_long=on_long, progress=progress)
        result = torch.zeros(len(texts), self.embed_dim)
        if plain:
            result.copy_(
                self.encoder.encode_texts(texts, batch_size=batch_size, normalize=normalize, on_long=on_long, progress=progress)
            )
            on_long = "truncate"  # reported just now
        corrected = self._correct([texts[row] for row in rows], False, batch_size, on_long, progress)
        result[rows] = corrected.unit if normalize else corrected.unit * corrected.norm[:, None]
        return result

    def prepare_texts(
        self, texts: Sequence[str], *, batch_size: int = 64, on_long: OnLong = "warn", progress: bool = False
    ) -> PreparedTexts:
        """Embeddings, and for a patch with an SCN the per-layer embeddings that it reads, the corrected one last."""
        texts = check_texts(texts)
        refuse_blank(texts)
        if self._scn is None or self.strength == 0:
            return PreparedTexts(self.encode_texts(texts, batch_size=batch_size, on_long=on_long, progress=progress))
        corrected = self._correct(texts, True, batch_size, on_long, progress)
        rows, plain = self._split(texts)
        unit, context = corrected.unit, corrected.context
        assert context is not None
        if plain:
            own = self.encoder.encode_texts(texts, batch_size=batch_size, on_long="truncate", progress=progress)
            keep = torch.ones(len(texts), dtype=torch.bool)
            keep[rows] = False
            unit[keep] = own[keep]
            context[:, -1] = unit
        return PreparedTexts(unit, context)

    def _split(self, texts: list[str]) -> tuple[list[int], bool]:
        """The rows to correct, and whether any others keep their plain embedding."""
        if self.strength == 0:
            return [], bool(texts)
        if not self.gate:
            return list(range(len(texts))), False
        rows = [row for row, text in enumerate(texts) if self.mends(text)]
        return rows, len(rows) < len(texts)

    def _correct(self, texts: list[str], context: bool, batch_size: int, on_long: OnLong, progress: bool) -> _Corrected:
        """Correct every text, chunk by chunk: token states are large and no more than a chunk of them is held."""
        unit, norm = torch.zeros(len(texts), self.embed_dim), torch.zeros(len(texts))
        layered = torch.zeros(len(texts), len(self._scn_layers), self.embed_dim) if context else None
        size = max(_CHUNK, batch_size)
        starts = range(0, len(texts), size)
        several = len(starts) > 1
        reports: list[LongTextsWarning] = []
        tower = getattr(self.encoder, "tower", None)
        if several and tower is not None:  # tokenising is cheap: report what is too long for the whole call, and before the work
            tower.tokenise(texts, on_long)
            on_long = "truncate"
        for start in track(starts, len(starts), "texts", progress and several):
            chunk = texts[start : start + size]
            states = self._states(chunk, context, batch_size, on_long, progress and not several, reports if several else None)
            for first in range(0, len(chunk), batch_size):
                rows = slice(first, min(first + batch_size, len(chunk)))
                into = slice(start + rows.start, start + rows.stop)
                with torch.inference_mode():
                    unit[into], norm[into] = self._corrected_rows(states, rows)
                    if layered is not None:
                        layered[into] = self._layered(states, rows, unit[into])
        if reports:
            cut = sum(report.count for report in reports)
            message = f"{cut} of {len(texts)} texts exceed {self.context_length} tokens; they were truncated"
            warnings.warn(LongTextsWarning(message, cut), stacklevel=3)
        _check_finite(unit, norm, texts, self.encoder.name)
        return _Corrected(unit, norm, layered)

    def _states(
        self,
        chunk: list[str],
        context: bool,
        batch_size: int,
        on_long: OnLong,
        progress: bool,
        reports: list[LongTextsWarning] | None,
    ) -> TextStates:
        layers = {self._peak} | ({self._anchor} if self._ecn.use_anchor else set())
        if context:
            layers |= set(self._scn_layers[:-1])

        def run() -> TextStates:
            return self.encoder.text_states(
                chunk,
                sorted(layers),
                token_layers=() if self._ecn.eos_only else (self._peak,),
                embedding=True,
                batch_size=batch_size,
                on_long=on_long,
                progress=progress,
            )

        if reports is None or on_long != "warn":
            return run()
        # An encoder of the user's own, that reports by itself: gather its reports into one.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            states = run()
        for entry in caught:
            if isinstance(entry.message, LongTextsWarning):
                reports.append(entry.message)
            else:
                warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)
        return states

    def _corrected_rows(self, states: TextStates, rows: slice) -> tuple[Tensor, Tensor]:
        """Corrected unit embeddings ``[B, D]`` and lengths ``[B]`` of the plain ones."""
        assert states.embedding is not None
        plain = states.embedding[rows].to(self.device, torch.float32)
        eos = states.eos_at(self._peak)[rows].to(self.device)
        anchor = states.eos_at(self._anchor)[rows].to(self.device) if self._ecn.use_anchor else eos
        if self._ecn.eos_only:
            tokens, mask = eos[:, None], torch.ones(len(eos), 1, dtype=torch.bool, device=self.device)
        else:
            mask = states.mask[rows]
            longest = int(mask.any(0).nonzero().max()) + 1 if mask.any() else 1
            mask = mask[:, :longest].to(self.device)
            tokens = states.tokens_at(self._peak)[rows, :longest].to(self.device)
        alpha = self.strength * self._ecn.log_alpha.exp()
        return self._ecn(plain, tokens, mask, eos, anchor, alpha=alpha).cpu(), plain.norm(dim=-1).cpu()

    def _layered(self, states: TextStates, rows: slice, corrected: Tensor) -> Tensor:
        """``[B, L, D]`` per-layer embeddings, the corrected one last."""
        earlier = [
            F.normalize(self.encoder.project(states.pooled_at(layer)[rows]).float().cpu(), dim=-1)
            for layer in self._scn_layers[:-1]
        ]
        return torch.stack([*earlier, corrected], 1)

    @torch.no_grad()
    def _score(self, images: Tensor, texts: PreparedTexts, pairs: Tensor | None) -> Tensor:
        if self._scn is None or self.strength == 0 or texts.context is None:
            return super()._score(images, texts, pairs)
        if texts.context.shape[1] != len(self._scn_layers):
            raise ValueError(
                f"these texts were prepared with {texts.context.shape[1]} layers but this patch reads {len(self._scn_layers)}; "
                "prepare them with the encoder that scores them"
            )
        i, t = images.to(self.device, torch.float32), texts.context.to(self.device, torch.float32)
        if pairs is None:
            return self._scn.matrix(i, t, strength=self.strength).to(images.device)
        scores = []
        for part in pairs.to(self.device).split(_PAIRS):
            own, context = i[part[:, 0]], t[part[:, 1]]
            scores.append((own * context[:, -1]).sum(-1) + self.strength * self._scn.correction(own, context))
        return torch.cat(scores).to(images.device) if scores else torch.zeros(0)


def _frozen(network: Any, device: torch.device) -> Any:
    own: nn.Module = deepcopy(network)
    return own.to(device, torch.float32).eval().requires_grad_(False)


def _check_finite(unit: Tensor, norm: Tensor, texts: list[str], name: str) -> None:
    bad = (~unit.isfinite().all(-1)).nonzero().flatten().tolist()
    if bad:
        row = bad[0]
        shown = texts[row] if len(texts[row]) <= 60 else texts[row][:57] + "..."
        whose = "the patch's correction" if bool(norm[row].isfinite()) else f"the embedding by {name}"
        raise ValueError(f"{whose} of text {row} ({shown!r}) is not finite; {len(bad)} of {len(texts)} texts are affected")
