"""Which GELU a checkpoint was trained with. The weights do not tell: the wrong one costs accuracy and raises no error.

OpenAI's CLIP, and what was fine-tuned from it, use QuickGELU, ``x * sigmoid(1.702 x)``; most of LAION's use GELU. Evidence is taken
from what lies in the file and beside it; where there is none, none is made up.
"""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["OPENAI_ENTRIES", "ActivationEvidence", "ActivationWarning", "find_activation"]

OPENAI_ENTRIES = ("input_resolution", "context_length", "vocab_size")  # scalars in the state dicts that OpenAI published
_NESTED = ("args", "config", "cfg", "hparams", "hyper_parameters", "model_cfg", "model_config", "text_config", "vision_config")
_BESIDE = ("open_clip_config.json", "config.json")


class ActivationWarning(UserWarning):
    """A checkpoint may meet a model with another activation than it was trained with."""


@dataclass(frozen=True)
class ActivationEvidence:
    """What is known about a checkpoint's activation.

    Args:
        quick_gelu: trained with QuickGELU (True) or GELU (False).
        source: where that is written, for a message.
    """

    quick_gelu: bool
    source: str

    @property
    def name(self) -> str:
        return "QuickGELU" if self.quick_gelu else "GELU"


def find_activation(path: Path, entries: Mapping[str, Any]) -> ActivationEvidence | None:
    """Look for evidence; the first of these that speaks:

    1. settings in the checkpoint: ``quick_gelu``, ``hidden_act``, or the training arguments ``model``, ``pretrained`` and
       ``force_quick_gelu``;
    2. the three scalars that only OpenAI's own state dicts hold;
    3. the run's name in the checkpoint, which open_clip's training makes from the model's name;
    4. ``params.txt`` of open_clip's training, in the folder above that of the checkpoints, or a model's config beside the file;
    5. the file's own name.

    Args:
        path: the checkpoint.
        entries: its top level.

    Returns:
        the evidence, or ``None`` where nothing says.
    """
    for where, settings in _settings(entries):
        found = _read_settings(settings)
        if found is not None:
            return ActivationEvidence(found[0], f"{where} in the file: {found[1]}")
    if all(name in entries or name in _weights_of(entries) for name in OPENAI_ENTRIES):
        return ActivationEvidence(True, f"{', '.join(OPENAI_ENTRIES)}, as in OpenAI's own files")
    run = entries.get("name")
    if isinstance(run, str) and "quickgelu" in run.lower():
        return ActivationEvidence(True, f"the run's name in the file, {run!r}")
    for companion in (path.parent / "params.txt", path.parent.parent / "params.txt", *(path.parent / name for name in _BESIDE)):
        found = _read_settings(_read_companion(companion))
        if found is not None:
            return ActivationEvidence(found[0], f"{companion}: {found[1]}")
    if "quickgelu" in path.name.lower():
        return ActivationEvidence(True, "the file's name")
    return None


def _weights_of(entries: Mapping[str, Any]) -> Mapping[str, Any]:
    weights = entries.get("state_dict")
    return weights if isinstance(weights, Mapping) else {}


def _settings(entries: Mapping[str, Any], where: str = "", depth: int = 3) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """``entries`` and the mappings of settings within, each with its place."""
    yield where or "the settings", entries
    if depth:
        for name in _NESTED:
            value = entries.get(name)
            value = vars(value) if isinstance(value, Namespace) else value
            if isinstance(value, Mapping):
                yield from _settings(value, f"{where}.{name}" if where else name, depth - 1)


def _read_settings(settings: Mapping[str, Any]) -> tuple[bool, str] | None:
    """Whether QuickGELU, and the setting that says so."""
    quick = settings.get("quick_gelu")
    if isinstance(quick, bool):
        return quick, f"quick_gelu = {quick}"
    act = settings.get("hidden_act")
    if isinstance(act, str) and "gelu" in act:
        return act == "quick_gelu", f"hidden_act = {act!r}"
    if settings.get("force_quick_gelu") is True:
        return True, "force_quick_gelu = True"
    model = next((settings[name] for name in ("model", "clip_model", "arch") if isinstance(settings.get(name), str)), "")
    pretrained = settings.get("pretrained", settings.get("clip_pretrained"))
    if "quickgelu" in model.lower():
        return True, f"model = {model!r}"
    if isinstance(pretrained, str) and pretrained.lower() == "openai":
        return True, "pretrained = 'openai'"
    if re.fullmatch(r"(ViT-[BL]/\d+(@336px)?|RN(50|101)(x\d+)?)", model) and "force_quick_gelu" not in settings:
        return True, f"model = {model!r}, a name of OpenAI's package"
    if "force_quick_gelu" in settings and model and "/" not in model and not model.startswith("hf-hub:"):
        # open_clip's own arguments: without that flag the architecture's name decides.
        return False, f"model = {model!r} without force_quick_gelu"
    return None


def _read_companion(path: Path) -> Mapping[str, Any]:
    """Settings of ``params.txt`` (``name: value`` lines) or of a JSON config; empty where there are none."""
    try:
        text = path.read_text("utf-8") if path.is_file() and path.stat().st_size < 1 << 20 else ""
    except (OSError, UnicodeDecodeError):
        return {}
    if path.suffix == ".txt":
        constants = {"True": True, "False": False, "None": None}
        pairs = (line.partition(": ") for line in text.splitlines())
        return {name.strip(): constants.get(value.strip(), value.strip()) for name, _, value in pairs}
    try:
        config = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(config, dict):
        return {}
    for _, settings in _settings(config):
        if "quick_gelu" in settings or "hidden_act" in settings:
            return settings
    # open_clip's config leaves the flag out where it is False; transformers' CLIP leaves out what is its default, QuickGELU.
    if isinstance(config.get("model_cfg"), dict):
        return {"quick_gelu": False}
    return {"quick_gelu": True} if config.get("model_type") == "clip" else {}
