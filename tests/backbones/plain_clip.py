"""CLIP in plain lines over a state dict in open_clip's layout: one text or image at a time, one head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

State = Mapping[str, Tensor]
Act = Callable[[Tensor], Tensor]


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def random_state(
    *, width: int = 32, layers: int = 3, positions: int = 40, vocabulary: int, embed_dim: int = 24, vision: int = 40,
    vision_layers: int = 2, patch: int = 8, size: int = 32, hidden: int = 64, seed: int = 0,
) -> dict[str, Tensor]:  # fmt: skip
    """Random weights of ordinary size, named as open_clip names them."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) * (0.7 / shape[-1] ** 0.5 if len(shape) > 1 else 0.2)

    state = {
        "positional_embedding": noise(positions, width),
        "text_projection": noise(width, embed_dim),
        "logit_scale": torch.tensor(4.1),
        "token_embedding.weight": noise(vocabulary, width),
        "ln_final.weight": 1 + noise(width),
        "ln_final.bias": noise(width),
        "visual.class_embedding": noise(vision),
        "visual.positional_embedding": noise((size // patch) ** 2 + 1, vision),
        "visual.proj": noise(vision, embed_dim),
        "visual.conv1.weight": noise(vision, 3, patch, patch),
    }
    for norm in ("ln_pre", "ln_post"):
        state |= {f"visual.{norm}.weight": 1 + noise(vision), f"visual.{norm}.bias": noise(vision)}
    for side, wide, count in (("", width, layers), ("visual.", vision, vision_layers)):
        for layer in range(count):
            block = f"{side}transformer.resblocks.{layer}."
            for norm in ("ln_1", "ln_2"):
                state |= {f"{block}{norm}.weight": 1 + noise(wide), f"{block}{norm}.bias": noise(wide)}
            shapes = {"attn.in_proj_": (3 * wide, wide), "attn.out_proj.": (wide, wide)}
            shapes |= {"mlp.c_fc.": (hidden, wide), "mlp.c_proj.": (wide, hidden)}
            for part, (rows, columns) in shapes.items():
                state |= {f"{block}{part}weight": noise(rows, columns), f"{block}{part}bias": noise(rows)}
    return state


def encode_text(state: State, ids: list[int], act: Act, heads: int = 4) -> Tensor:
    """Embedding ``[D]`` of one text that ends with its end token."""
    x = state["token_embedding.weight"][ids] + state["positional_embedding"][: len(ids)]
    x = _blocks(state, "transformer.resblocks", x, act, heads, causal=True)
    return _norm(state, "ln_final", x[-1]) @ state["text_projection"]


def encode_image(state: State, pixels: Tensor, act: Act, heads: int = 4) -> Tensor:
    """Embedding ``[D]`` of one image ``[3, H, H]``."""
    kernel = state["visual.conv1.weight"]
    patch = kernel.shape[-1]
    rows = [
        [(kernel * pixels[:, y : y + patch, x : x + patch]).sum((1, 2, 3)) for x in range(0, pixels.shape[2], patch)]
        for y in range(0, pixels.shape[1], patch)
    ]
    x = (
        torch.stack([state["visual.class_embedding"], *(patch for row in rows for patch in row)])
        + state["visual.positional_embedding"]
    )
    x = _blocks(state, "visual.transformer.resblocks", _norm(state, "visual.ln_pre", x), act, heads, causal=False)
    return _norm(state, "visual.ln_post", x[0]) @ state["visual.proj"]


def _norm(state: State, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], 1e-5)


def _linear(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _blocks(state: State, blocks: str, x: Tensor, act: Act, heads: int, causal: bool) -> Tensor:
    layer = 0
    while f"{blocks}.{layer}.ln_1.weight" in state:
        block = f"{blocks}.{layer}"
        normed = _norm(state, f"{block}.ln_1", x)
        qkv = normed @ state[f"{block}.attn.in_proj_weight"].T + state[f"{block}.attn.in_proj_bias"]
        q, k, v = qkv.chunk(3, -1)
        size = x.shape[1] // heads
        mixed = []
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            scores = q[:, own] @ k[:, own].T / math.sqrt(size)
            if causal:
                scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))
            mixed.append(scores.softmax(-1) @ v[:, own])
        x = x + _linear(state, f"{block}.attn.out_proj", torch.cat(mixed, -1))
        x = x + _linear(state, f"{block}.mlp.c_proj", act(_linear(state, f"{block}.mlp.c_fc", _norm(state, f"{block}.ln_2", x))))
        layer += 1
    return x
