"""Zero-shot classification: what a gain on negation may cost (one published COCO fine-tune fell from 63 to 33 on ImageNet)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.data.images import find_images
from clipmend.data.phrases import with_article
from clipmend.evaluation.embed import ImageEmbeddings, image_vectors
from clipmend.evaluation.intervals import cluster_sums, resample_weights, share_interval, wilson
from clipmend.evaluation.results import Measure, Result, items_digest, model_names

__all__ = [
    "TEMPLATES",
    "LabelledImages",
    "ZeroshotResult",
    "evaluate_zeroshot",
    "read_class_folders",
    "read_class_names",
    "read_labelled",
    "read_labelled_hf",
    "read_templates",
]

TEMPLATES = ("a photo of {a}.",)
"""Templates unless told otherwise. ``{a}`` is the class name with its article; ``{}`` and ``{c}`` the bare name."""


@dataclass
class LabelledImages:
    """Images with one class each.

    Args:
        images: names of the images: paths from ``image_root``, or whatever names the images of ``content``.
        labels: int64 ``[N]`` position of each image's class within ``classes``.
        classes: names of the classes, as prompts should say them.
        source: what to call the data.
        image_root: folder that image names start from.
        content: the images themselves (PIL), aligned with ``images``, where they lie in no files.
        notes: what was noticed while reading.
        fingerprint: what tells the data set's state from another, where its images lie in no files.

    Raises:
        ValueError: no images, a label outside the classes, fewer than two classes, or two classes of one name.
    """

    images: list[str]
    labels: NDArray[np.int64]
    classes: list[str]
    source: str = ""
    image_root: Path | None = None
    content: Sequence[Any] | None = None
    notes: list[str] = field(default_factory=list)
    fingerprint: str = ""

    def __post_init__(self) -> None:
        where = self.source or "labelled images"
        self.labels = np.asarray(self.labels, np.int64)
        if not self.images:
            raise ValueError(f"{where}: no images")
        if self.labels.shape != (len(self.images),):
            raise ValueError(f"{where}: {len(self.images)} images but labels of shape {self.labels.shape}")
        if len(self.classes) < 2:
            raise ValueError(f"{where}: one class only ({', '.join(self.classes)}): there is nothing to tell apart")
        if not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise ValueError(f"{where}: a label lies outside 0..{len(self.classes) - 1}")
        twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
        if twice:
            raise ValueError(
                f"{where}: two classes are called {twice[0]!r}, so no text tells them apart; name them otherwise (--class-names)"
            )


def read_labelled(
    path: str | Path, class_names: Mapping[str, str] | Sequence[str] | None = None, split: str | None = None
) -> LabelledImages:
    """:func:`read_class_folders`, or :func:`read_labelled_hf` for ``hf:NAME`` and for a folder of ``save_to_disk``."""
    text = str(path)
    saved = any((Path(path) / name).is_file() for name in ("dataset_info.json", "dataset_dict.json"))
    if text.startswith("hf:") or saved:
        return read_labelled_hf(text.removeprefix("hf:"), class_names, split=split)
    if split is not None:
        raise ValueError(f"{text}: a folder of classes has no splits; name the split's own folder")
    return read_class_folders(path, class_names)


def read_class_folders(folder: str | Path, class_names: Mapping[str, str] | Sequence[str] | None = None) -> LabelledImages:
    """Read an image folder with one sub-folder a class, as torchvision's ``ImageFolder`` has it.

    Args:
        folder: the folder.
        class_names: names as prompts should say them: by folder name, or one for each folder in the order of their names
            (ImageNet's synsets). Default: the folders' own, with spaces for underscores.

    Raises:
        FileNotFoundError: no such folder.
        ValueError: no sub-folders with images, one class only, or class names that do not fit.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    found = {sub.name: find_images(sub) for sub in sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))}
    empty = [name for name, images in found.items() if not images]
    found = {name: images for name, images in found.items() if images}
    if not found:
        raise ValueError(f"{root}: holds no folders with images; zero-shot classification wants one folder a class")
    names = _named(str(root), list(found), class_names)
    images = [str(image.relative_to(root)) for own in found.values() for image in own]
    labels = np.repeat(np.arange(len(found)), [len(own) for own in found.values()])
    notes = [f"{len(empty)} folders without images left out: {', '.join(empty[:3])}"] if empty else []
    return LabelledImages(images, labels, names, root.name or str(root), root, notes=notes)


def read_labelled_hf(
    dataset: Any, class_names: Mapping[str, str] | Sequence[str] | None = None, *, split: str | None = None
) -> LabelledImages:
    """Read a classification data set of Hugging Face ``datasets``: a column with images and one of type ``ClassLabel``.

    Args:
        dataset: a ``Dataset``, a dictionary of splits of them, a folder that ``save_to_disk`` wrote, or a name as ``load_dataset``
            takes it.
        class_names: names as prompts should say them (default: the data set's own, with spaces for underscores).
        split: the split, where there are several.

    Raises:
        ImportError: the package ``datasets`` is not installed.
        ValueError: no such split, no image column, or no column of class labels.
    """
    try:
        import datasets
    except ImportError:
        raise ImportError("reading Hugging Face data sets needs the package datasets: pip install 'clipmend[datasets]'") from None
    name = str(dataset) if isinstance(dataset, (str, Path)) else type(dataset).__name__
    if isinstance(dataset, (str, Path)):
        dataset = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
    if isinstance(dataset, dict):
        if split is None and len(dataset) > 1:
            raise ValueError(f"{name}: several splits; choose one of {', '.join(dataset)} as split (--split)")
        if split is not None and split not in dataset:
            raise ValueError(f"{name}: no split {split!r}; there are {', '.join(dataset)}")
        dataset = dataset[split] if split is not None else next(iter(dataset.values()))
    features = dict(dataset.features or {})
    image = next((column for column, kind in features.items() if isinstance(kind, datasets.Image)), None)
    label = next((column for column, kind in features.items() if isinstance(kind, datasets.ClassLabel)), None)
    if image is None or label is None:
        lacks = "images" if image is None else "class labels (ClassLabel)"
        raise ValueError(f"{name}: no column of {lacks}; there are {', '.join(features)}")
    labels = np.asarray(dataset[label], np.int64)
    if len(labels) and labels.min() < 0:
        raise ValueError(f"{name}: {int((labels < 0).sum())} of {len(labels)} images have no label; this split is for hidden tests")
    names = _named(name, list(features[label].names), class_names)
    images = [f"{name}: row {row}" for row in range(len(labels))]
    return LabelledImages(
        images,
        labels,
        names,
        Path(name).name,
        content=_Column(dataset, image),
        fingerprint=str(getattr(dataset, "_fingerprint", "")),
    )


class _Column(Sequence[Any]):
    """A column of images that is decoded image by image."""

    def __init__(self, dataset: Any, column: str) -> None:
        self._dataset, self._column = dataset, column

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        return self._dataset[row][self._column]


def _named(where: str, folders: list[str], given: Mapping[str, str] | Sequence[str] | None) -> list[str]:
    if given is None:
        return [name.replace("_", " ").strip() for name in folders]
    if isinstance(given, Mapping):
        missing = [name for name in folders if name not in given]
        if missing:
            raise ValueError(f"{where}: {len(missing)} classes have no name among the class names: {', '.join(missing[:5])}")
        return [str(given[name]) for name in folders]
    if len(given) != len(folders):
        raise ValueError(f"{where}: {len(given)} class names for {len(folders)} classes")
    return [str(name) for name in given]


def read_class_names(path: str | Path) -> dict[str, str] | list[str]:
    """Class names: a JSON object (folder to name) or list, or a text file with one name a line, in the order of the classes.

    Raises:
        ValueError: neither, or empty.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".json":
        try:
            content = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
        values = content.values() if isinstance(content, dict) else content if isinstance(content, list) else [None]
        if not content or not all(isinstance(value, str) and value.strip() for value in values):
            raise ValueError(f"{path}: expected an object of folder names and class names, or a list of class names")
        return content
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path}: holds no class names, one a line")
    return lines


def read_templates(path: str | Path) -> list[str]:
    """Prompt templates: a JSON list, or one a line; ``{}`` or ``{c}`` stands for the class name, ``{a}`` for it with its article.

    Raises:
        ValueError: none, or one without a place for the name.
    """
    path = Path(path)
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix.lower() == ".json":
        try:
            lines = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: not JSON: {error}") from None
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError(f"{path}: expected a list of templates")
    else:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
    _check_templates(str(path), lines)
    return lines


def _check_templates(where: str, templates: Sequence[str]) -> None:
    if not templates:
        raise ValueError(f"{where}: no templates")
    for template in templates:
        if not any(mark in template for mark in ("{}", "{c}", "{a}")):
            raise ValueError(f"{where}: the template {template!r} has no place for the class name: write {{}}, {{c}} or {{a}}")


def _prompt(template: str, name: str) -> str:
    return template.replace("{a}", with_article(name)).replace("{c}", name).replace("{}", name)


@dataclass
class ZeroshotResult(Result):
    """Top-1 and top-5 accuracy, and the mean over classes of the top-1 accuracy, which CLIP_benchmark calls mean per class recall.

    Args:
        ranks: int ``[N]`` rank of each image's own class, ties against the model.
        labels: int ``[N]``.
        classes: names of the classes.
        templates: how many templates were averaged.
    """

    ranks: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: list[str] = field(default_factory=list)
    templates: int = 1

    task: ClassVar[str] = "zeroshot_classification"
    title: ClassVar[str] = "Zero-shot classification, accuracy %"

    def _tops(self) -> dict[str, int]:
        return {"acc1": 1, **({"acc5": 5} if len(self.classes) > 5 else {})}

    def measures(self) -> dict[str, Measure]:
        return self._measures

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        measures = {}
        for name, k in self._tops().items():
            right = int((self.ranks <= k).sum())
            measures[name] = Measure(right / len(self.ranks), len(self.ranks), *wilson(right, len(self.ranks), self.level))
        draws = [self._mean_per_class(weights) for weights in resample_weights(len(self.ranks), 300, 0)]
        value = float(self._mean_per_class(np.ones((len(self.ranks), 1), np.float32))[0])
        low, high = share_interval(np.concatenate(draws), value, len(self.ranks), level=self.level)
        measures["mean_per_class_recall"] = Measure(value, len(np.unique(self.labels)), low, high)
        return measures

    def _mean_per_class(self, weights: NDArray[np.float32]) -> NDArray[np.float64]:
        right = np.zeros((len(self.classes), weights.shape[1]))
        total = np.zeros_like(right)
        np.add.at(right, self.labels, weights * (self.ranks <= 1)[:, None])
        np.add.at(total, self.labels, weights)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.nanmean(np.where(total > 0, right / total, np.nan), axis=0))

    def clusters(self, over: str = "images") -> int:
        if over != "images":
            raise ValueError(f"a zero-shot result is resampled over images, not {over!r}")
        return len(self.ranks)

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        count = self.clusters(over)
        own = np.arange(count)
        draws = {name: cluster_sums(self.ranks <= k, own, count) @ weights / count for name, k in self._tops().items()}
        return {**draws, "mean_per_class_recall": self._mean_per_class(weights)}

    def details(self) -> dict[str, Any]:
        return {"classes": len(self.classes), "templates": self.templates, "ranks": self.ranks.tolist()}


def evaluate_zeroshot(
    encoder: DualEncoder,
    data: LabelledImages,
    *,
    templates: Sequence[str] = TEMPLATES,
    image_embeddings: ImageEmbeddings | None = None,
    tie_tolerance: float = 1e-6,
    batch_size: int = 64,
    level: float = 0.95,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> ZeroshotResult:
    """Classify every image by the class whose text lies nearest (Radford et al. 2021).

    A class's text is the mean of its templates' unit embeddings, made a unit vector. A score correction has no part in it: it
    scores an image and a text, and a class is a mean of texts.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`.
        data: images with classes.
        templates: prompts (see :data:`TEMPLATES`).
        image_embeddings: ready image vectors, ``[N, D]`` or by name.
        tie_tolerance: scores this close are tied; a tie is never in the model's favour.
        batch_size: texts a forward pass.
        level: coverage of the intervals.
        dataset: name of the data (default: its source).
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: a template without a place for the name, or an embedding that is not finite.
    """
    _check_templates("templates", templates)
    if image_embeddings is None and data.content is not None:
        image_embeddings = encoder.encode_images(data.content, progress=progress)
    vectors, _ = image_vectors(
        encoder, data.images, image_root=data.image_root, image_embeddings=image_embeddings, progress=progress
    )
    prompts = [_prompt(template, name) for name in data.classes for template in templates]
    unique = list(dict.fromkeys(prompts))
    rows = dict(zip(unique, encoder.encode_texts(unique, batch_size=batch_size, progress=progress).float(), strict=True))
    stacked = F.normalize(torch.stack([rows[prompt] for prompt in prompts]), dim=-1)
    centres = F.normalize(stacked.reshape(len(data.classes), len(templates), -1).mean(1), dim=-1)  # [C, D]
    bad = (~torch.isfinite(centres).all(-1)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"the embedding of class {data.classes[bad[0]]!r} is not finite")
    labels = torch.from_numpy(data.labels)
    ranks = torch.empty(len(vectors), dtype=torch.int64)
    for start in range(0, len(vectors), 4096):
        part = slice(start, start + 4096)
        scores = vectors[part] @ centres.T
        own = scores.gather(1, labels[part, None])
        ranks[part] = (scores >= own - tie_tolerance).sum(1)  # the own class is among those counted
    label, weights = model_names(encoder, model, pretrained)
    return ZeroshotResult(
        dataset=dataset or data.source or "zeroshot",
        model=label,
        pretrained=weights,
        items=items_digest([data.images, data.labels.tolist(), data.classes, tuple(templates)]),
        notes=list(data.notes),
        level=level,
        ranks=ranks.numpy(),
        labels=data.labels,
        classes=data.classes,
        templates=len(templates),
    )
