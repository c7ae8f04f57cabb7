"""COCO and Pascal VOC in miniature: the true folders and files, with drawn scenes for photographs."""

from __future__ import annotations

import json
from pathlib import Path

from clipmend.data.readers.voc import VOC_CLASSES
from clipmend.data.scenes import make_scenes, render, retrieval_captions
from clipmend.data.scenes.draw import Scene
from data.readers.made import voc_xml, write

# Scenes draw a few of the kinds that the data sets have; the others are mapped, so that images look as different as kinds do.
COCO_OF = {
    **{k: k for k in ("cat", "dog", "bird", "car", "boat", "bicycle", "airplane", "cup", "umbrella", "chair", "clock")},
    "book": "book", "apple": "apple",
    "fish": "scissors", "tree": "potted plant", "lamp": "tv", "mushroom": "broccoli", "hat": "skis", "house": "bench",
    "bell": "vase", "key": "remote", "balloon": "kite", "flower": "banana", "guitar": "tennis racket",
}  # fmt: skip
VOC_OF = {
    **{k: k for k in ("cat", "dog", "bird", "car", "boat", "bicycle", "chair")},
    "airplane": "aeroplane", "tree": "pottedplant", "lamp": "tvmonitor", "house": "train", "cup": "bottle", "snail": "sheep",
    "turtle": "cow", "hat": "person", "book": "diningtable", "crown": "sofa", "key": "bus", "balloon": "motorbike",
}  # fmt: skip


def coco(folder: Path, count: int = 60, split: str = "train2017", seed: int = 1, captions: bool = True) -> Path:
    """``annotations/`` and the images of a split; captions are the scenes' own, with COCO's words."""
    scenes = make_scenes(count, seed)
    numbers = {name: k + 1 for k, name in enumerate(sorted(set(COCO_OF.values())))}
    images, annotations, texts = [], [], []
    (folder / split).mkdir(parents=True)
    plain = retrieval_captions(scenes, seed, per_image=5)
    for k, scene in enumerate(scenes):
        name = f"{k + 1:012d}.jpg"
        render(scene, 48).convert("RGB").save(folder / split / name, quality=90)
        images.append({"license": 1, "file_name": name, "height": 48, "width": 48, "id": k + 1})
        missed = scene.kinds[0] if k % 7 == 0 else ""  # annotators miss some objects that captions speak of
        for thing in scene.objects:
            if thing.kind in COCO_OF and thing.kind != missed:
                annotations.append(
                    {"id": len(annotations) + 1, "image_id": k + 1, "category_id": numbers[COCO_OF[thing.kind]], "iscrowd": 0,
                     "area": 9.0, "bbox": [1, 2, 3, 4], "segmentation": []}
                )  # fmt: skip
        texts += [{"image_id": k + 1, "id": len(texts) + n, "caption": c.text} for n, c in enumerate(plain[5 * k : 5 * k + 5])]
    categories = [{"supercategory": "thing", "id": number, "name": name} for name, number in numbers.items()]
    instances = {"info": {}, "images": images, "annotations": annotations, "categories": categories}
    write(folder / "annotations" / f"instances_{split}.json", json.dumps(instances))
    if captions:
        content = {"info": {}, "images": images, "annotations": texts}
        write(folder / "annotations" / f"captions_{split}.json", json.dumps(content))
    return folder


def voc(folder: Path, count: int = 60, split: str = "trainval", seed: int = 2) -> Path:
    """``VOC2007`` with one list; in every fourth image the first kind has difficult objects only."""
    root = folder / "VOC2007"
    (root / "JPEGImages").mkdir(parents=True)
    assert set(VOC_OF.values()) <= set(VOC_CLASSES)
    names = []
    for k, scene in enumerate(make_scenes(count, seed)):
        name = f"{k + 1:06d}"
        names.append(name)
        render(scene, 48).convert("RGB").save(root / "JPEGImages" / f"{name}.jpg", quality=90)
        write(root / "Annotations" / f"{name}.xml", voc_xml(name, _objects(scene, k)))
    write(root / "ImageSets" / "Main" / f"{split}.txt", "\n".join(names) + "\n")
    return folder


def _objects(scene: Scene, number: int) -> list[tuple[str, str]]:
    kinds = [kind for kind in scene.kinds if kind in VOC_OF]
    hard = kinds[0] if number % 4 == 0 and kinds else ""
    return [(VOC_OF[t.kind], "1" if t.kind == hard else "0") for t in scene.objects if t.kind in VOC_OF]
