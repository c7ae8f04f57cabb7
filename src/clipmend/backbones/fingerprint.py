"""SHA-256 digests of weights, preprocessing and tokenizers: what a patch or an index checks before it trusts a backbone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["digest_facts", "digest_file", "digest_weights", "named_weights"]


def named_weights(module: nn.Module, prefix: str = "") -> dict[str, Tensor]:
    """Parameters and persistent buffers of ``module``, not copied, under ``prefix`` (with a dot where there is one)."""
    return {f"{prefix}.{name}" if prefix else name: tensor for name, tensor in module.state_dict().items()}


def _tensor_line(item: tuple[str, Tensor]) -> str:
    name, tensor = item
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    digest = hashlib.sha256(flat.view(torch.uint8).numpy().data)  # the tensor's own memory, not a copy
    return f"{name} {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)} {digest.hexdigest()}\n"


def digest_weights(weights: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> str:
    """SHA-256 over every byte of ``weights``, their names, dtypes and shapes, and ``facts``; the order does not matter.

    Args:
        weights: tensors under canonical names.
        facts: JSON-able settings that change the result without changing a weight (activation, pooling, preprocessing).

    Returns:
        64 hexadecimal digits.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:  # hashlib releases the interpreter on large buffers
        lines = sorted(pool.map(_tensor_line, weights.items()))
    total = hashlib.sha256("".join(lines).encode())
    total.update(_canonical(dict(facts or {})))
    return total.hexdigest()


def digest_facts(facts: Mapping[str, Any]) -> str:
    """SHA-256 of a JSON-able mapping; the order of keys does not matter."""
    return hashlib.sha256(_canonical(facts)).hexdigest()


def digest_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest_blocks(file)


def _digest_blocks(file: Any) -> str:
    digest = hashlib.sha256()
    blocks: Iterable[bytes] = iter(lambda: file.read(1 << 20), b"")
    for block in blocks:
        digest.update(block)
    return digest.hexdigest()


def _canonical(facts: Mapping[str, Any]) -> bytes:
    return json.dumps(facts, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()
