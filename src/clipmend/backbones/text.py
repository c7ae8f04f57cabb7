"""Encoders over a :class:`TextTower`: with an image side of any kind, or with none."""

from __future__ import annotations

import math
import operator
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from clipmend.backbones.base import DualEncoder, Fingerprint, OnLong, TextStates
from clipmend.backbones.base import normalize as l2_normalize
from clipmend.backbones.kinds import kind_of
from clipmend.backbones.progress import track
from clipmend.backbones.tokens import TokenisedTexts, check_texts, refuse_blank
from clipmend.backbones.tower import Pooling, TextTower

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NoImageSideError", "TextAndImageEncoder", "TextOnlyEncoder", "TextTower"]

_FROM_ARRAY = "make an image of an array of pixels with PIL.Image.fromarray(array)"


class TextAndImageEncoder(DualEncoder):
    """A :class:`TextTower` beside an image side; subclasses say how a batch of images is embedded.

    A subclass defines ``_encode_image_batch`` and ``_image_digest``. Encoding is thread-safe; results are ordinary float32 tensors
    on the CPU, in the order of the inputs, whatever the batch size.

    Args:
        tower: the text half.
        name: what the encoder calls itself.
        logit_scale: multiplier of the cosine in its loss.
        device: where its weights are; default: the tower's.
    """

    def __init__(
        self, tower: TextTower, *, name: str, logit_scale: float = 100.0, device: torch.device | str | None = None
    ) -> None:
        self.tower = tower
        self.name = name
        self.logit_scale = float(logit_scale)
        self.device = torch.device(device) if device is not None else tower.device
        self.embed_dim = tower.embed_dim
        self.text_width = tower.width
        self.num_text_layers = tower.num_layers
        self.context_length = tower.context_length
        self.text_pooling: Pooling = tower.pooling
        self._fingerprint: Fingerprint | None = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.name!r}, embed_dim={self.embed_dim}, text_width={self.text_width}, "
            f"num_text_layers={self.num_text_layers}, context_length={self.context_length}, device={str(self.device)!r})"
        )

    @abstractmethod
    def _encode_image_batch(self, images: list[Image]) -> Tensor:
        """``[B, D]`` embeddings of RGB images, not normalised, on any device; called within ``torch.inference_mode()``."""

    def prepare_image(self, image: Image) -> Tensor | None:
        """``[3, H, W]`` pixels of one RGB image as the image side takes them, on the CPU; ``None`` where only whole batches can be.

        Safe in threads, so that many images can be read and prepared while the model works on others.
        """
        return None

    def encode_prepared(self, pixels: Tensor) -> Tensor:
        """Embed a batch of prepared images, ``[B, 3, H, W]``: float32 ``[B, D]`` on the CPU, L2-normalised."""
        with torch.inference_mode():
            rows = self._embed_pixels(pixels).to("cpu", torch.float32)
        return l2_normalize(rows.clone())

    def _embed_pixels(self, pixels: Tensor) -> Tensor:
        """``[B, D]`` embeddings of prepared images, not normalised, on any device; called within ``torch.inference_mode()``."""
        raise NotImplementedError(f"{type(self).__name__} prepares whole batches only")

    @abstractmethod
    def _image_digest(self) -> str:
        """SHA-256 of the image side's weights and preprocessing; ``""`` for none."""

    @property
    def fingerprint(self) -> Fingerprint:
        """Digests of weights, preprocessing and tokenizer; computed once, on first use."""
        if self._fingerprint is None:
            self._fingerprint = Fingerprint(
                text=self.tower.digest(), image=self._image_digest(), tokenizer=self.tower.tokenizer_digest()
            )
        return self._fingerprint

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        """Embed images: paths, binary files or PIL images to float32 ``[N, D]`` on the CPU.

        Raises:
            TypeError: not a list of those; names the first that is none.
            ImageError: (a ``ValueError``) an image that cannot be read, named.
        """
        items = _check_images(images)
        _check_batch_size(batch_size)
        result = torch.zeros(len(items), self.embed_dim)
        starts = range(0, len(items), batch_size)
        with ThreadPoolExecutor(max_workers=1) as reader:  # reads the next batch while the model works on this one
            batches = _read_ahead(reader, items, batch_size)
            for start, batch in track(zip(starts, batches, strict=True), len(starts), "images", progress):
                with torch.inference_mode():
                    result[start : start + len(batch)] = self._encode_image_batch(batch).to("cpu", torch.float32)
        return l2_normalize(result) if normalize else result

    def text_states(
        self,
        texts: Sequence[str],
        layers: Sequence[int],
        *,
        token_layers: Sequence[int] | None = None,
        embedding: bool = True,
        batch_size: int = 64,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> TextStates:
        """States after the given blocks, in one pass that stops at the last layer needed (see :class:`DualEncoder`)."""
        layers = tuple(operator.index(layer) for layer in layers)
        token_layers = layers if token_layers is None else tuple(operator.index(layer) for layer in token_layers)
        for layer in (*layers, *token_layers):
            if not 1 <= layer <= self.num_text_layers:
                raise ValueError(f"layer {layer} is outside 1..{self.num_text_layers} of {self.name}")
        if not layers and not token_layers and not embedding:
            raise ValueError("nothing asked for: give layers, token_layers, or embedding=True")
        return self._states(self.tower.tokenise(texts, on_long), layers, token_layers, embedding, batch_size, progress)

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        """Embed texts: float32 ``[N, D]`` on the CPU, L2-normalised unless ``normalize=False``.

        Raises:
            ValueError: a text that is empty (named by row), or too long with ``on_long="error"``.
        """
        texts = check_texts(texts)
        refuse_blank(texts)
        states = self._states(self.tower.tokenise(texts, on_long), (), (), True, batch_size, progress)
        assert states.embedding is not None
        return l2_normalize(states.embedding) if normalize else states.embedding

    def project(self, states: TextStates | Tensor) -> Tensor:
        """Pooled states ``[..., W]`` (or those of a :class:`TextStates`) into the joint space ``[..., D]``, float32 on the CPU.

        Not normalised. For encoders without a final norm this projects the pooled *normed* states, whereas ``embedding`` comes
        from the raw ones, as in the library.
        """
        pooled = states.pooled if isinstance(states, TextStates) else states
        with torch.no_grad():
            return self.tower.project(pooled.to(self.tower.device, self.tower.dtype)).to("cpu", torch.float32)

    def _states(
        self,
        tokenised: TokenisedTexts,
        layers: tuple[int, ...],
        token_layers: tuple[int, ...],
        embedding: bool,
        batch_size: int,
        progress: bool,
    ) -> TextStates:
        _check_batch_size(batch_size)
        ids = tokenised.ids
        count, width = len(ids), self.text_width
        longest = max((len(row) for row in ids), default=0)
        # Ordinary tensors, made outside inference mode, so that callers may train on them.
        tokens = torch.zeros(count, len(token_layers), longest if token_layers else 0, width)
        mask = torch.arange(longest) < torch.tensor([len(row) for row in ids], dtype=torch.long).unsqueeze(1)
        eos = torch.zeros(count, len(layers), width)
        pooled = torch.zeros(count, len(layers), width)
        final = torch.zeros(count, self.embed_dim) if embedding else None
        order = sorted(range(count), key=lambda row: len(ids[row]))  # texts of like length share a batch: little padding
        starts = range(0, count, batch_size)
        for start in track(starts, len(starts), "texts", progress):
            rows = order[start : start + batch_size]
            with torch.inference_mode():
                out = self.tower.run([ids[row] for row in rows], layers, token_layers=token_layers, embedding=embedding)
                for k, layer in enumerate(layers):
                    eos[rows, k] = out.eos[layer].to("cpu", torch.float32)
                    pooled[rows, k] = out.pooled[layer].to("cpu", torch.float32)
                for k, layer in enumerate(token_layers):
                    states = out.tokens[layer].to("cpu", torch.float32)
                    for b, row in enumerate(rows):
                        valid = states[b, -len(ids[row]) :] if self.tower.pad_left else states[b, : len(ids[row])]
                        tokens[row, k, : len(ids[row])] = valid
                if final is not None and out.embedding is not None:
                    final[rows] = out.embedding.to("cpu", torch.float32)
        return TextStates(layers, tokens, token_layers, mask, eos, pooled, final)


class NoImageSideError(TypeError, ValueError):
    """Images were given to a text encoder. To a program it is the wrong type of encoder, on a command line a wrong argument."""


class TextOnlyEncoder(TextAndImageEncoder):
    """A text encoder by itself, for diagnosis: it has no images.

    Args:
        tower: the text encoder.
        name: what it calls itself.
    """

    def __init__(self, tower: TextTower, *, name: str) -> None:
        super().__init__(tower, name=name, logit_scale=1.0)

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        """Always raises: there is no image side.

        Raises:
            NoImageSideError: always.
        """
        raise NoImageSideError(
            f"{self.name} is a text encoder and has no image side; load an image-text model such as a CLIP to use images"
        )

    def move(self, device: torch.device, dtype: torch.dtype) -> TextOnlyEncoder:
        """Move and cast the weights in place; the fingerprint stays that of the weights before the cast."""
        if dtype != self.tower.dtype:
            _ = self.fingerprint
        self.tower.to(device, dtype)
        self.device = device
        return self

    def _encode_image_batch(self, images: list[Image]) -> Tensor:
        raise NoImageSideError(f"{self.name} has no image side")

    def _image_digest(self) -> str:
        return ""


def _check_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size is {batch_size}; it must be at least 1")


def _check_images(images: Any) -> list[Any]:
    """``images`` as a list; what is no image is named now, not after an hour's work."""
    from PIL.Image import Image

    if isinstance(images, (str, bytes, os.PathLike)):
        raise TypeError("expected a list of images, not one path: write [path]")
    if isinstance(images, Image) or hasattr(images, "read"):
        raise TypeError("expected a list of images, not one image: write [image]")
    if isinstance(images, Tensor) or getattr(getattr(images, "dtype", None), "kind", "O") not in "OU":
        raise TypeError(f"expected a list of paths or PIL images, not {kind_of(images)} of numbers; {_FROM_ARRAY}")
    if not isinstance(images, Iterable):
        raise TypeError(f"expected a list of images, not {kind_of(images)}")
    items = list(images)
    for row, item in enumerate(items):
        if not (isinstance(item, (str, os.PathLike, Image)) or hasattr(item, "read")):
            way_out = "wrap an encoded image's bytes in io.BytesIO" if isinstance(item, (bytes, bytearray)) else _FROM_ARRAY
            raise TypeError(f"image {row} is {kind_of(item)}, not a path, a PIL image or a binary file; {way_out}")
    return items


def _read_ahead(reader: ThreadPoolExecutor, items: list[Any], batch_size: int) -> Iterator[list[Image]]:
    """Batches of opened images, each read while its predecessor is in use."""
    from clipmend.data.images import open_image

    def read(start: int) -> list[Image]:
        return [open_image(item) for item in items[start : start + batch_size]]

    pending = reader.submit(read, 0) if items else None
    for k in range(math.ceil(len(items) / batch_size)):
        assert pending is not None
        batch = pending.result()
        following = (k + 1) * batch_size
        pending = reader.submit(read, following) if following < len(items) else None
        yield batch
