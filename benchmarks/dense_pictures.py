"""Searches by long captions as a picture: what two of the experiment's models put first where they differ."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import clipmend
from clipmend.data.dense import read_dense
from clipmend.data.images import open_image

SHOWN = 6  # captions
SIDE, GAP, LABEL = 60, 8, 150


def write_pictures(work: Path, target: Path, models: tuple[str, str] = ("plain", "margin")) -> str:
    """The first captions for which just one of two models finds the right image, in proportion to how often either is right alone.

    Args:
        work: the experiment's folder.
        target: the PNG.
        models: names of kept models.

    Returns:
        in words, what is shown.
    """
    data = read_dense("scenes", work / "test")
    first = []
    for name in models:
        encoder = clipmend.load(str(work / "models" / name), device="cpu")
        scores = encoder.encode_texts(data.captions) @ encoder.encode_images(data.images).T
        first.append(scores.topk(3, dim=1).indices)
    own = torch.from_numpy(data.image_of)[:, None]
    right = [(found[:, :1] == own)[:, 0].numpy() for found in first]
    only = [np.flatnonzero(right[0] & ~right[1]), np.flatnonzero(right[1] & ~right[0])]
    total = len(only[0]) + len(only[1])
    if not total:
        return "The two models find the same images."
    share = min(len(only[1]), round(SHOWN * len(only[1]) / total))
    rows = [*only[1][:share].tolist(), *only[0][: SHOWN - share].tolist()]
    lines = (work / "test" / "dense.jsonl").read_text(encoding="utf-8").splitlines()
    changes = [json.loads(line)["change"] for line in lines]  # captions stand scene, twin, scene, twin, ...
    if len(data.captions) != 2 * len(changes):
        raise ValueError(f"{len(data.captions)} captions of {len(changes)} scenes: every scene and every twin should have one")
    font, small = ImageFont.load_default(12), ImageFont.load_default(10)
    height = SIDE + 34
    sheet = Image.new("RGB", (LABEL + 7 * (SIDE + GAP), 24 + height * len(rows)), "white")
    draw = ImageDraw.Draw(sheet)
    for x, text in ((GAP, "asked for"), (LABEL, "InfoNCE: first three"), (LABEL + 4 * (SIDE + GAP), "L_HN: first three")):
        draw.text((x, 4), text, "#222222", font)
    for line, row in enumerate(rows):
        top = 24 + line * height
        sheet.paste(open_image(data.images[int(own[row])]).resize((SIDE, SIDE)), (GAP, top + 4))
        for side, found in enumerate(first):
            for place, image in enumerate(found[row].tolist()):
                x = LABEL + (side * 4 + place) * (SIDE + GAP)
                colour = "#2f8f4e" if image == int(own[row]) else "#d0342c"
                draw.rectangle((x - 3, top + 1, x + SIDE + 2, top + SIDE + 6), colour)
                sheet.paste(open_image(data.images[image]).resize((SIDE, SIDE)), (x, top + 4))
        draw.text((GAP, top + SIDE + 10), _told(changes[row // 2], twin=bool(row % 2)), "#666666", small)
    buffer = io.BytesIO()
    sheet.quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(buffer.getvalue())
    os.replace(part, target)
    alone, both = [len(rows_of) for rows_of in only], int((right[0] & right[1]).sum())
    return (
        f"Captions for which only one of the two finds the right image (green) first, seed 0: {alone[1]:,} by L_HN alone, "
        f"{alone[0]:,} by InfoNCE alone, {both:,} of {len(data.captions):,} by both. The first {share} and {len(rows) - share} of "
        "either are shown."
    )


def _told(change: dict[str, Any], twin: bool) -> str:
    """In words, what tells the image asked for from its twin."""
    own, other = (change["after"], change["before"]) if twin else (change["before"], change["after"])
    what = change["attribute"] if change["index"] < 0 else f"{change['attribute']} of object {change['index'] + 1}"
    return f"{what}: {own}; in the twin: {other}"
