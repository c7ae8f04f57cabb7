"""The three folders that a reproduction reads, looked through before any work."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clipmend.data.images import find_image
from clipmend.data.preflight import PreflightReport, preflight
from clipmend.data.readers.base import Record, Source
from clipmend.data.readers.coco import coco_files, read_coco
from clipmend.data.readers.negbench import find_tables, read_negbench
from clipmend.data.readers.voc import read_voc
from clipmend.reproduce.published import PER_IMAGE, TABLES

__all__ = ["Counts", "Inputs", "find_inputs", "look_at"]

SAMPLE = 256


@dataclass
class Inputs:
    """Where everything lies.

    Args:
        coco: COCO's folder.
        split: of the training images.
        roots: folder of the test images, by ``"coco"`` and ``"voc"``.
        tables: NegBench's files that are there, by our names (:data:`~clipmend.reproduce.published.TABLES`).
        absent: our names of those that are not.
    """

    coco: Path
    split: str
    roots: dict[str, Path]
    tables: dict[str, Path]
    absent: list[str] = field(default_factory=list)

    def training(self) -> Source:
        """The training images, streamed."""
        return read_coco(self.coco, split=self.split)

    def identity(self) -> dict[str, Any]:
        """What tells these inputs from others: names and sizes of the annotations, digests of the tables."""
        files = [file for file in coco_files(self.coco, self.split)[:2] if file is not None]
        return {
            "split": self.split,
            "annotations": {file.name: file.stat().st_size for file in files},
            "tables": {name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for name, path in self.tables.items()},
        }


@dataclass
class Counts:
    """What was counted on one pass over the inputs.

    Args:
        images: training images with annotations.
        originals: captions taken of them, at most :data:`~clipmend.reproduce.published.PER_IMAGE` each.
        test_images: distinct images that the tables name.
        questions: by table.
        options: texts of the questions.
        queries: captions of the retrieval tables.
        shared: training images that a table names as well: a test on them would be void.
        reports: what the look at each source found, by name.
        sample_images, sample_texts: a few training images and captions, to measure the speed on.
    """

    images: int = 0
    originals: int = 0
    test_images: int = 0
    questions: dict[str, int] = field(default_factory=dict)
    options: int = 0
    queries: int = 0
    shared: list[str] = field(default_factory=list)
    reports: dict[str, PreflightReport] = field(default_factory=dict)
    sample_images: list[Path] = field(default_factory=list)
    sample_texts: list[str] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Images without a file, in all."""
        return sum(report.findings["images_missing"].count for report in self.reports.values())


def find_inputs(coco: str | Path, voc: str | Path, negbench: str | Path, *, split: str | None = None) -> Inputs:
    """Find the training annotations, the test images and NegBench's tables.

    Args:
        coco: folder with ``annotations/`` and the images of the training split and of ``val2017`` (or ``val2014``).
        voc: folder that holds VOC2007 with ``JPEGImages``.
        negbench: folder with NegBench's CSV files, in it or below.
        split: training split; by default ``train2014``, as published, or ``train2017`` where only that is there.

    Raises:
        FileNotFoundError: what is missing, and where it was looked for.
    """
    coco, voc = Path(coco), Path(voc)
    for folder in (coco, voc, Path(negbench)):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder")
    if split is None:
        annotations = coco / "annotations" if (coco / "annotations").is_dir() else coco
        there = [s for s in ("train2014", "train2017") if (annotations / f"captions_{s}.json").is_file()]
        if not there:
            raise FileNotFoundError(
                f"{annotations}: neither captions_train2014.json nor captions_train2017.json is there; name the part with --split"
            )
        split = there[0]
    captions, instances, images = coco_files(coco, split)
    for what, found in (("captions", captions), ("instances", instances)):
        if found is None:
            raise FileNotFoundError(f"{coco}: {what}_{split}.json is missing; both captions and instances are needed")
    if images is None:
        raise FileNotFoundError(f"{coco}: no folder {split} or images/{split} with the training images")
    tests = [folder / name for name in ("val2017", "val2014") for folder in (coco, coco / "images")]
    found_tests = next((folder for folder in tests if folder.is_dir()), None)
    if found_tests is None:
        raise FileNotFoundError(f"{coco}: no folder val2017 or images/val2017 with the test images")
    voc_images = read_voc(voc).image_root
    assert voc_images is not None
    if not voc_images.is_dir():
        raise FileNotFoundError(f"{voc_images}: no such folder; it holds VOC2007's images")
    files = find_tables(negbench)
    tables = {name: files[table.name] for name, table in TABLES.items() if table.name in files}
    if not tables:
        wanted = ", ".join(f"{table.name}.csv" for table in TABLES.values())
        raise FileNotFoundError(f"{negbench}: none of {wanted} is there")
    absent = [name for name in TABLES if name not in tables]
    return Inputs(coco, split, {"coco": found_tests, "voc": voc_images}, tables, absent)


def look_at(inputs: Inputs, *, limit: int | None = None, seed: int = 0, progress: bool = False) -> Counts:
    """Read everything through once: counts, missing files, captions without text, training images that are test images too.

    Images are looked for and not decoded; ``clipmend data check`` does that.

    Args:
        inputs: from :func:`find_inputs`.
        limit: training images taken.
        seed: of the sample of captions and images.
        progress: show counters on a terminal.

    Raises:
        ValueError: annotations or tables that cannot be read, naming file and entry.
    """
    counts = Counts()
    rng = random.Random(seed)
    trained: set[tuple[str, int]] = set()

    def training(source: Source) -> Iterator[Record]:
        for record in source:
            if record.present is None:
                continue
            if limit is not None and counts.images >= limit:
                return
            counts.images += 1
            counts.originals += min(PER_IMAGE, len(record.captions))
            trained.add(("coco", _number(record.image)))
            _keep(counts, record, source, rng)
            yield record

    source = inputs.training()
    counts.reports[f"training images, COCO {inputs.split}"] = preflight(
        training(source), image_root=source.image_root, decode=False, progress=progress
    )
    tested: set[tuple[str, int]] = set()
    names: set[tuple[str, str]] = set()

    def testing(name: str) -> Iterator[Record]:
        kind = TABLES[name]
        for record in read_negbench(inputs.tables[name]):
            names.add((kind.images, Path(record.image.replace("\\", "/")).name))
            tested.add((kind.images, _number(record.image)))
            if kind.task == "choice":
                counts.questions[name] = counts.questions.get(name, 0) + 1
                counts.options += len(record.captions)
            else:
                counts.queries += len(record.captions)
            yield record

    for name in inputs.tables:
        counts.reports[TABLES[name].title] = preflight(
            testing(name), image_root=inputs.roots[TABLES[name].images], decode=False, progress=progress
        )
    counts.test_images = len(names)
    counts.shared = [f"{kind} image {number}" for kind, number in sorted(trained & tested) if number >= 0]
    return counts


def _keep(counts: Counts, record: Record, source: Source, rng: random.Random) -> None:
    """Reservoir sampling of one caption and the image of a record."""
    place = counts.images - 1 if counts.images <= SAMPLE else rng.randrange(counts.images)
    if place >= SAMPLE or not record.captions:
        return
    path = find_image(record.image, source.image_root or Path())
    if path is None:
        return
    if place >= len(counts.sample_texts):
        counts.sample_texts.append(record.captions[0])
        counts.sample_images.append(path)
    else:
        counts.sample_texts[place], counts.sample_images[place] = record.captions[0], path


def _number(name: str) -> int:
    """COCO's number of an image, the same under each year's names: COCO_val2014_000000000042.jpg is 000000000042.jpg."""
    digits = re.findall(r"\d+", Path(name.replace("\\", "/")).stem)
    return int(digits[-1]) if digits else -1
