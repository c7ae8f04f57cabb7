"""The classes that an image classifier knows, as points of the text encoder's space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files

import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.data.nouns import indefinite_article

__all__ = ["FRAME", "class_names", "class_vectors", "consensus", "load_centre", "load_class_vectors", "synonyms"]

FRAME = "a photo of {}"
"""What a class name is put into before it is embedded: captions are sentences, and so the names sit among them."""

_TABLE = "classes.safetensors"


@lru_cache(maxsize=1)
def class_names() -> tuple[str, ...]:
    """The 1,000 ImageNet classes in the order of the classifier's outputs, the synonyms of each separated by commas."""
    text = (files("clipmend.backbones.photos") / "imagenet_class_names.txt").read_text(encoding="utf-8")
    names = tuple(line.strip() for line in text.splitlines() if line.strip())
    if len(names) != 1000:
        raise ValueError(f"imagenet_class_names.txt has {len(names)} classes instead of 1000; reinstall the package")
    return names


def synonyms(name: str) -> list[str]:
    """The names of one class: ``"tabby, tabby cat"`` -> ``["tabby", "tabby cat"]``; underscores are read as spaces."""
    return [part.strip() for part in name.replace("_", " ").split(",") if part.strip()]


def framed(name: str) -> str:
    """``"tabby"`` -> ``"a photo of a tabby"``."""
    return FRAME.format(f"{indefinite_article(name)} {name}")


def class_vectors(
    names: Sequence[str], embed: Callable[[list[str]], Tensor], centre: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Embed classes by their names.

    Args:
        names: one string a class, synonyms separated by commas.
        embed: from texts to their raw embeddings ``[n, D]``.
        centre: ``[D]`` subtracted from every class; ``None``: the mean over these classes.

    Returns:
        ``[C, D]`` mean embedding of the synonyms of each class, less the centre; and the centre ``[D]``.

    Raises:
        ValueError: a class without a name.
    """
    split = [synonyms(name) for name in names]
    for row, parts in enumerate(split):
        if not parts:
            raise ValueError(f"class {row} of the classifier has no name, so nothing can be said about it")
    flat = embed([framed(part) for parts in split for part in parts])
    means, start = [], 0
    for parts in split:
        means.append(flat[start : start + len(parts)].mean(0))
        start += len(parts)
    vectors = torch.stack(means)
    centre = vectors.mean(0) if centre is None else centre
    return vectors - centre, centre


def load_centre() -> Tensor:
    """``[384]`` the common mean of the ImageNet class names in MiniLM's space: shipped, so that it is the same everywhere."""
    return _table()["centre"].clone()


def load_class_vectors() -> Tensor:
    """``[1000, 384]`` float32 vectors of the ImageNet classes, the mean removed: :func:`class_vectors` of the shipped names."""
    return _table()["classes"].float()


@lru_cache(maxsize=1)
def _table() -> dict[str, Tensor]:
    from safetensors.torch import load

    return load((files("clipmend.backbones.photos") / _TABLE).read_bytes())


def consensus(probabilities: Tensor, vectors: Tensor, top_k: int) -> Tensor:
    """ConSE: the classes' vectors weighed by their ``top_k`` largest probabilities, ``[B, C]`` and ``[C, D]`` -> ``[B, D]``.

    The result is normalised: only the proportion of the weights matters.

    Source: Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", ICLR 2014.
    """
    weights, which = probabilities.topk(min(top_k, probabilities.shape[-1]), dim=-1)
    return F.normalize(torch.einsum("bk,bkd->bd", weights, vectors[which]), dim=-1)
