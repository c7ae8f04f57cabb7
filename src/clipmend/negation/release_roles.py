"""Which weight of a checkpoint plays which part in the ECN and the SCN: by the published names, or by shapes and order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from torch import Tensor

__all__ = ["assign_roles"]

# Our parts -> the published names of the same.
_PUBLISHED = {
    "ecn": {"attention.query": "learned_query", "attention": "cross_attn", "attention_norm": "attn_ln", "mlp": "mlp"},
    "scn": {"text_mlp": "text_encoder", "cross_mlp": "cross_encoder", "head": "correction_head"},
}
_ATTENTION = ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")  # torch.nn.MultiheadAttention's own names
_LEAVES = ("weight", "bias")
_MLP = ("mlp.0", "mlp.1", "mlp.4", "mlp.5", "mlp.8")
_OURS = {
    "ecn": (
        "attention.query",
        *(f"attention.{name}" for name in _ATTENTION),
        *(f"{part}.{leaf}" for part in ("attention_norm", *_MLP) for leaf in _LEAVES),
        "log_alpha",
    ),
    "scn": tuple(
        f"{part}.{leaf}"
        for part in ("text_mlp.0", "text_mlp.1", "text_mlp.3", "cross_mlp.0", "cross_mlp.1", "cross_mlp.3", "head.0", "head.3")
        for leaf in _LEAVES
    ),
}


@dataclass(frozen=True)
class _Layer:
    """A linear layer or a layer norm in the file.

    Args:
        name: its name there.
        weight: its weight.
        place: its place in the file's order.
    """

    name: str
    weight: Tensor
    place: int

    @property
    def is_linear(self) -> bool:
        return self.weight.ndim == 2


def assign_roles(side: str, weights: Mapping[str, Tensor], key_map: Mapping[str, str], path: Path) -> dict[str, str]:
    """Our name of each weight -> its name in the file; every weight of the file is used exactly once.

    Args:
        side: ``"ecn"`` or ``"scn"``.
        weights: the file's, in its order.
        key_map: our names of weights or parts -> names in the file; these come first.
        path: the file, for messages.

    Raises:
        ValueError: weights that are missing, left over or ambiguous; says which, and what ``key_map`` would settle it.
    """
    roles = _by_names(side, weights, key_map)
    absent = [(ours, theirs) for ours, theirs in key_map.items() if not any(_within(name, theirs) for name in weights)]
    if absent:
        raise ValueError(f"{path} has no {absent[0][1]!r}, which key_map gives for {side}.{absent[0][0]}")
    published = roles | _by_names(side, weights, {k: v for k, v in _PUBLISHED[side].items() if k not in key_map} | _scalar(side))
    without_attention = {ours for ours in _OURS["ecn"] if ours.startswith("attention")}
    for needed in (set(_OURS[side]), set(_OURS[side]) - without_attention):
        if set(published) == needed and len(set(published.values())) == len(weights) == len(needed):
            return published
    if set(roles) != set(_OURS[side]):
        roles = {**(_ecn_roles(weights, roles, path) if side == "ecn" else _scn_roles(weights, key_map, path)), **roles}
    missing = [ours for ours in _OURS[side] if ours not in roles]
    if missing and not (side == "ecn" and set(missing) == without_attention):
        raise ValueError(
            f"{path} lacks a weight for {side}.{missing[0]}" + (f" and {len(missing) - 1} more" if missing[1:] else "")
        )
    unused = [name for name in weights if name not in roles.values()]
    if unused:
        raise ValueError(f"{path}: nothing in the {side.upper()} corresponds to {', '.join(unused[:3])}")
    return roles


def _scalar(side: str) -> dict[str, str]:
    return {"log_alpha": "log_alpha"} if side == "ecn" else {}


def _within(name: str, part: str) -> bool:
    return name == part or name.startswith(f"{part}.")


def _by_names(side: str, weights: Mapping[str, Tensor], parts: Mapping[str, str]) -> dict[str, str]:
    """Roles of the weights named by ``parts``, of which the longest of ours that fits counts."""
    roles = {}
    for ours in _OURS[side]:
        part = max((part for part in parts if _within(ours, part)), key=len, default=None)
        if part is not None and (theirs := parts[part] + ours[len(part) :]) in weights:
            roles[ours] = theirs
    return roles


def _layers(weights: Mapping[str, Tensor]) -> list[_Layer]:
    named: dict[str, _Layer] = {}
    for place, (name, tensor) in enumerate(weights.items()):
        module, _, leaf = name.rpartition(".")
        if leaf == "weight" and f"{module}.bias" in weights and tensor.ndim in (1, 2):
            named[module] = _Layer(module, tensor, place)
    return list(named.values())


def _both(ours: str, layer: _Layer) -> dict[str, str]:
    return {f"{ours}.{leaf}": f"{layer.name}.{leaf}" for leaf in _LEAVES}


def _ecn_roles(weights: Mapping[str, Tensor], known: Mapping[str, str], path: Path) -> dict[str, str]:
    """Roles by shape and order, of the weights that are not ``known`` yet."""
    roles: dict[str, str] = {}
    rest = {name: tensor for name, tensor in weights.items() if name not in known.values()}
    prefixes = [name.removesuffix("in_proj_weight") for name in rest if name.endswith("in_proj_weight")]
    if len(prefixes) > 1:
        raise ValueError(f"{path} holds {len(prefixes)} attentions ({', '.join(prefixes)}); name one with key_map['ecn.attention']")
    for prefix in prefixes:
        roles |= {f"attention.{name}": prefix + name for name in _ATTENTION if prefix + name in rest}
    rest = {name: tensor for name, tensor in rest.items() if name not in roles.values()}
    layers = _layers(rest)
    single = {name: rest[name] for name in rest if name.rpartition(".")[0] not in {layer.name for layer in layers}}
    if "log_alpha" not in known:
        roles["log_alpha"] = _log_alpha(single, path)
    projection = {**known, **roles}.get("attention.in_proj_weight")
    if projection is not None and "attention.query" not in known:
        roles["attention.query"] = _query(single, weights[projection].shape[1], path)
    if not any(ours.startswith("mlp.") for ours in known):
        roles |= _chain(layers, path)
    norms = [layer for layer in layers if not layer.is_linear and f"{layer.name}.weight" not in roles.values()]
    if len(norms) == 1:
        roles |= _both("attention_norm", norms[0])
    return roles


def _log_alpha(single: Mapping[str, Tensor], path: Path) -> str:
    numbers = [name for name, tensor in single.items() if tensor.numel() == 1]
    if len(numbers) != 1 or "log" not in numbers[0]:  # alpha itself would look the same
        raise ValueError(
            f"{path}: log_alpha, the logarithm of the correction's strength, cannot be told by its name among the single numbers "
            f"({', '.join(numbers) or 'none'}); name it with key_map['ecn.log_alpha']"
        )
    return numbers[0]


def _query(single: Mapping[str, Tensor], width: int, path: Path) -> str:
    queries = [name for name, tensor in single.items() if tensor.numel() == width]
    if len(queries) != 1:
        raise ValueError(
            f"{path}: {len(queries)} weights could be the learned query of {width} numbers ({', '.join(queries) or 'none'}); name "
            "it with key_map['ecn.attention.query']"
        )
    return queries[0]


def _chain(layers: list[_Layer], path: Path) -> dict[str, str]:
    """The three linear layers by their sizes, the two norms by what they lie between."""
    linears = [layer for layer in layers if layer.is_linear]
    norms = [layer for layer in layers if not layer.is_linear]
    remedy = f"name all five layers with {', '.join(f'key_map[{part!r}]' for part in (f'ecn.{mine}' for mine in _MLP))}"
    if len(linears) != 3:
        raise ValueError(f"{path}: the ECN has three linear layers besides its attention, but here are {len(linears)}")

    def fits(order: tuple[_Layer, ...]) -> bool:
        first, second, third = (layer.weight.shape for layer in order)
        return first[0] == second[1] == second[0] == third[1]

    orders = [order for order in permutations(linears) if fits(order)]
    order = tuple(linears) if fits(tuple(linears)) else orders[0] if len(orders) == 1 else None
    if order is None:
        shapes = ", ".join(f"{layer.name} {list(layer.weight.shape)}" for layer in linears)
        raise ValueError(f"{path}: the order of the ECN's linear layers is not clear ({shapes}); {remedy}")
    roles = _both("mlp.0", order[0]) | _both("mlp.4", order[1]) | _both("mlp.8", order[2])
    for ours, before, after in (("mlp.1", order[0], order[1]), ("mlp.5", order[1], order[2])):
        between = [norm for norm in norms if before.place < norm.place < after.place]
        if len(between) != 1:
            raise ValueError(f"{path}: {len(between)} layer norms lie between {before.name} and {after.name}, not one; {remedy}")
        roles |= _both(ours, between[0])
    return roles


def _scn_roles(weights: Mapping[str, Tensor], key_map: Mapping[str, str], path: Path) -> dict[str, str]:
    """Roles of the two summaries and the head, each a run of layers under one name."""
    groups: dict[str, list[_Layer]] = {}
    for layer in _layers(weights):
        groups.setdefault(layer.name.rpartition(".")[0], []).append(layer)
    kinds = {name: ["linear" if layer.is_linear else "norm" for layer in group] for name, group in groups.items()}
    expected = "two summaries (linear, norm, linear) and a head (linear, linear to one number)"
    heads = [name for name, kind in kinds.items() if kind == ["linear"] * 2 and groups[name][-1].weight.shape[0] == 1]
    summaries = [name for name, kind in kinds.items() if kind == ["linear", "norm", "linear"]]
    if len(heads) != 1 or len(summaries) != 2 or len(groups) != 3:
        found = "; ".join(f"{name or 'the top'}: {', '.join(kind)}" for name, kind in kinds.items()) or "nothing of the kind"
        raise ValueError(
            f"{path}: an SCN is {expected}, but here is {found}; name the eight layers with key_map['scn.text_mlp.0'] and the like"
        )
    text, cross = _text_and_cross(summaries, groups, key_map, path)
    head = groups[heads[0]]
    layers, size = head[0].weight.shape[1] - 2 * text[-1].weight.shape[0], cross[0].weight.shape[1]
    if text[0].weight.shape[1] != layers * size:
        raise ValueError(
            f"{path}: the head reads {layers} cosines, but the text summary {text[0].weight.shape[1]} numbers where an embedding "
            f"has {size}"
        )
    roles: dict[str, str] = {}
    for part, group, places in (("text_mlp", text, (0, 1, 3)), ("cross_mlp", cross, (0, 1, 3)), ("head", head, (0, 3))):
        for place, layer in zip(places, group, strict=True):
            roles |= _both(f"{part}.{place}", layer)
    return roles


def _text_and_cross(
    summaries: list[str], groups: Mapping[str, list[_Layer]], key_map: Mapping[str, str], path: Path
) -> tuple[list[_Layer], list[_Layer]]:
    """Which summary reads the text's layers, and which the product with the image: the narrower one."""
    wide, narrow = sorted(summaries, key=lambda name: -groups[name][0].weight.shape[1])
    if groups[wide][0].weight.shape[1] == groups[narrow][0].weight.shape[1]:  # a single layer
        named = [key_map["text_mlp"]] if "text_mlp" in key_map else [name for name in summaries if "text" in name.lower()]
        if len(named) != 1 or named[0] not in summaries:
            raise ValueError(
                f"{path}: {wide} and {narrow} are alike, so which of them reads the text is not clear; name it with "
                "key_map['scn.text_mlp']"
            )
        wide, narrow = named[0], next(name for name in summaries if name != named[0])
    return groups[wide], groups[narrow]
