"""Near-twins: does a caption put its own image above its twins', and an image its own caption above theirs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["TWINS", "Share", "leaders", "twin_shares"]

TWINS = {
    "image_by_text": "twins: own image by the text",
    "text_by_image": "twins: own text by the image",
    "group": "twins: the whole group",
}


@dataclass(frozen=True)
class Share:
    """A share of queries: which were right, and of which image each is."""

    hits: NDArray[np.bool_]
    cluster: NDArray[np.int64]


def leaders(images: int, twins: Sequence[Sequence[int]]) -> NDArray[np.int64] | None:
    """The first image of each image's group (groups that overlap are one); ``None`` without twins.

    Raises:
        ValueError: a group of fewer than two images, an image twice in one, or out of range.
    """
    if not twins:
        return None
    leader = np.arange(images)
    for group in twins:
        members = list(group)
        if len(members) < 2 or len(set(members)) < len(members) or not all(0 <= k < images for k in members):
            raise ValueError(f"a group of twins must name two or more different images of 0..{images - 1}, not {members}")
        joined = np.isin(leader, leader[members])
        leader[joined] = leader[joined].min()
    return leader


def twin_shares(
    texts: Tensor,
    images: Tensor,
    owner: NDArray[np.int64],
    twins: Sequence[Sequence[int]],
    leader: NDArray[np.int64] | None,
    tie_tolerance: float,
) -> dict[str, Share]:
    if leader is None:
        return {}
    rows_of: dict[int, list[int]] = {}
    for row, image in enumerate(owner.tolist()):
        rows_of.setdefault(image, []).append(row)
    hits: dict[str, list[bool]] = {name: [] for name in TWINS}
    cluster: dict[str, list[int]] = {name: [] for name in TWINS}
    for group in twins:
        members = list(group)
        rows = [row for image in members for row in rows_of.get(image, [])]
        if not rows:
            continue
        scores = (texts[rows] @ images[members].T).cpu()  # [captions of the group, its images]
        own = torch.tensor([members.index(int(owner[row])) for row in rows])
        mine = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, own[:, None], True)
        outside = scores.masked_fill(mine, -torch.inf)
        inside = scores.masked_fill(~mine, -torch.inf)
        by_text = (inside.amax(1) > outside.amax(1) + tie_tolerance).tolist()
        by_image = (inside.amax(0) > outside.amax(0) + tie_tolerance).tolist()
        asked = [k for k, image in enumerate(members) if image in rows_of]
        whole = [all(by_text) and all(by_image[k] for k in asked)]
        for name, right in (("image_by_text", by_text), ("text_by_image", [by_image[k] for k in asked]), ("group", whole)):
            hits[name] += right
            cluster[name] += [int(leader[members[0]])] * len(right)
    return {name: Share(np.array(hits[name], bool), np.array(cluster[name], np.int64)) for name in TWINS if hits[name]}
