"""COCO, Pascal VOC and NegBench in miniature: drawn scenes in those exact formats, to try the whole command on.

``coco/annotations/{captions,instances}_{train,val}2017.json`` with ``train2017/`` and ``val2017/``; ``voc/VOC2007`` with
``Annotations``, ``ImageSets/Main`` and ``JPEGImages``; ``negbench/images/*.csv`` under the published names and with the published
columns, the right option at 0 and image paths of another machine, as there.
"""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from clipmend.data.nouns import indefinite_article
from clipmend.data.output import new_folder
from clipmend.data.scenes import make_scenes, render, retrieval_captions
from clipmend.data.scenes.draw import Scene
from clipmend.data.scenes.facts import text_rng
from clipmend.reproduce.published import TABLES

__all__ = ["Miniature", "write_miniature"]

# Kinds that scenes draw and the data sets have. Other kinds are drawn too and, as in photographs, simply not annotated.
COCO_NAMES = {
    **{kind: kind for kind in ("cat", "dog", "bird", "car", "boat", "bicycle", "airplane", "cup", "umbrella", "chair", "clock")},
    "book": "book", "apple": "apple", "tree": "potted plant",
}  # fmt: skip
VOC_NAMES = {
    **{kind: kind for kind in ("cat", "dog", "bird", "car", "boat", "bicycle", "chair")},
    "airplane": "aeroplane", "tree": "pottedplant", "lamp": "tvmonitor",
}  # fmt: skip
_SPOKEN = {"pottedplant": "potted plant", "tvmonitor": "tv monitor"}
_VAL_FIRST = 900_001
_ELSEWHERE = "data/coco/images/val2017"


@dataclass(frozen=True)
class Miniature:
    """Where everything was written."""

    coco: Path
    voc: Path
    negbench: Path


def write_miniature(
    folder: str | os.PathLike[str],
    train: int = 60,
    test: int = 40,
    *,
    size: int = 64,
    seed: int = 7,
    overwrite: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Miniature:
    """Write the three data sets.

    Args:
        folder: where to; written beside and moved into place.
        train: training images of COCO.
        test: test images of COCO, and of VOC.
        size: side of the images in pixels.
        seed: fixes everything; training and test images never share a random stream.
        overwrite: replace a folder that is not empty.
        advance: called with 1 for every image written.

    Raises:
        ValueError: fewer than 8 training or 4 test images, or a size that scenes are not drawn at.
        FileExistsError: the folder is not empty.
    """
    if train < 8 or test < 4:
        raise ValueError(f"at least 8 training and 4 test images are needed, not {train} and {test}")
    if not 16 <= size <= 4096:
        raise ValueError(f"scenes are drawn at 16 to 4096 pixels, not {size}")
    target = Path(folder).absolute()
    step = advance or (lambda count: None)
    with new_folder(target, overwrite) as work:
        training = _with(COCO_NAMES, make_scenes(3 * train, seed, "train"))[:train]
        _coco(work / "coco", "train2017", training, 1, size, seed, step)
        testing = _with(COCO_NAMES, make_scenes(3 * test, seed, "test"))[:test]
        _coco(work / "coco", "val2017", testing, _VAL_FIRST, size, seed + 1, step)
        voc = _with(VOC_NAMES, make_scenes(4 * test, seed + 1, "test"))[:test]
        _voc(work / "voc" / "VOC2007", voc, size, step)
        _negbench(work / "negbench" / "images", testing, voc, seed)
    return Miniature(target / "coco", target / "voc", target / "negbench")


def _with(names: dict[str, str], scenes: Sequence[Scene]) -> list[Scene]:
    """Scenes with something that is annotated; one image without would have nothing to ask about."""
    return [scene for scene in scenes if any(kind in names for kind in scene.kinds)]


def _things(scene: Scene, names: dict[str, str]) -> list[str]:
    return list(dict.fromkeys(names[kind] for kind in scene.kinds if kind in names))


def _draw(scene: Scene, path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    render(scene, size).convert("RGB").save(path, quality=92)


def _json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def _coco(
    folder: Path, split: str, scenes: Sequence[Scene], first: int, size: int, seed: int, advance: Callable[[int], None]
) -> None:
    numbers = {name: k for k, name in enumerate(sorted(set(COCO_NAMES.values())), 1)}
    info = {"description": "drawn scenes in COCO's format", "year": 2017, "version": "1.0"}
    licences = [{"id": 1, "name": "none", "url": ""}]
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    said = retrieval_captions(scenes, seed, per_image=5)
    for k, scene in enumerate(scenes):
        number = first + k
        name = f"{number:012d}.jpg"
        _draw(scene, folder / split / name, size)
        images.append({"license": 1, "file_name": name, "height": size, "width": size, "id": number, "date_captured": ""})
        for thing in scene.objects:
            if thing.kind in COCO_NAMES:
                x0, y0, x1, y1 = (round(v * size, 2) for v in thing.box)
                box = [x0, y0, round(x1 - x0, 2), round(y1 - y0, 2)]
                annotations.append(
                    {
                        "id": len(annotations) + 1, "image_id": number, "category_id": numbers[COCO_NAMES[thing.kind]],
                        "iscrowd": 0, "area": round(box[2] * box[3], 2), "bbox": box,
                        "segmentation": [[x0, y0, x1, y0, x1, y1, x0, y1]],
                    }
                )  # fmt: skip
        texts += [{"image_id": number, "id": 10 * number + n, "caption": c.text} for n, c in enumerate(said[5 * k : 5 * k + 5])]
        advance(1)
    categories = [{"supercategory": "thing", "id": number, "name": name} for name, number in numbers.items()]
    common = {"info": info, "licenses": licences, "images": images}
    _json(folder / "annotations" / f"instances_{split}.json", {**common, "annotations": annotations, "categories": categories})
    _json(folder / "annotations" / f"captions_{split}.json", {**common, "annotations": texts})


def _voc(root: Path, scenes: Sequence[Scene], size: int, advance: Callable[[int], None]) -> None:
    listed = []
    for k, scene in enumerate(scenes):
        name = f"{k + 1:06d}"
        listed.append(name)
        _draw(scene, root / "JPEGImages" / f"{name}.jpg", size)
        tree = ElementTree.Element("annotation")
        for tag, text in (("folder", "VOC2007"), ("filename", f"{name}.jpg"), ("segmented", "0")):
            ElementTree.SubElement(tree, tag).text = text
        shape = ElementTree.SubElement(tree, "size")
        for tag, value in (("width", size), ("height", size), ("depth", 3)):
            ElementTree.SubElement(shape, tag).text = str(value)
        for thing in scene.objects:
            if thing.kind not in VOC_NAMES:
                continue
            found = ElementTree.SubElement(tree, "object")
            for tag, text in (("name", VOC_NAMES[thing.kind]), ("pose", "Unspecified"), ("truncated", "0"), ("difficult", "0")):
                ElementTree.SubElement(found, tag).text = text
            box = ElementTree.SubElement(found, "bndbox")
            for tag, share in zip(("xmin", "ymin", "xmax", "ymax"), thing.box, strict=True):
                ElementTree.SubElement(box, tag).text = str(1 + round(share * (size - 1)))
        path = root / "Annotations" / f"{name}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(ElementTree.tostring(tree))
        advance(1)
    path = root / "ImageSets" / "Main" / "test.txt"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{name}\n" for name in listed), encoding="utf-8")


def _negbench(folder: Path, coco: Sequence[Scene], voc: Sequence[Scene], seed: int) -> None:
    folder.mkdir(parents=True)
    coco_paths = [f"{_ELSEWHERE}/{_VAL_FIRST + k:012d}.jpg" for k in range(len(coco))]
    voc_paths = [f"data/VOCdevkit/VOC2007/JPEGImages/{k + 1:06d}.jpg" for k in range(len(voc))]
    for name, scenes, paths, names in (
        ("coco_choice", coco, coco_paths, COCO_NAMES), ("voc_choice", voc, voc_paths, VOC_NAMES),
    ):  # fmt: skip
        rows = [row for k, scene in enumerate(scenes) for row in _questions(scene, paths[k], names, text_rng(seed, name, k))]
        columns = ("correct_answer", *(f"caption_{k}" for k in range(4)), "correct_answer_template", "image_path")
        _table(folder / f"{TABLES[name].name}.csv", columns, rows)
    said = retrieval_captions(coco, seed + 1, per_image=5)  # those of the annotations
    columns = ("positive_objects", "negative_objects", "filepath", "image_id", "captions")
    plain, negated = [], []
    for k, scene in enumerate(coco):
        rng = text_rng(seed, "negbench/retrieval", k)
        there = _things(scene, COCO_NAMES)
        lacking = rng.sample(_lacking(there, COCO_NAMES), 3)
        captions = [c.text for c in said[5 * k : 5 * k + 5]]
        start = (repr(there), repr(lacking), coco_paths[k], str(_VAL_FIRST + k))
        plain.append((*start, repr(captions)))
        negated.append((*start, repr([_denying(text, rng.choice(lacking), rng) for text in captions])))
    _table(folder / f"{TABLES['coco_retrieval'].name}.csv", columns, plain)
    _table(folder / f"{TABLES['coco_negated'].name}.csv", columns, negated)


def _table(path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)


def _lacking(there: Sequence[str], names: dict[str, str]) -> list[str]:
    return sorted(set(names.values()) - set(there))


def _one(name: str) -> str:
    spoken = _SPOKEN.get(name, name)
    return f"{indefinite_article(spoken)} {spoken}"


def _questions(scene: Scene, path: str, names: dict[str, str], rng: random.Random) -> list[tuple[Any, ...]]:
    """One question of each form, in the published templates; the wrong options are a hybrid, an affirmative and a negative."""
    there = _things(scene, names)
    rng.shuffle(there)
    rows = []
    for template in ("positive", "negative", "hybrid"):
        shown, lacked = rng.choice(there), rng.choice(_lacking(there, names))
        second = next((thing for thing in there if thing != shown), None)
        right = {
            "positive": f"This image features {_one(shown)}" + (f" and {_one(second)}" if second else ""),
            "negative": f"This image does not feature {_one(lacked)}",
            "hybrid": f"This image features {_one(shown)}, but not {_one(lacked)}",
        }[template]
        wrong = (
            f"This image features {_one(lacked)}, but not {_one(shown)}",
            f"This image features {_one(lacked)}",
            f"This image does not feature {_one(shown)}",
        )
        rows.append((0, right, *wrong, template, path))
    return rows


def _denying(caption: str, thing: str, rng: random.Random) -> str:
    """A caption with the denial of an absent thing before or after it, as negated retrieval has it."""
    denial = f"There is no {_SPOKEN.get(thing, thing)} in the image."
    plain = caption if caption.endswith(".") else f"{caption}."
    return f"{denial} {plain}" if rng.random() < 0.5 else f"{plain} {denial}"
