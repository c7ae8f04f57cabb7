"""Small files in the true formats."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from PIL import Image


def picture(path: Path, colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (16, 12)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def encoded(colour: tuple[int, int, int] = (200, 30, 30), kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (16, 12), colour).save(buffer, kind)
    return buffer.getvalue()


def write(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(encoding))
    return path


MCQ_HEADER = "correct_answer,caption_0,caption_1,caption_2,caption_3,correct_answer_template,image_path\n"
MCQ_ROWS = (
    '0,"A cat, but no dog",A dog but no cat,A dog,There is no cat,hybrid,/home/them/coco/val2017/000000000001.jpg\n'
    "0,No dog is there,A dog but no cat,A dog,There is no cat,negative,/home/them/coco/val2017/000000000001.jpg\n"
    "0,A cat and a cup,A dog but no cup,A dog,There is no cup,positive,/home/them/coco/val2017/000000000002.jpg\n"
)
RETRIEVAL_HEADER = "positive_objects,negative_objects,filepath,image_id,captions\n"
RETRIEVAL_ROWS = (
    '"[\'cat\', \'cup\']","[\'dog\']",val2017/000000000001.jpg,1,"[\'A cat.\', ""The cat\'s cup, no dog.""]"\n'
    "\"['dining table']\",[],val2017/000000000002.jpg,2,\"['A table.']\"\n"
)


def coco(folder: Path, split: str = "val2017") -> Path:
    """Two images with instances and captions, one with neither; a crowd; an object twice; fields as published."""
    images = [
        {"license": 4, "file_name": f"{n:012d}.jpg", "height": 12, "width": 16, "coco_url": "", "date_captured": "", "id": n}
        for n in (397133, 37777, 252219)
    ]
    categories = [{"supercategory": "x", "id": i, "name": name} for i, name in ((1, "person"), (17, "cat"), (90, "toothbrush"))]
    instances = [
        {
            "segmentation": [[1.5, 2.25, 3.0, 4.0]],
            "area": 10.5,
            "iscrowd": 0,
            "image_id": 397133,
            "bbox": [1, 2, 3, 4],
            "category_id": 17,
            "id": 1,
        },
        {
            "segmentation": [[1.5, 2.25, 3.0, 4.0]],
            "area": 10.5,
            "iscrowd": 0,
            "image_id": 397133,
            "bbox": [1, 2, 3, 4],
            "category_id": 17,
            "id": 2,
        },
        {
            "segmentation": {"counts": [1, 2, 3], "size": [12, 16]},
            "area": 9,
            "iscrowd": 1,
            "image_id": 37777,
            "bbox": [0, 0, 1, 1],
            "category_id": 1,
            "id": 900100037777,
        },
    ]
    captions = [
        {"image_id": 37777, "id": 9, "caption": "A crowd of people.\n"},
        {"image_id": 397133, "id": 2, "caption": "A cat on a  mat"},
        {"image_id": 397133, "id": 3, "caption": "Une chatte grise – très contente"},
    ]
    info = {"description": "COCO 2017 Dataset", "year": 2017}
    for kind, content in (
        ("captions", {"info": info, "licenses": [{"id": 4}], "images": images, "annotations": captions}),
        ("instances", {"info": info, "images": images, "annotations": instances, "categories": categories}),
    ):
        write(folder / "annotations" / f"{kind}_{split}.json", json.dumps(content, ensure_ascii=False))
    for image in images:
        picture(folder / split / str(image["file_name"]), (int(image["id"]) % 250, 20, 90))
    return folder


def voc_xml(name: str, objects: list[tuple[str, str]]) -> str:
    body = "".join(
        f"<object><name>{kind}</name><pose>Left</pose><truncated>0</truncated><difficult>{hard}</difficult>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
        + ("<part><name>head</name></part>" if kind == "person" else "")
        + "</object>"
        for kind, hard in objects
    )
    return (
        f"<annotation><folder>VOC2007</folder><filename>{name}.jpg</filename><size><width>16</width><height>12</height>"
        f"<depth>3</depth></size><segmented>0</segmented>{body}</annotation>"
    )


def voc(folder: Path) -> Path:
    root = folder / "VOCdevkit" / "VOC2007"
    for name, objects in (
        ("000001", [("dog", "0"), ("person", "0"), ("chair", "1")]),
        ("000002", [("train", "0"), ("dog", "0"), ("dog", "1")]),
        ("000003", []),
    ):
        write(root / "Annotations" / f"{name}.xml", voc_xml(name, objects))
        picture(root / "JPEGImages" / f"{name}.jpg", (int(name) * 60, 9, 9))
    write(root / "ImageSets" / "Main" / "test.txt", "000001\r\n000002\r\n")
    write(root / "ImageSets" / "Main" / "trainval.txt", "000003\n")
    write(root / "ImageSets" / "Main" / "dog_test.txt", "000001  1\n000002 -1\n")
    return folder


def tar(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def shard(path: Path, count: int = 3, first: int = 0, mode: str = "w") -> Path:
    members = {}
    for n in range(first, first + count):
        members[f"{n:05d}.jpg"] = encoded((n * 40 % 250, 10, 10))
        members[f"{n:05d}.txt"] = f"picture number {n}".encode()
        members[f"{n:05d}.json"] = json.dumps({"caption": f"number {n}", "url": "x"}).encode()
    return tar(path, members, mode)
