"""A patch's networks as its config describes them, and whether weights are theirs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.files import CONFIG, WEIGHTS
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork

__all__ = ["check_fit", "misfit", "networks_of", "part_of"]


def networks_of(config: PeakPatchConfig) -> tuple[EmbeddingCorrectionNetwork, ScoreCorrectionNetwork | None]:
    """New networks as a resolved config describes them; ``None`` for an SCN that it does not use."""
    assert config.text_width is not None
    assert config.embed_dim is not None
    assert config.scn_layers is not None
    ecn = EmbeddingCorrectionNetwork(
        config.text_width,
        config.embed_dim,
        hidden=config.hidden,
        heads=config.heads,
        dropout=config.dropout,
        use_anchor=config.use_anchor,
        use_pool=config.use_pool,
        use_direct=config.use_direct,
        eos_only=config.eos_only,
    )
    if not config.use_scn:
        return ecn, None
    scn = ScoreCorrectionNetwork(config.embed_dim, len(config.scn_layers), config.context, config.bound, config.dropout)
    return ecn, scn


def part_of(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The weights of one network, whose names in the file start with ``prefix``, by its own names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def check_fit(config: PeakPatchConfig, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse weights that are not those of the config's networks, before any memory is taken for these.

    Raises:
        ValueError: naming the file and a weight.
    """
    try:
        with torch.device("meta"):
            networks = networks_of(config)
    except (RuntimeError, TypeError) as error:  # sizes that overflow even the count of a network's numbers
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder / CONFIG} describes networks that cannot be made: {reason}") from error
    known = set()
    for name, prefix, network in zip(("ECN", "SCN"), ("ecn.", "scn."), networks, strict=True):
        own = part_of(tensors, prefix)
        if network is None and own:
            raise ValueError(f"{folder / WEIGHTS} holds an SCN, but use_scn is False in its config.json")
        if network is not None and (wrong := misfit(own, network)):
            raise ValueError(f"{folder / WEIGHTS} does not fit its config.json, in its {name}: {wrong}")
        known |= {f"{prefix}{key}" for key in own}
    strange = sorted(set(tensors) - known)
    if strange:
        raise ValueError(f"{folder / WEIGHTS} holds weights of neither network: {', '.join(strange[:3])}")


def misfit(weights: Mapping[str, Tensor], network: torch.nn.Module) -> str:
    """How weights differ from a network's in name or shape; ``""`` where they do not."""
    needed = network.state_dict()
    missing, unknown = sorted(set(needed) - set(weights)), sorted(set(weights) - set(needed))
    if missing or unknown:
        which, names = ("lacks", missing) if missing else ("has no use for", unknown)
        return f"it {which} {', '.join(names[:3])}" + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    shapes = [(name, list(weights[name].shape), list(needed[name].shape)) for name in needed]
    return next((f"{name} is {own}, not {expected}" for name, own, expected in shapes if own != expected), "")
