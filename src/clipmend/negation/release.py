"""Read the checkpoints that PeakPatch's authors published, as a :class:`PeakPatch`.

Their files hold ``model_state_dict`` and a ``config`` with the layers and sizes; so do files of their training scripts. What other
people's scripts wrote with the same networks is read too: weights whose names are not the published ones are told apart by what
they do, which shapes and order show, or by ``key_map``. Nothing is guessed: where two readings are possible, that is an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from clipmend.backbones.base import DualEncoder, Fingerprint
from clipmend.backbones.fingerprint import digest_file
from clipmend.backbones.weights import check_tensor, read_entries
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.patch import PeakPatch
from clipmend.negation.release_roles import assign_roles

__all__ = ["import_release"]

# The config's entries in the published files -> fields of PeakPatchConfig.
_ECN_ENTRIES = {"target_layer": "peak", "anchor_layer": "anchor", "num_heads": "heads", "dropout": "dropout"}
_SCN_ENTRIES = {"layers": "scn_layers", "sc_layers": "scn_layers", "max_correction": "bound"}
# Entries that change what the networks compute, and the one value that is supported.
_FIXED = {
    "correction_mode": "fixed",
    "use_gate": False,
    "confidence_gate": False,
    "use_token_features": False,
    "sc_use_tokens": False,
}
# How the published networks were trained, for the record.
_TRAINING: dict[str, Any] = {
    "objective": "released",
    "logit_scale": 100.0,
    "guidance_weight": 0.0,
    "preservation_weight": 0.0,
    "text_only_weight": 0.0,
}
# Weights that are single rows; all others named "weight" are matrices.
_NORMS = ("attention_norm.weight", "mlp.1.weight", "mlp.5.weight", "text_mlp.1.weight", "cross_mlp.1.weight")


@dataclass
class _Part:
    """One network's weights and settings."""

    path: Path
    weights: dict[str, Tensor]
    settings: Mapping[str, Any]


def import_release(
    ecn: str | os.PathLike[str],
    scn: str | os.PathLike[str] | None = None,
    config: PeakPatchConfig | None = None,
    *,
    encoder: DualEncoder | None = None,
    key_map: Mapping[str, str] | None = None,
) -> PeakPatch:
    """Make a patch of an ECN and an SCN in the published layout (``peakpatch_ecn.pt``, ``peakpatch_scn.pt``).

    The published networks belong to CLIP ViT-B/32 with OpenAI's weights (QuickGELU); of a CLIP the same states are read here as
    there. For SigLIP the published code takes the last token that is not padding for the sentence token, and this library the
    position that SigLIP pools at: a patch from there is not the same function here.

    Args:
        ecn: checkpoint of the embedding correction network; or one of joint training, with both.
        scn: checkpoint of the score correction network; ``None``: without one (or from the joint checkpoint).
        config: what the files leave open: ``peak``, ``anchor``, ``scn_layers``, ``heads``, ``bound`` and, where the number of
            inputs does not tell, ``use_anchor`` and ``use_pool``. What it says must not contradict them.
        encoder: the backbone. The patch is then checked against it and tied to it by fingerprint; without, :meth:`PeakPatch.apply`
            can check sizes alone.
        key_map: our name of a weight or part (``"ecn.attention.query"``, ``"scn.text_mlp"``) -> its name in the file, for weights
            that cannot be told apart otherwise.

    Returns:
        the patch, ready to apply and save.

    Raises:
        OSError: no such file.
        TypeError: ``config`` is no :class:`PeakPatchConfig`.
        ValueError: a damaged file, weights that are missing, unknown, ambiguous or of the wrong shape, a variant of the networks
            that this library does not have, or layers that neither the file nor ``config`` names.

    Example:
        >>> encoder = clipmend.load("open_clip:ViT-B-32-quickgelu/openai")
        >>> patch = import_release("peakpatch_ecn.pt", "peakpatch_scn.pt", encoder=encoder)
        >>> mended = patch.apply(encoder)
    """
    if config is not None and not isinstance(config, PeakPatchConfig):
        raise TypeError(f"config must be a PeakPatchConfig, not {type(config).__name__}")
    parts = _read_parts(Path(ecn), None if scn is None else Path(scn))
    misnamed = [ours for ours in key_map or {} if ours.partition(".")[0] not in parts or "." not in ours]
    if misnamed:
        raise ValueError(f"key_map names {misnamed[0]!r}, which is not of the form 'ecn.PART' or 'scn.PART' of a network given")
    renamed = {}
    for side, part in parts.items():
        own = {ours.removeprefix(f"{side}."): theirs for ours, theirs in (key_map or {}).items() if ours.startswith(f"{side}.")}
        roles = assign_roles(side, part.weights, own, part.path)
        renamed[side] = {ours: part.weights[theirs] for ours, theirs in roles.items()}
        _check_dimensions(renamed[side], side, part.path)
    resolved = _resolve(config, parts, renamed, encoder)
    metrics = {"imported": {side: {"file": part.path.name, "sha256": digest_file(part.path)} for side, part in parts.items()}}
    patch = PeakPatch(
        resolved,
        backbone=_backbone(parts["ecn"].settings) if encoder is None else encoder.name,
        fingerprint=Fingerprint("", "", "") if encoder is None else encoder.fingerprint,
        metrics=metrics,
    )
    _fill(patch.ecn, renamed["ecn"], "ecn", parts["ecn"].path)
    if patch.scn is not None:
        _fill(patch.scn, renamed["scn"], "scn", parts["scn"].path)
    return patch


def _read_parts(ecn: Path, scn: Path | None) -> dict[str, _Part]:
    entries = read_entries(ecn)
    if isinstance(entries.get("ec_state_dict"), Mapping):
        parts = {"ecn": _part(ecn, entries, "ec_state_dict")}
        if scn is None and isinstance(entries.get("sc_state_dict"), Mapping):
            parts["scn"] = _part(ecn, entries, "sc_state_dict")
    else:
        parts = {"ecn": _part(ecn, entries)}
    if scn is not None:
        parts["scn"] = _part(scn, read_entries(scn))
    return parts


def _part(path: Path, entries: Mapping[str, Any], holder: str | None = None) -> _Part:
    held = entries
    for name in (holder,) if holder else ("model_state_dict", "state_dict", "model"):
        if isinstance(entries.get(name), Mapping):
            held = entries[str(name)]
            break
    weights = {str(name): value for name, value in held.items() if isinstance(value, Tensor)}
    if not weights:
        raise ValueError(f"{path} holds no weights; its entries: {', '.join(map(str, held)) or 'none'}")
    for name, tensor in weights.items():
        check_tensor(path, name, tensor)
        weights[name] = tensor.float()
        if not weights[name].isfinite().all():
            raise ValueError(f"{path}: {name} is not finite")
    if all(name.startswith("module.") for name in weights):
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    settings = entries.get("config")
    settings = settings if isinstance(settings, Mapping) else {}
    for name, value in _FIXED.items():
        if name in settings and (isinstance(settings[name], Tensor) or settings[name] != value):
            raise ValueError(f"{path} is a variant that this library does not have: {name} = {settings[name]!r}")
    return _Part(path, weights, settings)


def _check_dimensions(weights: Mapping[str, Tensor], side: str, path: Path) -> None:
    """Refuse weights of which no size can be read; whether the sizes agree is seen later."""
    for ours, tensor in weights.items():
        free = ours in ("attention.query", "log_alpha")  # saved with dimensions of one around
        wanted = 1 if ours.endswith("bias") or ours in _NORMS else 2
        if not tensor.numel() or not (free or tensor.ndim == wanted):
            raise ValueError(
                f"{path}: what does the part of {side}.{ours} is {list(tensor.shape)}, not an array of {wanted} dimensions"
            )


def _resolve(
    config: PeakPatchConfig | None,
    parts: Mapping[str, _Part],
    renamed: Mapping[str, Mapping[str, Tensor]],
    encoder: DualEncoder | None,
) -> PeakPatchConfig:
    """The config from the weights' shapes, the files' settings and ``config``, which must agree."""
    ecn, settings, path = renamed["ecn"], parts["ecn"].settings, parts["ecn"].path
    known: dict[str, Any] = {ours: settings[theirs] for theirs, ours in _ECN_ENTRIES.items() if theirs in settings}
    known |= {"use_scn": "scn" in renamed, "use_direct": False, "eos_only": "attention.query" not in ecn}
    known |= {"hidden": ecn["mlp.0.weight"].shape[0], "embed_dim": ecn["mlp.8.weight"].shape[0]}
    known |= _inputs(ecn, settings, config, path)
    if "scn" in renamed:
        scn, own = renamed["scn"], parts["scn"].settings
        known |= {ours: own[theirs] for theirs, ours in _SCN_ENTRIES.items() if theirs in own}
        known["context"] = scn["text_mlp.3.weight"].shape[0]
        if (dim := scn["cross_mlp.0.weight"].shape[1]) != known["embed_dim"]:
            raise ValueError(f"{parts['scn'].path} is for embeddings of {dim} numbers and {path} of {known['embed_dim']}")
    else:
        known |= {"scn_layers": (encoder.num_text_layers,)} if encoder is not None else {}
    if isinstance(known.get("scn_layers"), list):
        known["scn_layers"] = tuple(known["scn_layers"])
    default = PeakPatchConfig()
    if config is not None:
        for field in fields(config):
            given, stated = getattr(config, field.name), known.get(field.name)
            open_here = "scn" not in renamed and field.name == "scn_layers"
            if field.name in known and given not in (getattr(default, field.name), stated) and not open_here:
                raise ValueError(f"config says {field.name} = {given!r}, but the file {path.name} or its weights say {stated!r}")
    try:
        merged = replace(config or default, **{**_TRAINING, **known})
    except ValueError as error:
        files = " and ".join(str(part.path) for part in parts.values())
        raise ValueError(f"the settings in {files} are not those of such networks: {error}") from error
    for name, entry in (("peak", "target_layer"), ("anchor", "anchor_layer"), ("scn_layers", "layers")):
        if getattr(merged, name) is None and (name != "anchor" or merged.use_anchor):
            raise ValueError(
                f"neither the files (their config's {entry!r}) nor config= say {name}: pass config=PeakPatchConfig({name}=...)"
            )
    if merged.anchor is None:  # not read
        merged = replace(merged, anchor=merged.peak)
    assert merged.scn_layers is not None
    if "scn" in renamed and (layers := len(merged.scn_layers)) * known["embed_dim"] != renamed["scn"]["text_mlp.0.weight"].shape[1]:
        wide = renamed["scn"]["text_mlp.0.weight"].shape[1]
        raise ValueError(
            f"scn_layers are {list(merged.scn_layers)}, but the SCN reads {wide} numbers a text, not {layers} embeddings"
        )
    return merged if encoder is None else merged.resolved(encoder)


def _inputs(
    ecn: Mapping[str, Tensor], settings: Mapping[str, Any], config: PeakPatchConfig | None, path: Path
) -> dict[str, int | bool]:
    """Text width, and which of anchor and mean the ECN reads, from the width of its first layer."""
    wide = ecn["mlp.0.weight"].shape[1]
    if "attention.query" not in ecn:
        if settings.get("cls_only", settings.get("ec_cls_only")) and not settings.get("no_anchor", settings.get("ec_no_anchor")):
            raise ValueError(
                f"{path} reads the sentence tokens of peak and anchor alone, a variant that this library does not have"
            )
        return {"text_width": wide, "use_anchor": True, "use_pool": True}  # both are overridden by eos_only
    width = ecn["attention.query"].numel()
    parts, rest = divmod(wide, width)
    if rest or not 2 <= parts <= 4:
        raise ValueError(f"{path}: the first layer reads {wide} numbers, which is not 2 to 4 states of {width}")
    stated = {
        "use_anchor": settings.get("no_anchor", settings.get("ec_no_anchor")),
        "use_pool": settings.get("no_pool", settings.get("ec_no_pool")),
    }
    reads = {name: not left_out for name, left_out in stated.items() if left_out is not None}
    if parts != 3:
        found = {"use_anchor": parts == 4, "use_pool": parts == 4}
    elif False in reads.values():
        found = {"use_anchor": True, "use_pool": True} | reads
    elif config is not None and config.use_anchor != config.use_pool:
        found = {"use_anchor": config.use_anchor, "use_pool": config.use_pool}
    elif len(reads) == 1 and True in reads.values():  # one of the two is there, so the other is not
        found = {"use_anchor": False, "use_pool": False} | reads
    else:
        raise ValueError(
            f"{path} reads three states, and nothing says whether the anchor or the mean is left out: pass "
            "config=PeakPatchConfig(use_anchor=False) or (use_pool=False)"
        )
    if any(found[name] != value for name, value in reads.items()) or sum(found.values()) != parts - 2:
        raise ValueError(f"{path} says {reads} in its config, but its first layer reads {parts} states")
    return {"text_width": width, **found}


def _backbone(settings: Mapping[str, Any]) -> str:
    architecture, tag = settings.get("clip_model"), settings.get("clip_pretrained")
    if not isinstance(architecture, str):
        return "unknown"
    if tag == "openai" and not architecture.endswith("-quickgelu"):
        # OpenAI's weights were trained with QuickGELU; earlier open_clip chose it by the tag, later ones by this name.
        architecture += "-quickgelu"
    return f"open_clip:{architecture}/{tag}" if tag else f"open_clip:{architecture}"


def _fill(network: nn.Module, weights: Mapping[str, Tensor], side: str, path: Path) -> None:
    own = network.state_dict()
    shaped = {}
    for name, tensor in weights.items():
        one = name in ("attention.query", "log_alpha")  # saved with dimensions of one around
        if tensor.shape != own[name].shape and not (one and tensor.numel() == own[name].numel()):
            raise ValueError(f"{path}: what does the part of {side}.{name} is {list(tensor.shape)}, not {list(own[name].shape)}")
        shaped[name] = tensor.reshape(own[name].shape)
    network.load_state_dict(shaped)
    network.eval()
