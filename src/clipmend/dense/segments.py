"""Parts of images with the sentences that fit them, written as GOAL's JSON: what the recipe ``goal`` trains on.

An image is cut into boxes by a segmenter, a caption into sentences, and each sentence goes to the box whose crop an encoder finds
most like it. Nothing is labelled: the pairs are as good as the encoder that matches them.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from clipmend.backbones.base import DualEncoder
from clipmend.data.ahead import read_ahead
from clipmend.data.images import ImageError, display_path, open_image
from clipmend.data.sentences import split_sentences
from clipmend.dense.boxes import Box, clip_box, crop_box
from clipmend.dense.pairs import Pairs, as_pairs

__all__ = ["Segmenter", "Written", "grid_boxes", "make_segmenter", "mask_boxes", "match_sentences", "write_segments"]

Segmenter = Callable[[Image.Image], "list[Box]"]
"""An RGB image to boxes in it, distinct and within it; none is possible."""


@dataclass(frozen=True)
class Written:
    """What :func:`write_segments` did.

    Args:
        path: the file.
        pairs: captions in it.
        segments: parts in all.
        whole: of these, sentences that fit the whole image best.
        resumed: captions that an earlier run had done.
        notes: images that were left out.
    """

    path: Path
    pairs: int
    segments: int
    whole: int
    resumed: int
    notes: tuple[str, ...] = ()


# ---- boxes --------------------------------------------------------------------------------------------------------------------


def grid_boxes(size: tuple[int, int], cells: int = 3) -> list[Box]:
    """The cells of a ``cells x cells`` grid over an image of ``(width, height)``; fewer where it has fewer pixels."""
    width, height = size
    across, down = min(cells, width), min(cells, height)
    columns = [round(k * width / across) for k in range(across + 1)]
    rows = [round(k * height / down) for k in range(down + 1)]
    return [(columns[c], rows[r], columns[c + 1], rows[r + 1]) for r in range(down) for c in range(across)]


def mask_boxes(masks: Any, least: float = 0.01, most: float = 0.8) -> list[Box]:
    """The boxes around masks ``[H, W]`` (bool, arrays or tensors), each once, in order.

    Args:
        masks: any number of them.
        least, most: a mask that covers less or more of the image is left out; .01 and .8 as in GOAL.
    """
    found: dict[Box, None] = {}
    for mask in masks:
        inside = np.asarray(mask).astype(bool)
        if not inside.size or not least <= inside.mean() <= most:
            continue
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        found[int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1] = None
    return list(found)


def make_segmenter(
    by: str = "grid", *, cells: int = 3, least: float = 0.01, most: float = 0.8, size: int = 512, device: str | None = None,
    **options: Any,
) -> Segmenter:  # fmt: skip
    """What cuts images into boxes.

    Args:
        by: ``"grid"``; ``"skimage"`` (Felzenszwalb's graph) or ``"slic"`` of scikit-image; or a mask-generation model of
            transformers, such as SAM, by hub id or folder.
        cells: of the grid, a side.
        least, most: share of the image that a segment may cover (not of the grid).
        size: an image whose shorter side is longer is shrunk to this for scikit-image, whose time grows with the pixels.
        device: for a model.
        options: of scikit-image's function (``scale``, ``min_size``; ``n_segments``, ``compactness``), or of transformers'
            pipeline at each call (``points_per_batch``, ``pred_iou_thresh``, ``stability_score_thresh``).

    Raises:
        ValueError: an option out of range. ImportError: scikit-image, or what the pipeline needs, is not installed.
        OSError: no such model.
    """
    if cells < 1:
        raise ValueError(f"cells is {cells}; it must be at least 1")
    if not 0 <= least < most <= 1:
        raise ValueError(f"least is {least} and most {most}; they are shares of the image, the first the smaller")
    if not by.strip():
        raise ValueError("by is empty; say grid, skimage, slic, or a mask-generation model")
    if by == "grid":
        if options:
            raise ValueError(f"the grid takes no {', '.join(options)}")
        return lambda image: grid_boxes(image.size, cells)
    if by in ("skimage", "slic"):
        return _by_skimage(by, least, most, size, options)
    if "/" not in by and not os.path.isdir(by):
        raise ValueError(f"by is {by!r}; say grid, skimage, slic, or a mask-generation model by its hub id or folder")
    return _by_model(by, least, most, device, options)


def _by_skimage(by: str, least: float, most: float, size: int, options: dict[str, Any]) -> Segmenter:
    try:
        from skimage.segmentation import felzenszwalb, slic
    except ImportError as error:
        raise ImportError(
            f"segments by {by} need scikit-image ({error}); install it with: pip install scikit-image, or take the grid (--by grid)"
        ) from error

    takes = list(inspect.signature(felzenszwalb if by == "skimage" else slic).parameters)[1:]
    unknown = sorted(set(options) - set(takes))
    if unknown:
        raise ValueError(f"segments by {by} take no {', '.join(unknown)}; they take {', '.join(takes)}")

    def boxes(image: Image.Image) -> list[Box]:
        small = image
        if min(image.size) > size:
            small = image.resize([max(1, round(side * size / min(image.size))) for side in image.size])
        pixels = np.asarray(small)
        try:
            if by == "skimage":
                smallest = max(1, int(least * pixels[..., 0].size))
                labels = felzenszwalb(pixels, **{"scale": 300.0, "sigma": 0.8, "min_size": smallest, **options})
            else:
                labels = slic(pixels, **{"n_segments": 16, "compactness": 10.0, "start_label": 0, **options})
        except TypeError as error:
            raise ValueError(f"segments by {by}: {', '.join(f'{k}={v}' for k, v in options.items())}: {error}") from error
        found = mask_boxes((labels == k for k in np.unique(labels)), least, most)
        across, down = image.width / small.width, image.height / small.height
        scaled = (clip_box((x1 * across, y1 * down, x2 * across, y2 * down), image.size) for x1, y1, x2, y2 in found)
        return list(dict.fromkeys(box for box in scaled if box is not None))

    return boxes


def _by_model(by: str, least: float, most: float, device: str | None, options: dict[str, Any]) -> Segmenter:
    from transformers import pipeline

    try:
        generate: Any = pipeline("mask-generation", model=by, device=device)
    except ImportError as error:
        raise ImportError(
            f"segments by a model need what transformers' mask-generation pipeline needs: {str(error).strip().splitlines()[0]} "
            "Install it with: pip install torchvision, or take skimage or the grid (--by)"
        ) from error
    return lambda image: mask_boxes(generate(image, **options)["masks"], least, most)


# ---- matching -----------------------------------------------------------------------------------------------------------------


def match_sentences(
    encoder: DualEncoder, image: Image.Image, boxes: list[Box], sentences: list[str], *, batch_size: int = 32
) -> list[tuple[Box, float]]:
    """For each sentence the box that fits it best, and its score, the encoder's logit scale times the cosine.

    Args:
        encoder: any.
        image: RGB.
        boxes: candidates, at least one.
        sentences: each gets one; a box may get several.
        batch_size: crops a forward pass.
    """
    crops = encoder.encode_images([crop_box(image, box) for box in boxes], batch_size=batch_size)
    texts = encoder.encode_texts(sentences, on_long="truncate")
    scores = encoder.logit_scale * crops @ texts.T
    best = scores.max(0)
    return [(boxes[int(k)], float(score)) for k, score in zip(best.indices, best.values, strict=True)]


def write_segments(
    data: Any,
    out: str | os.PathLike[str],
    encoder: DualEncoder,
    segmenter: Segmenter | None = None,
    *,
    name: str = "grid",
    whole: bool = True,
    batch_size: int = 32,
    workers: int | None = None,
    skip_broken: bool = False,
    advance: Callable[[int, int], None] | None = None,
) -> Written:
    """Write the parts of images and their sentences as GOAL's JSON; a run that was killed goes on by the same call.

    Each caption is an entry: ``original_filename`` (relative to the file's folder, where the image is below it),
    ``original_caption`` and ``segment``, a list of ``filename``, ``caption`` (the sentence), ``similarity_score`` and
    ``bbox_coordinates`` (``x1, y1, x2, y2``, and ``width, height`` of the box). No crop is written: ``filename`` is its image with
    ``#xywh=LEFT,TOP,WIDTH,HEIGHT``.

    Args:
        data: as :func:`clipmend.dense.finetune` takes it; the images must be files.
        out: the file. While it grows it is ``OUT.part``, a line an image.
        encoder: matches sentences with crops.
        segmenter: see :func:`make_segmenter`; default: the grid.
        name: of the segmenter, with its settings; a run that is resumed must have the same.
        whole: the whole image is a candidate too, as in GOAL: a sentence about all of it is not forced upon a part.
        batch_size: crops a forward pass.
        workers: threads that read images ahead.
        skip_broken: leave out images that cannot be opened, noted; else they are an error.
        advance: called with images done and of all, for a progress bar.

    Raises:
        FileExistsError: ``out`` is there. ValueError: images that are no files, an ``OUT.part`` of other data or settings.
        ImageError: an image that cannot be opened; names it.
    """
    pairs = as_pairs(data)
    target = Path(out).absolute()
    if target.exists():
        raise FileExistsError(f"{target} is there already: choose another file, or delete it")
    for image in pairs.images:
        if not isinstance(image, (str, Path)):
            raise ValueError(
                f"{pairs.name}: {image!r:.60} is no file of its own, and GOAL's JSON names files; unpack the images first"
            )
    segmenter = segmenter or make_segmenter("grid")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    settings = [pairs.digest(), name, whole, encoder.fingerprint.to_dict()]
    header = {"identity": hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()}
    done = _resumed(part, header)
    captions: list[list[str]] = [[] for _ in pairs.images]
    for row, caption in enumerate(pairs.captions):
        captions[pairs.image_of[row]].append(caption)
    notes: list[str] = []
    with part.open("a", encoding="utf-8") as file:
        if not done and not part.stat().st_size:
            file.write(json.dumps(header) + "\n")
        left = range(len(done), len(pairs.images))
        for k, image in zip(left, _images(pairs, left, workers, skip_broken), strict=True):
            found: dict[str, Any]
            if isinstance(image, ImageError):
                found = {"note": str(image), "entries": []}
            else:
                found = {
                    "entries": _entries(encoder, segmenter, pairs.images[k], image, captions[k], target.parent, whole, batch_size)
                }
            file.write(json.dumps(found, ensure_ascii=False) + "\n")
            file.flush()
            done.append(found)
            if advance is not None:
                advance(k + 1, len(pairs.images))
    resumed = len(pairs.images) - len(left)
    notes += [found["note"] for found in done if "note" in found]
    entries = [entry for found in done for entry in found["entries"]]
    if not entries:
        raise ValueError(f"{pairs.name}: no image could be opened; the first: {notes[0]}")
    beside = target.with_name(f".{target.name}.writing")
    beside.write_text(json.dumps(entries, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    beside.replace(target)
    part.unlink()
    parts = [(entry, segment) for entry in entries for segment in entry["segment"]]
    return Written(
        target, len(entries), len(parts), sum(segment["filename"] == entry["original_filename"] for entry, segment in parts),
        sum(len(found["entries"]) for found in done[:resumed]), tuple(notes),
    )  # fmt: skip


def _images(pairs: Pairs, which: range, workers: int | None, skip: bool) -> Iterator[Image.Image | ImageError]:
    def opened(k: int) -> Image.Image | ImageError:
        try:
            return open_image(pairs.images[k])
        except ImageError as error:
            if not skip:
                raise ImageError(error.source, f"{error.reason}; leave such images out with --skip-broken") from None
            return error

    return read_ahead(opened, which, workers)


def _entries(
    encoder: DualEncoder, segmenter: Segmenter, path: Any, image: Image.Image, captions: list[str], folder: Path, whole: bool,
    batch_size: int,
) -> list[dict[str, Any]]:  # fmt: skip
    full = (0, 0, *image.size)
    boxes = list(dict.fromkeys([full, *segmenter(image)] if whole else segmenter(image))) or [full]
    sentences = {caption: list(dict.fromkeys(split_sentences(caption))) for caption in captions}
    distinct = list(dict.fromkeys(sentence for found in sentences.values() for sentence in found))
    best = (
        dict(zip(distinct, match_sentences(encoder, image, boxes, distinct, batch_size=batch_size), strict=True))
        if distinct
        else {}
    )
    name = _name(Path(path).absolute(), folder)
    entries = []
    for caption, own in sentences.items():
        segments = []
        for sentence in own:
            (left, top, right, bottom), score = best[sentence]
            where = "" if (left, top, right, bottom) == full else f"#xywh={left},{top},{right - left},{bottom - top}"
            corners = {"x1": left, "y1": top, "x2": right, "y2": bottom, "width": right - left, "height": bottom - top}
            segments.append(
                {"filename": name + where, "caption": sentence, "similarity_score": round(score, 4), "bbox_coordinates": corners}
            )
        entries.append({"original_filename": name, "original_caption": caption, "segment": segments})
    return entries


def _name(path: Path, folder: Path) -> str:
    try:
        return path.relative_to(folder).as_posix()
    except ValueError:
        return path.as_posix()


def _resumed(part: Path, header: dict[str, str]) -> list[dict[str, Any]]:
    """What an earlier run has done; a last line that was cut short is taken off the file.

    Raises:
        ValueError: it is of other data or settings.
    """
    if not part.is_file():
        return []
    raw = part.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    lines = whole.decode("utf-8").splitlines()
    try:
        found = [json.loads(line) for line in lines]
    except json.JSONDecodeError as error:
        raise ValueError(f"{display_path(part)}: a damaged line ({error}); delete the file to begin anew") from error
    if found and found[0] != header:
        raise ValueError(
            f"{display_path(part)} is of other data, another encoder or other settings; give those again, or delete the file"
        )
    if len(whole) < len(raw):
        os.truncate(part, len(whole))
    return found[1:]
