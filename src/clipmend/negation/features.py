"""Features once: what training needs of a frozen text encoder, taken in one pass and kept.

The backbone is frozen, so its states for a caption never change. :func:`extract_text_features` runs it once over every distinct
caption and keeps, without padding, the token states at the peak layer and the sentence states that the correction networks
read; training then never runs the backbone again.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, LongTextsWarning, OnLong
from clipmend.backbones.progress import track
from clipmend.negation.image_features import extract_image_features
from clipmend.negation.units import Arrays, UnitFolder, cut, manifest_of, read_manifest, read_units

__all__ = ["TextFeatures", "extract_image_features", "extract_text_features"]

TEXT = "text features"
FORMAT = 1  # raised when the arrays of a unit change their meaning
DENSE = ("embedding", "norm", "peak_eos", "anchor_eos", "scn")  # one row a caption; "tokens" has one row a token

Rows = Sequence[int] | np.ndarray | Tensor


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """Features of ``N`` captions from a frozen encoder, in memory or memory-mapped from a folder.

    Identical captions are stored once. Made by :func:`extract_text_features`; reopened by :meth:`open`.

    Args:
        anchor: the anchor layer, 1-indexed.
        peak: the peak layer, 1-indexed.
        scn_layers: layers of the score correction's context, in order.
        embed_dim: size ``D`` of the joint space.
        text_width: width ``W`` of the states.
        index: int64 ``[N]``, the stored row of each caption.
        shards: the stored rows, cut into pieces; each piece has float32 ``embedding [n, D]`` (unit), ``norm [n]`` and
            ``scn [n, L, D]`` (unit), float16 ``peak_eos`` and ``anchor_eos [n, W]``, int64 ``lengths [n]`` (valid tokens) and
            float16 ``tokens [sum(lengths), W]``, the valid token states one caption after another.
    """

    anchor: int
    peak: int
    scn_layers: tuple[int, ...]
    embed_dim: int
    text_width: int
    index: np.ndarray
    shards: tuple[Arrays, ...]
    _first: np.ndarray = field(init=False, repr=False)
    _lengths: np.ndarray = field(init=False, repr=False)
    _starts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Where each stored row is: its shard, its row there, and where its tokens start.
        counts = [len(shard["norm"]) for shard in self.shards]
        lengths = [np.asarray(shard["lengths"], np.int64) for shard in self.shards]
        starts = [np.cumsum(x) - x for x in lengths]
        object.__setattr__(self, "_first", np.cumsum([0, *counts]))
        object.__setattr__(self, "_lengths", np.concatenate(lengths) if lengths else np.zeros(0, np.int64))
        object.__setattr__(self, "_starts", np.concatenate(starts) if starts else np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def lengths(self) -> np.ndarray:
        """int64 ``[N]``: valid tokens of each caption."""
        return self._lengths[self.index]

    @property
    def embedding(self) -> np.ndarray:
        """float32 ``[N, D]``: the encoder's own final embedding, L2-normalised."""
        return self._dense("embedding", self.index)

    @property
    def norm(self) -> np.ndarray:
        """float32 ``[N]``: the length of the embedding before normalisation."""
        return self._dense("norm", self.index)

    @property
    def nbytes(self) -> int:
        """Bytes of all stored arrays."""
        return sum(array.nbytes for shard in self.shards for array in shard.values())

    def subset(self, rows: Rows) -> TextFeatures:
        """The same features for some captions, in the order given; nothing is copied."""
        return replace(self, index=self.index[self._checked(rows)])

    def followed_by(self, other: TextFeatures) -> TextFeatures:
        """The captions of both, these first; nothing is copied.

        Raises:
            ValueError: features of other layers or sizes.
        """
        for name in ("anchor", "peak", "scn_layers", "embed_dim", "text_width"):
            if getattr(self, name) != getattr(other, name):
                raise ValueError(f"{name} is {getattr(self, name)} in one and {getattr(other, name)} in the other")
        stored = int(self._first[-1])
        return replace(self, index=np.concatenate([self.index, other.index + stored]), shards=(*self.shards, *other.shards))

    def in_memory(self) -> TextFeatures:
        """A copy in ordinary memory, in one piece: the fastest to draw batches from."""
        if not self.shards:
            return self
        joined = {name: np.concatenate([shard[name] for shard in self.shards]) for name in self.shards[0]}
        return replace(self, shards=(joined,))

    def batch(self, rows: Rows, device: torch.device | str | None = None) -> dict[str, Tensor]:
        """The features of some captions, tokens padded to the longest of *them*.

        Args:
            rows: ``B`` caption numbers, 0-based; repeats are fine.
            device: where to put the tensors (default: the CPU).

        Returns:
            ``embedding`` float32 ``[B, D]`` (unit), ``norm`` ``[B]``, ``peak_tokens`` float32 ``[B, T, W]`` (zero outside the
            mask), ``mask`` bool ``[B, T]``, ``peak_eos`` and ``anchor_eos`` float32 ``[B, W]``,
            ``scn`` float32 ``[B, L, D]`` (unit).

        Raises:
            IndexError: a row outside ``0..N-1``.
        """
        stored = self.index[self._checked(rows)]
        out = {name: torch.from_numpy(self._dense(name, stored)).to(device).float() for name in DENSE}
        lengths = torch.from_numpy(self._lengths[stored])
        width = int(lengths.max()) if len(lengths) else 0
        mask = torch.arange(width) < lengths[:, None]  # [B, T]
        out["mask"] = mask.to(device)
        out["peak_tokens"] = torch.from_numpy(self._padded_tokens(stored, width)).to(device).float()
        return out

    def _checked(self, rows: Rows) -> np.ndarray:
        chosen = rows.detach().cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if chosen.dtype == bool:
            raise IndexError("rows are numbers, not a mask: use nonzero() of it")
        chosen = chosen.astype(np.int64, casting="same_kind") if chosen.size else chosen.reshape(-1).astype(np.int64)
        if chosen.ndim != 1:
            raise IndexError(f"rows must be one-dimensional, not {chosen.ndim}-dimensional")
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"rows {chosen.min()}..{chosen.max()} asked of {len(self)} captions")
        return chosen

    def _pieces(self, stored: np.ndarray) -> Iterable[tuple[Arrays, np.ndarray | slice, np.ndarray]]:
        """For each shard that holds some of ``stored``: the shard, their places in ``stored``, their rows in the shard."""
        if len(self.shards) == 1:
            yield self.shards[0], slice(None), stored
            return
        owner = np.searchsorted(self._first, stored, side="right") - 1
        for number in np.unique(owner):
            places = np.flatnonzero(owner == number)
            yield self.shards[number], places, stored[places] - self._first[number]

    def _dense(self, name: str, stored: np.ndarray) -> np.ndarray:
        if len(self.shards) == 1:
            return np.take(self.shards[0][name], stored, axis=0)
        example = self.shards[0][name]
        out = np.empty((len(stored), *example.shape[1:]), example.dtype)
        for shard, places, rows in self._pieces(stored):
            out[places] = shard[name][rows]
        return out

    def _padded_tokens(self, stored: np.ndarray, width: int) -> np.ndarray:
        """float16 ``[B, width, W]``: one gather of rows from the flat tokens, one scatter into the padded ones."""
        out = np.zeros((len(stored) * width, self.text_width), np.float16)
        numbers = np.arange(len(stored))
        for shard, places, _ in self._pieces(stored):
            rows = stored[places]
            lengths = self._lengths[rows]
            # 0, 1, .. within each caption: count through all tokens and take off where the caption's own began.
            within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            source = np.repeat(self._starts[rows], lengths) + within
            out[np.repeat(numbers[places] * width, lengths) + within] = shard["tokens"][source]
        return out.reshape(len(stored), width, self.text_width)

    @classmethod
    def open(cls, directory: str | os.PathLike[str], texts: Sequence[str], *, verify: bool = False) -> TextFeatures:
        """Reopen the finished features of ``texts`` without the encoder.

        Args:
            directory: the folder that :func:`extract_text_features` made.
            texts: the captions; the distinct ones must be those of then, in any order.
            verify: also check every file's SHA-256 (sizes are always checked).

        Raises:
            ValueError: no features there, other captions, or a missing or damaged unit.
        """
        path = Path(directory)
        manifest = read_manifest(path, TEXT)
        if manifest is None:
            raise ValueError(f"{path} holds no {TEXT}")
        distinct, index = _distinct(texts)
        if manifest["identity"].get("texts_sha256") != _texts_digest(distinct):
            raise ValueError(f"{path} holds the features of other captions")
        return _text_features(manifest["identity"], index, read_units(path, manifest, TEXT, digests=verify))


def extract_text_features(
    encoder: DualEncoder,
    texts: Sequence[str],
    *,
    anchor: int,
    peak: int,
    scn_layers: Sequence[int],
    directory: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    shard_size: int = 8192,
    on_long: OnLong = "warn",
    progress: bool = False,
) -> TextFeatures:
    """Run the frozen encoder once over every distinct caption and keep what the correction networks read.

    Args:
        encoder: the backbone.
        texts: ``N`` captions; identical ones are encoded and stored once.
        anchor: anchor layer, 1-indexed.
        peak: peak layer, 1-indexed.
        scn_layers: layers of the score correction's context; the last block stands for the final embedding itself. May be empty.
        directory: keep the features here, memory-mapped, and go on from here after a kill. ``None``: in memory. A folder that
            exists keeps the batch and shard sizes it was begun with, so that its bytes equal an uninterrupted run's.
        batch_size: captions a forward pass.
        shard_size: captions a unit of work and a shard.
        on_long: captions over the context length: ``"warn"`` (one warning for all), ``"error"`` or ``"truncate"``.
        progress: show a progress bar on a terminal.

    Returns:
        the features; about ``2 W (tokens + 2) + 4 D (layers + 1)`` bytes a distinct caption.

    Raises:
        ValueError: no captions, something that is not a string, a layer that does not exist, states that are not finite, or a
            ``directory`` that holds features of other captions, another backbone or other layers.
    """
    distinct, index = _distinct(texts)
    layers = tuple(scn_layers)
    for layer in (anchor, peak, *layers):
        if not 1 <= layer <= encoder.num_text_layers:
            raise ValueError(f"layer {layer} does not exist: {encoder.name} has text layers 1..{encoder.num_text_layers}")
    fingerprint = encoder.fingerprint
    identity: dict[str, Any] = {
        "format": FORMAT,
        "kind": TEXT,
        "texts": len(distinct),
        "texts_sha256": _texts_digest(distinct),
        "backbone": {"text": fingerprint.text, "tokenizer": fingerprint.tokenizer},
        "anchor": anchor,
        "peak": peak,
        "scn_layers": list(layers),
        "embed_dim": encoder.embed_dim,
        "text_width": encoder.text_width,
    }
    cut_texts: list[LongTextsWarning] = []

    def make(first: int, last: int, step: int) -> Arrays:
        batches = [distinct[k : min(k + step, last)] for k in range(first, last, step)]
        parts = [_encode(encoder, batch, anchor, peak, layers, on_long, cut_texts) for batch in batches]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    units = cut(len(distinct), shard_size)
    if directory is None:
        made = [make(unit["first"], unit["last"], batch_size) for unit in track(units, len(units), TEXT, progress)]
        features = _text_features(identity, index, made)
        features = features.in_memory() if len(made) > 1 else features
    else:
        manifest = manifest_of(encoder, identity, batch_size, units)
        folder = UnitFolder(directory, manifest, TEXT)
        folder.run(lambda first, last: make(first, last, folder.manifest["batch_size"]), progress=progress)
        features = _text_features(identity, index, folder.read())
    if cut_texts:
        total = sum(warning.count for warning in cut_texts)
        message = f"{total} of {len(distinct)} distinct captions exceed {encoder.context_length} tokens and were truncated"
        warnings.warn(LongTextsWarning(message, total), stacklevel=2)
    return features


def _encode(
    encoder: DualEncoder,
    texts: Sequence[str],
    anchor: int,
    peak: int,
    scn_layers: tuple[int, ...],
    on_long: OnLong,
    cut_texts: list[LongTextsWarning],
) -> Arrays:
    """One batch through the encoder; the padding is dropped at once, so that no more than a batch is ever padded."""
    wanted = sorted({anchor, peak, *scn_layers})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        states = encoder.text_states(texts, wanted, token_layers=[peak], embedding=True, batch_size=len(texts), on_long=on_long)
    for entry in caught:
        if isinstance(entry.message, LongTextsWarning):
            cut_texts.append(entry.message)  # reported once, for all batches
        else:
            warnings.warn_explicit(entry.message, entry.category, entry.filename, entry.lineno)
    if states.embedding is None:
        raise ValueError(f"{encoder.name} returned no final embedding")
    final = states.embedding.float()
    unit = F.normalize(final, dim=-1)
    context = [
        unit if layer == encoder.num_text_layers else F.normalize(encoder.project(states.pooled_at(layer)).float(), dim=-1)
        for layer in scn_layers
    ]
    mask = states.mask.bool().cpu()
    arrays: Arrays = {
        "embedding": _numpy(unit),  # [n, D]
        "norm": _numpy(final.norm(dim=-1)),  # [n]
        "scn": _numpy(torch.stack(context, 1)) if context else np.zeros((len(texts), 0, encoder.embed_dim), np.float32),
        "peak_eos": _numpy(states.eos_at(peak)).astype(np.float16),  # [n, W]
        "anchor_eos": _numpy(states.eos_at(anchor)).astype(np.float16),  # [n, W]
        "lengths": mask.sum(1).numpy().astype(np.int64),  # [n]
        "tokens": _numpy(states.tokens_at(peak).cpu()[mask]).astype(np.float16),  # [sum(lengths), W]
    }
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            row = 0 if name == "tokens" else int(np.flatnonzero(~np.isfinite(array).reshape(len(texts), -1).all(1))[0])
            if name == "tokens":
                token = int(np.flatnonzero(~np.isfinite(array).all(1))[0])
                row = int(np.searchsorted(np.cumsum(arrays["lengths"]), token, side="right"))
            raise ValueError(f"the encoder's {name} for {texts[row]!r} are not finite (or do not fit half precision)")
    return arrays


def _text_features(identity: dict[str, Any], index: np.ndarray, units: Sequence[Arrays]) -> TextFeatures:
    return TextFeatures(
        anchor=identity["anchor"],
        peak=identity["peak"],
        scn_layers=tuple(identity["scn_layers"]),
        embed_dim=identity["embed_dim"],
        text_width=identity["text_width"],
        index=index,
        shards=tuple(units),
    )


def _distinct(texts: Sequence[str]) -> tuple[list[str], np.ndarray]:
    """The distinct texts, shortest first so that a batch is hardly padded, and for each text its place among them."""
    if isinstance(texts, str) or not len(texts):
        raise ValueError("texts must be a list of at least one caption")
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"caption {row} is {type(text).__name__}, not a string: {text!r}")
    distinct = sorted(set(texts), key=lambda text: (len(text), text))
    place = {text: k for k, text in enumerate(distinct)}
    return distinct, np.fromiter((place[text] for text in texts), np.int64, len(texts))


def _texts_digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))  # so that ["ab", "c"] differs from ["a", "bc"]
        digest.update(encoded)
    return digest.hexdigest()


def _numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()
