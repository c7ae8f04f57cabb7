"""Small sets of dense captions in the true formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image


def picture(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 6), (shade * 37 % 256, shade * 91 % 256, 120)).save(path)  # apart in JPEG too
    return path


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def docci(folder: Path) -> Path:
    rows = [
        {"type": "RegularImage", "split": split, "image_file": f"{split}_{n:05d}.jpg", "description": f"A {split} photograph, {n}."}
        for split, count in (("train", 3), ("test", 2), ("qual_dev", 1), ("qual_test", 1))
        for n in range(count)
    ]
    for shade, row in enumerate(rows):
        row["example_id"] = row["image_file"][:-4]
        picture(folder / "images" / row["image_file"], shade)
    write(folder / "docci_descriptions.jsonlines", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


def dci(folder: Path) -> Path:
    base = folder / "densely_captioned_images"
    splits: dict[str, list[str]] = {"train": [], "valid": [], "test": []}
    for number, (split, extra) in enumerate(
        [("train", "A long one."), ("test", "Another\nlong one."), ("test", ""), ("valid", "Third.")]
    ):
        name = f"sa_{number + 10}"
        splits[split].append(f"{name}.json")
        picture(base / "photos" / f"{name}.jpg", number)
        entry = {"image": f"{name}.jpg", "short_caption": f"Short {number}.", "extra_caption": extra, "mask_data": {}}
        write(base / "annotations" / f"{name}.json", entry)
    write(base / "splits.json", splits)
    return folder


def long_dci(folder: Path) -> Path:
    for number in range(3):
        picture(folder / "photos" / f"sa_{number + 10}.jpg", number)
    rows = ["filepath\ttitle", "sa_10.jpg\tA long one.", 'sa_11.jpg\t"Another, ""quoted""\nlong one."', "sa_12.jpg\tThird."]
    write(folder / "dci_long.csv", "\n".join(rows) + "\n")
    return folder


def urban1k(folder: Path) -> Path:
    for number in (10, 2, 1):
        picture(folder / "image" / f"{number}.jpg", number)
        write(folder / "caption" / f"{number}.txt", f"\nStreet number {number}.\n")
    return folder


def sharegpt4v(folder: Path, count: int = 4) -> Path:
    entries = [
        {
            "id": f"{n:012d}",
            "image": f"coco/train2017/{n:012d}.jpg",
            "conversations": [
                {"from": "human", "value": "What is it?\n<image>"},
                {"from": "gpt", "value": f"It is\n\nnumber {n}."},
            ],
        }
        for n in range(count)
    ]
    for n, entry in enumerate(entries):
        picture(folder / str(entry["image"]), n)
    return write(folder / "share-captioner_coco_lcs_sam_1246k_1107.json", entries)


def vg(folder: Path) -> Path:
    entries = []
    for n, place in ((7, "VG_100K"), (8, "VG_100K_2"), (9, "VG_100K")):
        url = f"https://cs.stanford.edu/people/rak248/{place}/{n}.jpg"
        entries.append({"url": url, "image_id": n, "paragraph": f"A paragraph about {n}. "})
        picture(folder / place / f"{n}.jpg", n)
    write(folder / "paragraphs_v1.json", entries)
    for split, ids in (("train", [7]), ("val", [8]), ("test", [9, 8])):
        write(folder / f"{split}_split.json", ids)
    return folder


def goal_pairs(folder: Path) -> Path:
    entries = [{"filename": f"../them/photos/sa_{n}.jpg", "caption": f"Pair {n}."} for n in (20, 21)]
    for n in (20, 21):
        picture(folder / f"sa_{n}.jpg", n)
    return write(folder / "DCI_test.json", entries)


def goal_training(folder: Path) -> Path:
    box = {"x1": 1, "y1": 2, "x2": 5, "y2": 6, "width": 4, "height": 4}
    segment = {"filename": "seg/a_max_3.png", "caption": "A dog", "similarity_score": 21.5, "bbox_coordinates": box}
    entry = {
        "original_filename": "sa_30.jpg",
        "original_caption": "A dog. A cat.",
        "segment": [segment, {**segment, "caption": "A cat"}],
    }
    picture(folder / "sa_30.jpg")
    return write(folder / "DCI_segment.json", [entry])
