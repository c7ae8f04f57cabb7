"""Weights from a file of their own, into a model made from a config: NegCLIP, ConCLIP and other fine-tuned CLIPs.

Nothing is loaded in part: a missing, unknown or misshapen weight is an error that names it. No file is trusted: ``.pt`` is read
with ``weights_only=True``, which runs no code from it.
"""

from __future__ import annotations

import os
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clipmend.backbones.activation import OPENAI_ENTRIES, ActivationEvidence, ActivationWarning, find_activation
from clipmend.backbones.kinds import kind_of
from clipmend.backbones.layouts import Layout, convert_layout, find_layout
from clipmend.backbones.positions import LONG_NAME, find_positions, join_long_tables

__all__ = ["SEPARATOR", "Checkpoint", "check_tensor", "load_weights", "read_checkpoint", "read_entries", "split_name"]

SEPARATOR = "::"  # between a model and its weights in a name: what the command line, a patch and an index can say
_WRAPPERS = ("module.", "_orig_mod.", "model.", "clip_model.", "clip.")  # data parallel, torch.compile, a class around the model
_HOLDERS = ("state_dict", "model_state_dict", "model")
# Buffers that some versions of the libraries saved and none needs: they follow from the sizes.
_HARMLESS = ("position_ids", "attn_mask", *OPENAI_ENTRIES)


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights.

    Args:
        path: the file.
        weights: float32 tensors (and batch norm's counters) under the names of ``layout``, without the prefixes of wrappers and
            without harmless buffers.
        layout: whose names.
        activation: what is known about the activation it was trained with.
        positions: tokens that a text of its model may have, for a file in Long-CLIP's layout (its two tables of positions are one
            in ``weights``); ``None`` for any other file.
    """

    path: Path
    weights: Mapping[str, Tensor]
    layout: Layout
    activation: ActivationEvidence | None
    positions: int | None = None


def split_name(name: str) -> tuple[str, str | None]:
    """``"MODEL::PATH"`` -> ``(MODEL, PATH)``; a name without weights -> ``(name, None)``."""
    model, separator, path = name.partition(SEPARATOR)
    return (model, path) if separator else (name, None)


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read the weights of a CLIP from a ``.safetensors`` file or one that ``torch.save`` wrote.

    Args:
        path: holds a state dict, alone or under ``state_dict``, ``model_state_dict`` or ``model``, in open_clip's or transformers'
            layout. Prefixes of wrappers that all names share (``module.``, ``_orig_mod.``, ``model.``) are removed. Long-CLIP's
            layout (:func:`~clipmend.backbones.positions.join_long_tables`) is read as the CLIP that it computes.

    Raises:
        OSError: no such file.
        ValueError: damaged, holds Python objects besides tensors, no weights of a CLIP, or weights that are not finite or no
            plain numbers.
    """
    path = Path(path)
    if path.is_dir():
        raise OSError(f"{path} is a folder; weights= takes a file (a folder in transformers' format is loaded by its own name)")
    entries = read_entries(path)
    held = next((entries[name] for name in _HOLDERS if isinstance(entries.get(name), Mapping)), entries)
    weights = {str(name): value for name, value in held.items() if isinstance(value, Tensor)}
    others = sorted(str(name) for name, value in held.items() if not isinstance(value, Tensor))
    if held is not entries and others:
        raise ValueError(f"{path}: among the weights are entries that are no tensors: {', '.join(others[:3])}")
    if not weights:
        raise ValueError(f"{path} holds no tensors; its entries: {', '.join(others[:8]) or 'none'}")
    weights = {name: tensor for name, tensor in _unwrapped(weights).items() if name.rpartition(".")[2] not in _HARMLESS}
    layout = find_layout(weights)
    if layout is None:
        first = ", ".join(list(weights)[:3]) or "none"
        raise ValueError(f"{path} is not a CLIP in open_clip's or transformers' layout; its first names: {first}")
    exact = {}
    for name, tensor in weights.items():
        if tensor.dtype == torch.int64 and name.endswith("num_batches_tracked"):  # a counter of batch norm's
            exact[name] = tensor
            continue
        check_tensor(path, name, tensor)
        exact[name] = tensor.float()
        if not exact[name].isfinite().all():
            raise ValueError(f"{path}: {name} is not finite")
    exact, positions = join_long_tables(exact, path)
    activation = find_activation(path, entries)
    if activation is None and positions is not None:
        activation = ActivationEvidence(True, f"{LONG_NAME}, as in Long-CLIP's own files, which come from OpenAI's CLIP")
    return Checkpoint(path, exact, layout, activation, positions)


def check_tensor(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse what is no plain array of floating-point numbers that the file itself holds.

    A file of ``torch.save`` may state any shape over a few bytes: read as it says, a kilobyte would fill the memory.

    Raises:
        ValueError: naming file and weight.
    """
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        kind = "nested" if tensor.is_nested else "without numbers (meta)" if tensor.is_meta else str(tensor.layout)
        raise ValueError(f"{path}: {name} is no plain array but {kind}; save it as a dense one")
    if tensor.is_complex():
        raise ValueError(f"{path}: {name} holds complex numbers ({tensor.dtype})")
    if not tensor.is_floating_point():
        raise ValueError(f"{path}: {name} holds whole numbers ({tensor.dtype}); quantised weights are not read")
    held = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.numel() > held:
        raise ValueError(
            f"{path}: {name} states {tensor.numel():,} numbers ({list(tensor.shape)}), but the file holds {held:,} of them"
        )


def load_weights(model: nn.Module, path: str | os.PathLike[str], *, quick_gelu: bool | None, name: str, remedy: str | None) -> None:
    """Put the weights of a file into ``model``, all of them or none.

    A file in Long-CLIP's layout has more positions than any config of CLIP's states: there the model gets as many as the file has.

    Args:
        model: a CLIP of transformers or open_clip, or a SigLIP with a file in its own library's layout.
        path: see :func:`read_checkpoint`.
        quick_gelu: whether the model uses QuickGELU; ``None`` for some other activation, which is not checked.
        name: the model's name, for messages.
        remedy: how to get the model with the other activation, for the warning; ``None`` if there is no such model, and then a file
            that does not say what it was trained with is not worth a warning.

    Raises:
        OSError: no such file.
        ValueError: weights that are missing, unknown or of another shape; names some.

    Warns:
        ActivationWarning: the file was trained with the other activation, or the model uses GELU and nothing says what the file
            was trained with.
    """
    checkpoint = read_checkpoint(path)
    target = find_layout(model.state_dict())
    if target is None:
        raise ValueError(f"{name} is no CLIP or SigLIP, so weights= cannot be used with it")
    if checkpoint.positions is not None:
        _make_room(model, checkpoint.positions, checkpoint.path)
    own = model.state_dict()
    try:
        weights = convert_layout(checkpoint.weights, target)
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from error
    for scalar in ("logit_scale", "logit_bias"):  # a number is saved as [] or [1], depending on the version
        if scalar in weights and scalar in own and weights[scalar].numel() == own[scalar].numel() == 1:
            weights[scalar] = weights[scalar].reshape(own[scalar].shape)
    _check(weights, own, checkpoint, name)
    model.load_state_dict(weights, strict=False)  # strict but for the buffers that _check has let pass
    _check_activation(checkpoint, quick_gelu, name, remedy)


def _make_room(model: nn.Module, positions: int, path: Path) -> None:
    try:
        found = find_positions(model)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} is in Long-CLIP's layout, for texts of {positions} tokens: {error}") from error
    if found.length != positions:
        found.replace(torch.zeros(positions, found.table.shape[1]))


def read_entries(path: Path) -> Mapping[str, Any]:
    """The top level of a ``.safetensors`` file or of one that ``torch.save`` wrote, whatever is in it; no code of the file is run.

    Raises:
        OSError: no such file.
        ValueError: damaged, no mapping, or Python objects besides tensors and plain values.
    """
    if not path.is_file():
        raise OSError(f"{path} is a folder, not a file" if path.is_dir() else f"there is no file {path}")
    if path.suffix.lower() == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except (SafetensorError, ValueError, KeyError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(entry.endswith("/constants.pkl") for entry in archive.namelist()):
                raise ValueError(
                    f"{path} is a TorchScript program (the format OpenAI published in), which is not run; save its weights first: "
                    "torch.save(torch.jit.load(PATH).state_dict(), NEW_PATH)"
                )
    try:
        with _plain_settings():
            try:
                # Mapped, so that an optimiser's state, twice the model, is never read.
                entries = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):  # files older than torch 1.6 cannot be mapped
                    raise
                entries = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch each raise their own
        reason = " ".join(str(error).split())
        if any(sign in reason for sign in ("GLOBAL", "Unsupported class", "unrecognized function", "Can only build")):
            named = reason.partition("GLOBAL ")[2].partition(" was not")[0] or "see the error above"
            raise ValueError(
                f"{path} holds Python objects besides tensors ({named}), which are not read because they can run code; where you "
                'trust it, save its weights alone: torch.save(torch.load(PATH, weights_only=False)["state_dict"], NEW_PATH)'
            ) from error
        reason = reason.rpartition("WeightsUnpickler error: ")[2][:200] or type(error).__name__
        raise ValueError(f"{path} is damaged, or not a file of torch.save: {reason}") from error
    if not isinstance(entries, Mapping):
        raise ValueError(f"{path} holds {kind_of(entries)}, not a mapping of names to weights")
    return {str(name): value for name, value in entries.items()}


def _plain_settings() -> AbstractContextManager[Any]:
    """Training arguments (:class:`argparse.Namespace`) may be read: a bag of values, without code of its own."""
    safe = getattr(torch.serialization, "safe_globals", None)  # torch 2.5
    return nullcontext() if safe is None else safe([Namespace])


def _unwrapped(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    while True:
        prefix = next((prefix for prefix in _WRAPPERS if all(name.startswith(prefix) for name in weights)), None)
        if prefix is None:
            return weights
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}


def _check(weights: Mapping[str, Tensor], own: Mapping[str, Tensor], checkpoint: Checkpoint, name: str) -> None:
    problems = []
    needed = {key: tensor for key, tensor in own.items() if key.rpartition(".")[2] not in _HARMLESS}
    missing = sorted(set(needed) - set(weights))
    unknown = sorted(set(weights) - set(needed))
    misshapen = sorted(key for key in set(weights) & set(needed) if weights[key].shape != needed[key].shape)
    if missing:
        problems.append(f"{len(missing)} weights are missing: {_some(missing)}")
    if unknown:
        problems.append(f"{len(unknown)} are unknown to the model: {_some(unknown)}")
    if misshapen:
        shapes = [f"{key} is {list(weights[key].shape)}, not {list(needed[key].shape)}" for key in misshapen]
        problems.append(f"{len(misshapen)} have another shape: {_some(shapes)}{_hint(misshapen, weights, needed)}")
    if problems:
        raise ValueError(f"{checkpoint.path} does not fit {name}: {'; '.join(problems)}. Nothing was loaded")


def _some(entries: list[str]) -> str:
    return ", ".join(entries[:3]) + (f" and {len(entries) - 3} more" if len(entries) > 3 else "")


def _hint(misshapen: list[str], weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> str:
    for key in misshapen:
        new, old = weights[key].shape, own[key].shape
        text = not key.startswith("vis")
        if "position" in key and len(new) == len(old) == 2 and new[1] == old[1]:
            what = f"for texts of {new[0]} tokens" if text else "for images or patches of another size"
            remedy = "; clipmend stretch makes a model of that length to load it over" if text and new[0] > old[0] else ""
            return f" (the file is {what}){remedy}"
    return " (another architecture)" if len(misshapen) > 3 else ""


def _check_activation(checkpoint: Checkpoint, quick_gelu: bool | None, name: str, remedy: str | None) -> None:
    found = checkpoint.activation
    if quick_gelu is None:
        return
    own = "QuickGELU" if quick_gelu else "plain GELU"
    if found is not None and found.quick_gelu != quick_gelu:
        message = (
            f"{checkpoint.path} was trained with {found.name} ({found.source}), but {name} computes with {own}: its embeddings "
            f"will be off{'; ' + remedy if remedy else ''}"
        )
    elif found is None and not quick_gelu and remedy:
        message = (
            f"nothing in or beside {checkpoint.path} says which GELU it was trained with, and {name} computes with {own}. That is "
            f"right for most of LAION's models and wrong for what was fine-tuned from OpenAI's; in that case {remedy}"
        )
    else:
        return
    warnings.warn(ActivationWarning(message), stacklevel=2)
