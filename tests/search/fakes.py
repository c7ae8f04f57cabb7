"""A dual encoder small enough to reason about: images by their mean colour, texts by their colour words and a hash."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clipmend.backbones.base import DualEncoder, Fingerprint, OnLong, TextStates
from clipmend.data.images import open_image

DIM = 8
_MIX = torch.from_numpy(np.random.default_rng(0).normal(size=(4, DIM)).astype(np.float32))
COLOURS = {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0), "white": (1.0, 1.0, 1.0)}


class FakeEncoder(DualEncoder):
    """Counts what it is asked to embed; ``before_batch`` runs before each batch of images (to count, to fail, to die)."""

    def __init__(
        self, image: str = "image-side", text: str = "text-side", before_batch: Callable[[int], None] | None = None
    ) -> None:
        self.name = "fake"
        self.embed_dim, self.text_width, self.num_text_layers, self.context_length = DIM, DIM, 2, 77
        self.logit_scale, self.device, self.text_pooling = 100.0, torch.device("cpu"), "eos"
        self.image, self.text = image, text
        self.before_batch = before_batch
        self.embedded = 0
        self.batches: list[int] = []

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(text=self.text, image=self.image, tokenizer="t")

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        if self.before_batch is not None:
            self.before_batch(self.embedded)
        self.embedded += len(images)
        self.batches.append(len(images))
        rows = [self.embed(open_image(image)) for image in images]
        vectors = torch.stack(rows) if rows else torch.empty(0, DIM)
        return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors

    def embed(self, image: Image.Image) -> Tensor:
        mean = torch.from_numpy(np.asarray(image, np.float32).mean((0, 1)) / 255)
        return torch.cat([mean, torch.tensor([0.1])]) @ _MIX

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        if on_long == "error" and any(len(text.split()) > self.context_length for text in texts):
            raise ValueError(f"a text is longer than {self.context_length} tokens")
        vectors = torch.stack([self.embed_text(text) for text in texts])
        return torch.nn.functional.normalize(vectors, dim=-1) if normalize else vectors

    def embed_text(self, text: str) -> Tensor:
        seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big")
        vector = torch.from_numpy(np.random.default_rng(seed).normal(size=DIM).astype(np.float32)) * 0.01
        for word in text.lower().split():
            if word in COLOURS:
                vector = vector + torch.tensor([*COLOURS[word], 0.1]) @ _MIX
        return vector

    def text_states(self, texts: Sequence[str], layers: Sequence[int], **options: Any) -> TextStates:
        raise NotImplementedError

    def project(self, states: TextStates | Tensor) -> Tensor:
        raise NotImplementedError


class FakeMended(FakeEncoder):
    """Over the same images, hears "no": what is denied is turned away from. Its score adds a preference of its own."""

    def embed_text(self, text: str) -> Tensor:
        if text.startswith("no "):
            return -super().embed_text(text.removeprefix("no "))
        return super().embed_text(text)

    def _score(self, images: Tensor, texts: Any, pairs: Tensor | None) -> Tensor:
        return -super()._score(images, texts, pairs)


def colour_folder(folder: Path, count: int = 20, seed: int = 0) -> dict[str, tuple[int, int, int]]:
    """Write ``count`` PNGs of one random colour each; returns the colours by name."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    colours = {}
    for i in range(count):
        colour = tuple(int(v) for v in rng.integers(0, 256, 3))
        name = f"{chr(97 + i % 3)}/{i:03d}.png"
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (6, 5), colour).save(path)
        colours[name] = colour
    return colours  # type: ignore[return-value]


def die_after(count: int) -> Callable[[int], None]:
    """A ``before_batch`` that kills this very process, as ``kill -9`` does, once ``count`` images are embedded."""

    def hook(embedded: int) -> None:
        if embedded >= count:
            os.kill(os.getpid(), signal.SIGKILL)

    return hook
