"""The saturation lens: whether a contrastive loss still teaches anything, looked at while it trains.

On long captions InfoNCE is soon zero. What HN-CLIP's authors diagnosed (arXiv 2608.18521, Figures 1, 4, A5, A6 and A8) is measured
here on the batches of any training: both losses, the gradients that either would send into the features, how alike captions are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.dense.recipes.base import Joined
from clipmend.losses.hard_negative import HardNegativeLoss
from clipmend.losses.info_nce import InfoNCELoss

__all__ = ["SATURATED", "Lens", "caption_cosines", "caption_likeness", "entries_of", "look", "plot_lens", "summarise"]

SATURATED = 1e-3
"""An InfoNCE below this teaches nothing any more."""

_PREFIX = "lens/"


def look(
    image: Tensor, text: Tensor, scale: Tensor | float, gamma: float = 0.5, image_ids: Any = None, caption_ids: Any = None
) -> dict[str, float]:
    """Both losses of a batch and their gradients at its features.

    Args:
        image, text: ``[N, D]`` unit rows; no gradient of theirs is touched.
        scale: exponentiated logit scale.
        gamma: of the hard-negative loss.
        image_ids, caption_ids: ``[N]``, repeated ones are no negatives.

    Returns:
        ``info_nce`` and ``hard_negative``, the losses; ``info_nce_gradient`` and ``hard_negative_gradient``, the norms of their
        gradients at all features of the batch together; ``gradient_cosine`` between them (NaN where one is zero); ``saturated``, 1
        where InfoNCE is below :data:`SATURATED`; ``zero_gradient``, 1 where its gradient is exactly 0; and
        :func:`caption_cosines`.
    """
    found: dict[str, float] = {}
    slopes = []
    given = torch.as_tensor(scale, device=image.device).detach()
    for name, loss in (("info_nce", InfoNCELoss()), ("hard_negative", HardNegativeLoss(gamma))):
        leaves = [rows.detach().float().requires_grad_() for rows in (image, text)]
        with torch.enable_grad():
            value = loss(*leaves, given, image_ids=image_ids, caption_ids=caption_ids)
            assert isinstance(value, Tensor)
            gradient = torch.cat([slope.reshape(-1) for slope in torch.autograd.grad(value, leaves)])
        slopes.append(gradient)
        found[name] = float(value.detach())
        found[f"{name}_gradient"] = float(gradient.norm())
    norms = [float(slope.norm()) for slope in slopes]
    found["gradient_cosine"] = float(F.cosine_similarity(slopes[0], slopes[1], dim=0)) if min(norms) > 0 else math.nan
    found["saturated"] = float(found["info_nce"] < SATURATED)
    found["zero_gradient"] = float(norms[0] == 0)
    return found | caption_cosines(text, caption_ids)


def caption_cosines(text: Tensor, caption_ids: Any = None) -> dict[str, float]:
    """How alike captions are: ``caption_cosine``, the mean over pairs, and ``hardest_cosine``, the mean of each one's nearest.

    Args:
        text: ``[N, D]`` unit rows.
        caption_ids: ``[N]``; the same caption twice is no pair.
    """
    mean, nearest = caption_likeness(text, caption_ids)
    return {"caption_cosine": mean, "hardest_cosine": float(nearest.mean()) if len(nearest) else math.nan}


def caption_likeness(text: Tensor, caption_ids: Any = None) -> tuple[float, Tensor]:
    """The mean cosine over pairs of captions (NaN without any), and ``[M]`` cosines of each to its nearest, where there is one."""
    rows = text.detach().float()
    cosines = rows @ rows.T
    other = ~torch.eye(len(rows), dtype=torch.bool, device=rows.device)
    if caption_ids is not None:
        ids = torch.as_tensor(caption_ids, device=rows.device)
        other &= ids[:, None] != ids
    nearest = cosines.masked_fill(~other, -torch.inf).amax(1)
    return float(cosines[other].mean()), nearest[nearest.isfinite()]


class Lens:
    """Looks at batches and remembers.

    Args:
        gamma: of the hard-negative loss that InfoNCE is compared with.
    """

    def __init__(self, gamma: float = 0.5) -> None:
        self.gamma = gamma
        self.seen: list[dict[str, float]] = []

    def look(self, batch: Joined) -> dict[str, float]:
        """Measure one batch; the names begin with ``lens/``."""
        found = look(batch.image, batch.text, batch.scale, self.gamma, batch.image_ids, batch.caption_ids)
        self.seen.append(found)
        return {f"{_PREFIX}{name}": value for name, value in found.items()}

    def summary(self) -> dict[str, float]:
        """See :func:`summarise`; of this run's batches."""
        return summarise(self.seen)


def summarise(seen: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Means over batches: ``saturated`` and ``zero_gradient`` become shares; what is NaN is left out. ``batches``: how many."""
    entries = list(seen)
    found: dict[str, float] = {"batches": float(len(entries))} if entries else {}
    for name in sorted({name for entry in entries for name in entry} - {"step"}):
        values = [entry[name] for entry in entries if not math.isnan(entry.get(name, math.nan))]
        if values:
            found[name] = sum(values) / len(values)
    return found


def entries_of(metrics: Iterable[Mapping[str, Any]]) -> list[dict[str, float]]:
    """What the lens saw, by step, out of the lines of a file of metrics."""
    found = []
    for line in metrics:
        seen = {name[len(_PREFIX) :]: float(value) for name, value in line.items() if name.startswith(_PREFIX)}
        if seen:
            found.append({"step": float(line["step"]), **seen})
    return found


def plot_lens(metrics: Iterable[Mapping[str, Any]], path: Path, title: str = "") -> Path:
    """Draw what the lens saw: losses, gradient norms, their cosine, the share that is saturated, and how alike captions are.

    Args:
        metrics: lines of ``metrics.jsonl`` (:func:`clipmend.dense.progress.read_metrics`).
        path: a ``.png`` or ``.svg`` file.
        title: above it.

    Raises:
        ValueError: the lens saw nothing.
    """
    entries = entries_of(metrics)
    if not entries:
        raise ValueError("the saturation lens saw no batch: train with lens_every (--lens-every) above 0")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [entry["step"] for entry in entries]
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    for axis, names, label, log in (
        (axes[0, 0], ("info_nce", "hard_negative"), "loss", True),
        (axes[0, 1], ("info_nce_gradient", "hard_negative_gradient"), "norm of the gradient at the features", True),
        (axes[1, 0], ("gradient_cosine", "share saturated"), "", False),
        (axes[1, 1], ("caption_cosine", "hardest_cosine"), "cosine between captions", False),
    ):
        for name in names:
            if name == "share saturated":
                total = 0.0
                values = [(total := total + entry["saturated"]) / (place + 1) for place, entry in enumerate(entries)]
                text = f"share of batches with InfoNCE below {SATURATED:g}, so far"
            else:
                values = [entry.get(name, math.nan) for entry in entries]
                text = name.replace("_", " ")
            axis.plot(steps, [max(value, 1e-12) if log else value for value in values], label=text, linewidth=1.2)
        if log:
            axis.set_yscale("log")
        axis.set_xlabel("step")
        axis.set_ylabel(label)
        axis.legend(fontsize=8, frameon=False)
        axis.grid(alpha=0.3)
    if title:
        figure.suptitle(title)
    part = path.with_name(f".{path.name}.part")
    figure.savefig(part, format=path.suffix.lstrip(".") or "png", dpi=120)
    part.replace(path)
    return path
