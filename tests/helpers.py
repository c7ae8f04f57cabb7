"""What several test files share: a small dual encoder with random weights and no files."""

from __future__ import annotations

import hashlib
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, Fingerprint, LongTextsWarning, OnLong, TextStates
from clipmend.data.records import Caption, NegationData, Question

KINDS = ["cat", "dog", "cup", "tree", "car", "hat"]


class RandomDualEncoder(DualEncoder):
    """A CLIP-shaped encoder with random weights: words hashed to ids, causal blocks, final norm, EOS pooling, projection.

    Images are embedded from an 8 x 8 thumbnail. Equal ``seed`` and sizes give equal encoders. ``text_passes`` and
    ``image_passes`` count forward passes, ``texts_seen`` the texts that went through.

    Args:
        width, embed_dim, layers, context_length, vocabulary: sizes.
        seed: seed of the weights.
    """

    logit_scale = 100.0
    text_pooling = "eos"

    def __init__(
        self,
        width: int = 24,
        embed_dim: int = 16,
        layers: int = 4,
        context_length: int = 20,
        vocabulary: int = 512,
        seed: int = 0,
        name: str = "random",
    ) -> None:
        self.name = name
        self.embed_dim, self.text_width, self.num_text_layers = embed_dim, width, layers
        self.context_length = context_length
        self.device = torch.device("cpu")
        self.text_passes = self.image_passes = self.texts_seen = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.token = nn.Embedding(vocabulary, width)
            self.position = nn.Embedding(context_length, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
                for _ in range(layers)
            )
            self.norm = nn.LayerNorm(width)
            self.text_projection = nn.Linear(width, embed_dim, bias=False)
            self.image_projection = nn.Linear(3 * 64, embed_dim, bias=False)
        self._modules_list = nn.ModuleList(
            [self.token, self.position, self.blocks, self.norm, self.text_projection, self.image_projection]
        )
        self._modules_list.eval().requires_grad_(False)

    @property
    def fingerprint(self) -> Fingerprint:
        def digest(modules: Sequence[nn.Module]) -> str:
            sha = hashlib.sha256()
            for module in modules:
                for tensor in module.state_dict().values():
                    sha.update(tensor.numpy().tobytes())
            return sha.hexdigest()

        text = digest([self.token, self.position, self.blocks, self.norm, self.text_projection])
        return Fingerprint(text=text, image=digest([self.image_projection]), tokenizer="0" * 64)

    def _ids(self, text: str) -> list[int]:
        """Start, one id a word, EOS; cut to the context with EOS kept."""
        words = [2 + zlib.crc32(word.encode("utf-8", "surrogatepass")) % (self.token.num_embeddings - 2) for word in text.split()]
        return [0, *words[: self.context_length - 2], 1]

    @torch.inference_mode()
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
        kept = tuple(layers) if token_layers is None else tuple(token_layers)
        long = sum(len(text.split()) > self.context_length - 2 for text in texts)
        if long and on_long == "error":
            raise ValueError(f"{long} texts are longer than {self.context_length} tokens")
        if long and on_long == "warn":
            warnings.warn(LongTextsWarning(f"{long} of {len(texts)} texts truncated", long), stacklevel=2)
        ids = [self._ids(text) for text in texts]
        longest = max(map(len, ids))
        lengths = torch.tensor([len(row) for row in ids])
        mask = torch.arange(longest) < lengths[:, None]
        padded = torch.tensor([row + [1] * (longest - len(row)) for row in ids])
        tokens, eos, final = [], [], []
        for start in range(0, len(ids), batch_size):
            self.text_passes += 1
            stop = min(start + batch_size, len(ids))
            self.texts_seen += stop - start
            x = self.token(padded[start:stop]) + self.position(torch.arange(longest))
            causal = torch.triu(torch.full((longest, longest), float("-inf")), 1)
            end = lengths[start:stop] - 1
            states = {}
            for number, block in enumerate(self.blocks, 1):
                x = block(x, src_mask=causal, is_causal=True)
                states[number] = self.norm(x)
            row = torch.arange(stop - start)
            own = [states[k] * mask[start:stop, :, None] for k in kept]
            tokens.append(torch.stack(own, 1) if own else x.new_zeros(stop - start, 0, 0, self.text_width))
            eos.append(torch.stack([states[k][row, end] for k in layers], 1))
            final.append(self.text_projection(states[self.num_text_layers][row, end]))
        pooled = torch.cat(eos)
        return TextStates(tuple(layers), torch.cat(tokens), kept, mask, pooled, pooled, torch.cat(final) if embedding else None)

    def project(self, states: TextStates | Tensor) -> Tensor:
        return self.text_projection(states if isinstance(states, Tensor) else states.pooled)

    def encode_texts(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        normalize: bool = True,
        on_long: OnLong = "warn",
        progress: bool = False,
    ) -> Tensor:
        states = self.text_states(texts, [self.num_text_layers], batch_size=batch_size, on_long=on_long)
        assert states.embedding is not None
        return F.normalize(states.embedding, dim=-1) if normalize else states.embedding

    @torch.inference_mode()
    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, normalize: bool = True, progress: bool = False
    ) -> Tensor:
        rows = []
        for image in images:
            opened = Image.open(image) if isinstance(image, str | Path) else image
            rows.append(np.asarray(opened.convert("RGB").resize((8, 8)), np.float32).ravel() / 255)
        out = []
        for start in range(0, len(rows), batch_size):
            self.image_passes += 1
            out.append(self.image_projection(torch.from_numpy(np.stack(rows[start : start + batch_size]))))
        joined = torch.cat(out) if out else torch.zeros(0, self.embed_dim)
        return F.normalize(joined, dim=-1) if normalize else joined


def small_data(count: int = 40, seed: int = 0) -> NegationData:
    """Made-up images that show one to three kinds each, with captions that assert and deny them, and one question an image."""
    rng = np.random.default_rng(seed)
    facts, captions, questions = [], [], []
    for image in range(count):
        here = rng.permutation(KINDS)[: rng.integers(1, 4)].tolist()
        gone = [k for k in KINDS if k not in here]
        facts.append(frozenset(here))
        first = len(captions)
        captions += [
            Caption(f"a photo of a {here[0]}", image, "affirmative", (here[0],)),
            Caption(f"a {here[0]} but no {gone[0]}", image, "hybrid", (here[0],), (gone[0],), "no"),
            Caption(f"a photo without a {gone[1]}", image, "negative", (), (gone[1],), "without"),
            Caption(f"no {here[0]}", -1, "negative", (), (here[0],), "no"),
            Caption(f"a {gone[0]} and no {here[0]}", -1, "hybrid", (gone[0],), (here[0],), "no"),
            Caption(f"a {gone[1]}", -1, "affirmative", (gone[1],)),
        ]
        questions.append(Question(image, (first + 3, first + 2, first + 4, first + 5), 1, "negative"))
    return NegationData([f"{k}.png" for k in range(count)], facts, captions, questions, name="small")
