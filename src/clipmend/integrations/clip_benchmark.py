"""CLIP_benchmark: what its loaders return, ``(model, transform, tokenizer)``, from any encoder, mended or not.

On an open_clip model :meth:`PeakPatch.attach` is enough. This is for the other encoders, and for the ``gate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.tokens import check_texts

__all__ = ["BenchmarkModel", "load_clipmend", "loader_tuple"]

_END = -1  # fills up the shorter texts; no character


def loader_tuple(encoder: DualEncoder, device: torch.device | str | None = None) -> tuple[BenchmarkModel, Any, Any]:
    """``(model, transform, tokenizer)`` as CLIP_benchmark's ``load_clip`` returns them.

    Args:
        encoder: from :func:`clipmend.load`, or mended by :meth:`PeakPatch.apply`; of transformers or open_clip.
        device: where the embeddings are given; default: where the encoder is.

    Returns:
        the model, with ``encode_image`` and ``encode_text``; from a PIL image to ``[3, H, W]``; from texts to an int64 tensor. That
        holds the texts' characters, not the model's tokens, so that the encoder tokenises by itself and a gate can read them.

    Raises:
        ValueError: an encoder whose images cannot be prepared one by one.

    Example:
        >>> clip_benchmark.models.TYPE2FUNC["clipmend"] = load_clipmend
        >>> clip_benchmark.models.MODEL_TYPES.append("clipmend")
    """
    transform = _Transform(getattr(encoder, "encoder", encoder))
    if not transform.works():
        raise ValueError(f"{encoder.name} does not prepare its images one by one; load a model of transformers or open_clip")
    return BenchmarkModel(encoder, torch.device(device) if device is not None else encoder.device), transform, characters


def load_clipmend(
    model_name: str, pretrained: str = "", cache_dir: str | None = None, device: torch.device | str = "cpu"
) -> tuple[BenchmarkModel, Any, Any]:
    """A loader to be registered with CLIP_benchmark, with the arguments that it calls its own ones by.

    Args:
        model_name: as for :func:`clipmend.load`.
        pretrained: a patch, as for :meth:`PeakPatch.from_pretrained`; ``""`` for the plain encoder.
        cache_dir: not used: the libraries' own caches are.
        device: where to put it.
    """
    import clipmend

    encoder: DualEncoder = clipmend.load(model_name, device=device)
    if pretrained:
        encoder = clipmend.PeakPatch.from_pretrained(pretrained).apply(encoder)
    return loader_tuple(encoder, device)


class BenchmarkModel(nn.Module):
    """An encoder with the two methods that CLIP_benchmark calls; a module without weights of its own.

    Args:
        encoder: the encoder.
        device: where the embeddings are given.
    """

    def __init__(self, encoder: DualEncoder, device: torch.device) -> None:
        super().__init__()
        self.encoder, self._device = encoder, device

    def encode_image(self, pixels: Tensor) -> Tensor:
        """``[B, 3, H, W]`` prepared images to float32 ``[B, D]``, unit vectors."""
        return self.encoder.encode_prepared(pixels).to(self._device)  # type: ignore[attr-defined]

    def encode_text(self, texts: Tensor) -> Tensor:
        """What :func:`characters` gave, to float32 ``[B, D]``, unit vectors. Texts that are too long are counted in a warning."""
        return self.encoder.encode_texts(spelled(texts)).to(self._device)


def characters(texts: str | Sequence[str]) -> Tensor:
    """Texts to the numbers of their characters: int64 ``[N, longest]``, the shorter ones filled up."""
    rows = [[ord(letter) for letter in text] for text in check_texts([texts] if isinstance(texts, str) else texts)]
    result = torch.full((len(rows), max(map(len, rows), default=0)), _END, dtype=torch.long)
    for k, row in enumerate(rows):
        result[k, : len(row)] = torch.tensor(row, dtype=torch.long)
    return result


def spelled(numbers: Tensor) -> list[str]:
    """The texts that :func:`characters` was given."""
    return ["".join(chr(number) for number in row if number != _END) for row in numbers.tolist()]


class _Transform:
    """An encoder's ``prepare_image`` without its weights, so that it goes into the processes of a data loader."""

    def __init__(self, encoder: Any) -> None:
        self._kind = type(encoder)
        self._own = {name: value for name, value in vars(encoder).items() if name in ("image_processor", "preprocess", "_resizing")}

    def __call__(self, image: Image.Image) -> Tensor:
        encoder: Any = object.__new__(self._kind)
        vars(encoder).update(self._own)
        return encoder.prepare_image(image)

    def works(self) -> bool:
        return bool(self._own) and hasattr(self._kind, "prepare_image") and hasattr(self._kind, "encode_prepared")
