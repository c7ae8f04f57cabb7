"""Text encoders as hubs and folders hold them: plain transformers ones, and sentence-transformers folders."""

from __future__ import annotations

import importlib
import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.checkpoint import read_model
from clipmend.backbones.companions import read_companion
from clipmend.backbones.hub import known_absent
from clipmend.backbones.text import TextOnlyEncoder
from clipmend.backbones.tower import Pooling, TextTower

__all__ = ["SentenceRecipe", "load_text_encoder", "read_recipe", "wrap_sentence_transformer"]

_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "eos"}
_OLD_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class _Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class _Dense(nn.Module):
    """sentence-transformers' dense layer: linear, then an activation."""

    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))


@dataclass
class SentenceRecipe:
    """What a sentence-transformers folder says about turning token states into an embedding.

    Args:
        pooling: how token states are pooled.
        layers: modules after the pooling, in order; a closing normalisation is left out, since embeddings are normalised anyway.
        context_length: its own limit of tokens, where it states one.
        lower: it lower-cases its texts.
    """

    pooling: Pooling = "mean"
    layers: list[nn.Module] = field(default_factory=list)
    context_length: int | None = None
    lower: bool = False

    def projection(self) -> nn.Module | None:
        """The modules after the pooling as one, or ``None``."""
        layers = self.layers
        while layers and isinstance(layers[-1], _Normalize):
            layers = layers[:-1]
        return nn.Sequential(*layers) if layers else None


def load_text_encoder(
    name: str, device: torch.device, dtype: torch.dtype, *, tokenizer: Any = None, local_files_only: bool = False
) -> TextOnlyEncoder:
    """Load a text encoder from a folder or hub id, with its sentence-transformers pooling where it states one.

    Args:
        name: folder or hub id.
        device: where to put it.
        dtype: what to cast it to, after its fingerprint was taken.
        tokenizer: use this instead of the checkpoint's own.
        local_files_only: take a hub id from the local cache, without asking the hub.

    Raises:
        OSError: files are missing or the hub cannot be reached.
        ValueError: a pooling or module that cannot be reproduced.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer

    config = AutoConfig.from_pretrained(name, local_files_only=local_files_only)
    kind = AutoModelForTextEncoding if getattr(config, "is_encoder_decoder", False) else AutoModel
    model = read_model(kind, name, local_files_only=local_files_only)
    if tokenizer is None:
        tokenizer = read_companion(AutoTokenizer, name, "tokenizer", local_files_only=local_files_only)
    return _build(model, tokenizer, read_recipe(name, local_files_only=local_files_only), name, device, dtype)


def wrap_sentence_transformer(model: Any, name: str | None = None) -> TextOnlyEncoder:
    """A live ``SentenceTransformer`` (text only): its transformer, pooling and dense layers, weights shared."""
    modules = list(model.children())
    transformer = modules[0]
    inner = getattr(transformer, "model", None)
    if not isinstance(inner, nn.Module):
        inner = getattr(transformer, "auto_model", None)
    if not isinstance(inner, nn.Module) or len(modules) < 2 or type(modules[1]).__name__ != "Pooling":
        raise ValueError(f"{type(model).__name__} does not start with a transformer and a pooling; its states cannot be read")
    recipe = SentenceRecipe(
        pooling=_pooling(_pooling_config(modules[1])),
        context_length=model.max_seq_length,
        lower=bool(getattr(transformer, "do_lower_case", False)),
    )
    for module in modules[2:]:
        recipe.layers.append(_live_layer(module))
    tower = TextTower.from_transformers(
        inner,
        model.tokenizer,
        pooling=recipe.pooling,
        projection=recipe.projection(),
        context_length=recipe.context_length,
        lower=recipe.lower,
    )
    return TextOnlyEncoder(tower, name=name or str(getattr(inner.config, "_name_or_path", "")) or "sentence-transformer")


def read_recipe(name: str, *, local_files_only: bool = False) -> SentenceRecipe:
    """Read ``modules.json`` and what it names; mean pooling where there is none.

    Args:
        name: folder or hub id.
        local_files_only: take a hub id from the local cache, without asking the hub.

    Raises:
        OSError: a file that is named is missing, or the hub fails on the way.
        ValueError: a module or pooling that cannot be reproduced, named.
    """
    source = _Source(name, local_files_only)
    modules_file = source.find("modules.json")
    if modules_file is None:
        return SentenceRecipe()
    recipe = SentenceRecipe()
    for module in json.loads(modules_file.read_text("utf-8")):
        kind, path = str(module["type"]).rpartition(".")[2], str(module["path"])
        if kind == "Transformer":
            _read_transformer(source, path, recipe)
        elif kind == "Pooling":
            recipe.pooling = _pooling(source.json(f"{path}/config.json"))
        elif kind == "Dense":
            recipe.layers.append(_read_dense(source, path))
        elif kind == "Normalize":
            recipe.layers.append(_Normalize())
        else:
            raise ValueError(
                f"{name}: its module {kind!r} (modules.json) cannot be reproduced; supported: Pooling, Dense, Normalize"
            )
    return recipe


def _build(
    model: nn.Module, tokenizer: Any, recipe: SentenceRecipe, name: str, device: torch.device, dtype: torch.dtype
) -> TextOnlyEncoder:
    tower = TextTower.from_transformers(
        model,
        tokenizer,
        pooling=recipe.pooling,
        projection=recipe.projection(),
        context_length=recipe.context_length,
        lower=recipe.lower,
    )
    return TextOnlyEncoder(tower, name=name).move(device, dtype)


def _read_transformer(source: _Source, path: str, recipe: SentenceRecipe) -> None:
    if path:
        raise ValueError(f"{source.name}: its transformer lies in the subfolder {path!r}; load that folder by itself")
    settings = source.find("sentence_bert_config.json")
    if settings is not None:
        facts = json.loads(settings.read_text("utf-8"))
        length = facts.get("max_seq_length")
        recipe.context_length = int(length) if length else None
        recipe.lower = bool(facts.get("do_lower_case", False))


def _pooling(config: dict[str, Any]) -> Pooling:
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or [label for flag, label in _OLD_FLAGS.items() if config.get(flag)])
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise ValueError(f"pooling {' + '.join(modes) or 'unknown'!r} is not supported; supported: {', '.join(_POOLINGS)}")
    return _POOLINGS[modes[0]]


def _pooling_config(module: Any) -> dict[str, Any]:
    return module.get_config_dict()


def _read_dense(source: _Source, path: str) -> _Dense:
    config = source.json(f"{path}/config.json")
    linear = nn.Linear(int(config["in_features"]), int(config["out_features"]), bias=bool(config.get("bias", True)))
    weights = source.find(f"{path}/model.safetensors")
    if weights is not None:
        from safetensors.torch import load_file

        state = load_file(weights)
    else:
        old = source.find(f"{path}/pytorch_model.bin")
        if old is None:
            raise OSError(f"{source.name}: {path} has neither model.safetensors nor pytorch_model.bin")
        state = torch.load(old, map_location="cpu", weights_only=True)
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in state.items()})
    return _Dense(linear, _activation(str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))))


def _activation(dotted: str) -> nn.Module:
    module, _, name = dotted.rpartition(".")
    if module.split(".")[:2] != ["torch", "nn"]:  # a folder must not be able to import code of its own
        raise ValueError(f"activation {dotted!r} is not one of torch.nn's")
    return getattr(importlib.import_module(module), name)()


def _live_layer(module: nn.Module) -> nn.Module:
    kind = type(module).__name__
    if kind == "Normalize":
        return _Normalize()
    if kind == "Dense":
        return _Dense(module.linear, module.activation_function)  # type: ignore[arg-type]
    raise ValueError(f"its module {kind!r} cannot be reproduced; supported: Pooling, Dense, Normalize")


@dataclass(frozen=True)
class _Source:
    """The files of a folder or hub id."""

    name: str
    local_files_only: bool

    def find(self, path: str) -> Path | None:
        """One of its files, or ``None`` where it has none.

        Raises:
            OSError: the hub fails on the way: going on without the file would quietly make another encoder.
        """
        folder = Path(self.name)
        if folder.is_dir():
            return folder / path if (folder / path).is_file() else None
        from transformers.utils import cached_file

        found: Any = cached_file(
            self.name,
            path,
            local_files_only=self.local_files_only,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=not self.local_files_only,
        )
        if found:
            return Path(str(found))
        if self.local_files_only and not known_absent(self.name, path):
            warnings.warn(
                f"{self.name}: the hub cannot be asked for {path}, and the local cache does not say whether there is one; going on "
                "as if there were none, which is wrong for an encoder made by sentence-transformers",
                stacklevel=2,
            )
        return None

    def json(self, path: str) -> dict[str, Any]:
        """A JSON file that must be there."""
        found = self.find(path)
        if found is None:
            raise OSError(f"{self.name} has no {path}, which its modules.json names")
        return json.loads(found.read_text("utf-8"))
