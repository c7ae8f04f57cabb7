"""The names that a CLIP's weights go by: open_clip's (which are OpenAI's) and transformers', and the way from either to the other.

Three layouts hold the same numbers:

- ``"open_clip"``: ``token_embedding.weight``, ``transformer.resblocks.0.attn.in_proj_weight``, ``visual.proj``...; query, key and
  value are one matrix, and projections are ``[W, D]`` parameters applied from the right;
- ``"open_clip text"``: the same with the text side under ``text.`` (open_clip's ``CustomTextCLIP``);
- ``"transformers"``: ``text_model.encoder.layers.0.self_attn.q_proj.weight``...; query, key and value lie apart, and projections
  are linear layers, ``[D, W]``.

Image towers other than a vision transformer exist in open_clip alone and cannot be renamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Layout", "convert_layout", "find_layout"]

Layout = Literal["open_clip", "open_clip text", "transformers"]

# Within a side; (open_clip, transformers).
_NAMES = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
    "logit_scale": "logit_scale",
}
_PROJECTIONS = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}  # transposed
_PARTS = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}
_BLOCKS = {"transformer.resblocks": "text_model.encoder.layers", "visual.transformer.resblocks": "vision_model.encoder.layers"}
_OPEN_CLIP_BLOCK = re.compile(r"((?:visual\.)?transformer\.resblocks)\.(\d+)\.(.+)\.(weight|bias)")
_OPEN_CLIP_QKV = re.compile(r"((?:visual\.)?transformer\.resblocks)\.(\d+)\.attn\.in_proj_(weight|bias)")
_BLOCK = re.compile(r"((?:text|vision)_model\.encoder\.layers)\.(\d+)\.(.+)\.(weight|bias)")
_TEXT_SIDE = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection", "cls_emb")


def find_layout(names: Iterable[str]) -> Layout | None:
    """The layout that ``names`` of weights are in; ``None`` for none of them."""
    names = list(names)
    if any(name.startswith(("text_model.", "vision_model.")) for name in names):
        return "transformers"
    if any(name.startswith("text.") for name in names):
        return "open_clip text"
    if any(name.startswith("visual.") or name in ("token_embedding.weight", "ln_final.weight") for name in names):
        return "open_clip"
    return None


def convert_layout(weights: Mapping[str, Tensor], to: Layout) -> dict[str, Tensor]:
    """Rename ``weights`` from the layout they are in; numbers are regrouped or transposed, never changed.

    Args:
        weights: names and tensors in any of the layouts.
        to: the layout wanted.

    Returns:
        the tensors under their new names. A name that the layouts do not know is kept as it is, so that whoever loads the result
        sees it.

    Raises:
        ValueError: in no known layout; an image tower that transformers' CLIP does not have; query, key and value that are not
            all three there.
    """
    source = find_layout(weights)
    if source is None:
        first = ", ".join(list(weights)[:3]) or "none"
        raise ValueError(f"these are not the weights of a CLIP in open_clip's or transformers' layout; the first names: {first}")
    if source == to:
        return dict(weights)
    if source == "transformers":
        flat = _to_open_clip(weights)
        return _under_text(flat) if to == "open_clip text" else flat
    if to == "open_clip text":
        return _under_text(weights)
    flat = {_bare(name): tensor for name, tensor in weights.items()}
    return flat if to == "open_clip" else _to_transformers(flat)


def _bare(name: str) -> str:
    rest = name.removeprefix("text.")
    return rest if rest != name and rest.startswith(_TEXT_SIDE) else name


def _under_text(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"text.{name}" if name.startswith(_TEXT_SIDE) else name: tensor for name, tensor in weights.items()}


def _to_transformers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    visual = [name for name in weights if name.startswith("visual.")]
    if visual and "visual.conv1.weight" in weights and "visual.class_embedding" not in weights:
        raise ValueError(
            "the image tower is a ResNet, which transformers' CLIP does not have: load it as 'open_clip:RN50' or the like"
        )
    if any(name.startswith(("visual.trunk.", "visual.head.")) for name in visual):
        raise ValueError(
            "the image tower is one of timm's, as in open_clip's SigLIP, which cannot be renamed: load it as 'open_clip:ARCH'"
        )
    if any(name.startswith("text.transformer.") for name in weights):
        raise ValueError("the text tower is one of transformers' own inside open_clip: load it as 'open_clip:ARCH'")
    converted: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name in _NAMES:
            converted[_NAMES[name]] = tensor
        elif name in _PROJECTIONS:
            converted[_PROJECTIONS[name]] = tensor.T.contiguous()
        elif match := _OPEN_CLIP_QKV.fullmatch(name):
            blocks, layer, kind = match.groups()
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                converted[f"{_BLOCKS[blocks]}.{layer}.self_attn.{part}_proj.{kind}"] = piece.contiguous()
        elif (match := _OPEN_CLIP_BLOCK.fullmatch(name)) and match[3] in _PARTS:
            converted[f"{_BLOCKS[match[1]]}.{match[2]}.{_PARTS[match[3]]}.{match[4]}"] = tensor
        else:
            converted[name] = tensor
    return converted


def _to_open_clip(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = {new: old for old, new in _NAMES.items()}
    projections = {new: old for old, new in _PROJECTIONS.items()}
    parts = {new: old for old, new in _PARTS.items()}
    blocks = {new: old for old, new in _BLOCKS.items()}
    converted: dict[str, Tensor] = {}
    apart: dict[str, dict[str, Tensor]] = {}  # of each joined matrix, its three pieces
    for name, tensor in weights.items():
        match = _BLOCK.fullmatch(name)
        if name in names:
            converted[names[name]] = tensor
        elif name in projections:
            converted[projections[name]] = tensor.T.contiguous()
        elif match and match[3] in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"):
            joined = f"{blocks[match[1]]}.{match[2]}.attn.in_proj_{match[4]}"
            apart.setdefault(joined, {})[match[3][len("self_attn.")]] = tensor
        elif match and match[3] in parts:
            converted[f"{blocks[match[1]]}.{match[2]}.{parts[match[3]]}.{match[4]}"] = tensor
        else:
            converted[name] = tensor
    for joined, pieces in apart.items():
        if set(pieces) != set("qkv"):
            raise ValueError(f"{joined} needs query, key and value, but only {', '.join(sorted(pieces))} of them are there")
        converted[joined] = torch.cat([pieces[part] for part in "qkv"])
    return converted
