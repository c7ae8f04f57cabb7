"""The steps of ``clipmend demo``, each on the same public calls that a user would make."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

import clipmend
from clipmend.backbones.base import DualEncoder
from clipmend.demo.searches import PHOTO_QUERIES, SCENE_QUERIES, Asked, Query, ask, folder_digest

__all__ = ["DemoOptions", "Findings", "run_demo"]

MARK = ".clipmend-demo"
"""A file that says that a folder is a demo's, to be replaced by the next."""


@dataclass(frozen=True)
class DemoOptions:
    """How large a demo.

    Args:
        train: drawn scenes to fit on.
        test: held-out scenes to measure and search.
        sets: noun sets mixed into the fit, as in the bundled patch; 0 fits on the images alone, which takes far fewer steps.
        steps: optimiser steps of the fit.
        hidden: width of the correction network.
        seed: of the training scenes; the test scenes come from the test split.
        photos: a folder of the user's own photographs instead of the installed ones.
    """

    train: int = 1100
    test: int = 400
    sets: int = 0
    steps: int = 160
    hidden: int = 512
    seed: int = 0
    photos: Path | None = None


@dataclass
class Findings:
    """Everything the demo found, for the report."""

    diagnosis: Any = None
    evaluations: dict[str, Any] = field(default_factory=dict)
    comparisons: dict[str, Any] = field(default_factory=dict)
    scenes: list[Asked] = field(default_factory=list)
    photos: list[Asked] = field(default_factory=list)
    patch: Any = None
    map: dict[str, Any] = field(default_factory=dict)
    index_unchanged: bool = False
    backbone_unchanged: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    options: DemoOptions = field(default_factory=DemoOptions)

    def to_dict(self) -> dict[str, Any]:
        """Every number, with counts and intervals, ready for JSON."""
        return {
            "clipmend": clipmend.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
            "options": {k: str(v) if isinstance(v, Path) else v for k, v in asdict(self.options).items()},
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "diagnosis": self.diagnosis.to_dict(),
            "fit": {"config": self.patch.config.to_dict(), "metrics": self.patch.metrics},
            "evaluations": {name: evaluation.to_dict() for name, evaluation in self.evaluations.items()},
            "differences": {
                task: {k: v for k, v in comparison.to_dict().items() if k not in ("first", "second")}
                for task, comparison in self.comparisons.items()
            },
            "searches": {"scenes": [a.to_dict() for a in self.scenes], "photos": [a.to_dict() for a in self.photos]},
            "map": self.map,
            "index_bytes_unchanged": self.index_unchanged,
            "backbone_bytes_unchanged": self.backbone_unchanged,
        }


def run_demo(out: Path, options: DemoOptions | None = None, say: Callable[[Any], None] = print, progress: bool = False) -> Findings:
    """Load, draw, diagnose, fit, evaluate, index, search; write ``patch/``, ``index/``, ``results.json``, ``report.html``.

    Args:
        out: the demo's folder, new or empty or that of an earlier demo, which is replaced.
        options: how large.
        say: called with lines and tables for the reader.
        progress: show progress bars.

    Returns:
        what was found.

    Raises:
        FileExistsError: ``out`` holds something else than a demo.
    """
    from clipmend.data.scenes import negation_data_from_folder, write_scenes
    from clipmend.evaluation.results import write_json
    from clipmend.search import build_index

    options = options or DemoOptions()
    found = Findings(options=options)
    clock = _Clock(found.seconds, say)
    _refuse_other(out)

    with clock("load", "1. Load the backbone: a pretrained text encoder (all-MiniLM-L6-v2), an image tower trained into its space"):
        encoder = clipmend.load("scenes")
        fingerprint = encoder.fingerprint
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).touch()
    for name in ("scenes", "index", "patch", "work", "photos-index"):
        shutil.rmtree(out / name, ignore_errors=True)
    with clock(
        "draw",
        f"2. Draw {options.train} training and {options.test} held-out scenes: what is in a picture is known",
    ):
        folders = {name: out / "scenes" / name for name in ("train", "validation", "test")}
        write_scenes(folders["train"], options.train, size=64, seed=options.seed + 100, split="train")
        write_scenes(folders["validation"], 120, size=64, seed=options.seed + 1100, split="train")
        write_scenes(folders["test"], options.test, size=64, seed=options.seed + 7, split="test")
    with clock("diagnose", "3. See where negation is lost"):
        found.diagnosis = clipmend.diagnose(encoder, bootstrap=300, progress=progress)
        say(found.diagnosis.table())
        say(found.diagnosis.reason)
    with clock("fit", f"4. Mend: two small networks on frozen features, {options.steps} steps"):
        mix: dict[str, Any] = {"text_only_sets": options.sets} if options.sets else {"text_only_weight": 0.0}
        config = clipmend.PeakPatchConfig(
            steps=options.steps, hidden=options.hidden, seed=options.seed,
            peak=found.diagnosis.peak, anchor=found.diagnosis.anchor, **mix,
        )  # fmt: skip
        data = negation_data_from_folder(folders["train"])
        say("   features of all captions and images first, once; then the steps, each on a batch of them")
        found.patch = clipmend.fit(
            encoder, data, config, directory=out / "work", progress=progress,
            on_validation=lambda step, metrics: say(f"   step {step} of {options.steps}: {_measured(metrics)}"),
        )  # fmt: skip
        trained = found.patch.metrics["images"]
        say(f"   {trained} of the {len(data.images)} scenes were trained on, {len(data.images) - trained} kept for validation")
        found.patch.command = "clipmend demo"
        found.patch.save_pretrained(out / "patch")
        shutil.rmtree(out / "work")
        mended = clipmend.PeakPatch.from_pretrained(out / "patch").apply(encoder)
        found.backbone_unchanged = clipmend.load("scenes").fingerprint == fingerprint == encoder.fingerprint
    with clock("evaluate", "5. Measure on held-out scenes, beside the baselines (given the true parse, tuned on their own scenes)"):
        _evaluate(found, encoder, folders, say, progress)
        found.map = _map(encoder, mended)
    with clock("search", "6. Index the held-out scenes once, search with both text sides"):
        build_index(encoder, folders["test"] / "images", out / "index", progress=progress)
        found.scenes, found.index_unchanged = _search_scenes(out / "index", encoder, mended, folders["test"])
        _tell(found.scenes, say)
    with clock("photos", "7. Real photographs, and the patch that comes with the photos backbone"):
        found.photos = _search_photos(out / "photos-index", options.photos, say, progress)
        _tell(found.photos, say)
    with clock("report", "8. Write the report"):
        from clipmend.demo.report import write_picture, write_report

        found.diagnosis.plot(out / "diagnosis.png")
        write_picture(found, out / "picture.png")
    write_json(out / "results.json", found.to_dict())
    write_report(found, out / "report.html")
    say(f"\n{sum(found.seconds.values()):.0f} s in all. Open {out / 'report.html'}; every number is in {out / 'results.json'}.")
    return found


def _measured(metrics: dict[str, float]) -> str:
    """What a validation found, in words; nothing where too little was held out."""
    parts = (("choice", "of held-out questions answered"), ("exclusion", "AUROC of exclusion"))
    told = [f"{metrics[key]:.3f} {words}" for name, words in parts for key in (f"images/{name}",) if key in metrics]
    return ", ".join(told) or "nothing held out to measure"


def _refuse_other(out: Path) -> None:
    """Whatever is in ``out`` and not a demo's must not be replaced by one."""
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; the demo wants a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).exists():
        raise FileExistsError(f"{out} is not empty and holds no demo; choose another folder with --out")


def _evaluate(found: Findings, encoder: DualEncoder, folders: dict[str, Path], say: Callable[[Any], None], progress: bool) -> None:
    from clipmend.evaluation import evaluate, evaluate_rivals, read_folder, read_pairs, side_by_side
    from clipmend.evaluation.remembering import RememberedTexts

    tests, tuning = read_folder(folders["test"]), read_folder(folders["validation"])
    pictures = tests.images()
    embedded = encoder.encode_images([folders["test"] / name for name in pictures], progress=progress)
    vectors = dict(zip(pictures, embedded, strict=True))
    found.evaluations["backbone"] = evaluate(encoder, tests, image_embeddings=vectors, samples=200, progress=progress)
    baselines = evaluate_rivals(
        encoder, tests, tuning, read_pairs(folders["train"] / "pairs.csv")[:200],
        tasks=["choice", "negated_retrieval", "exclusion"], image_embeddings=vectors, samples=50,
    )  # fmt: skip
    found.evaluations.update(baselines)
    shared = RememberedTexts(encoder)  # both patches read the same layers
    for name, patch, samples in (("bundled patch", clipmend.PeakPatch.from_pretrained("scenes"), 50), ("mended", found.patch, 200)):
        found.evaluations[name] = evaluate(patch.apply(shared), tests, image_embeddings=vectors, samples=samples, progress=progress)
    for task in found.evaluations["backbone"].results:
        columns = {name: e[task] for name, e in found.evaluations.items() if task in e}
        # Every wording is in the report and in results.json; a terminal shows the groups.
        names = [n for n, m in columns["backbone"].measures().items() if not m.detail and "wording=" not in n]
        say(side_by_side(columns, names=names))
    found.comparisons = found.evaluations["backbone"].compare(found.evaluations["mended"], samples=300)


def _search_scenes(index: Path, encoder: DualEncoder, mended: DualEncoder, folder: Path) -> tuple[list[Asked], bool]:
    from clipmend.data.scenes import read_scenes, scene_facts
    from clipmend.search import ImageIndex

    before = folder_digest(index)
    scenes, paths = read_scenes(folder)
    facts = {path.name: scene_facts(scene) for scene, path in zip(scenes, paths, strict=True)}
    asked = ask(ImageIndex.open(index), encoder, mended, SCENE_QUERIES, lambda path, thing: thing in facts[path.name])
    return asked, folder_digest(index) == before


def _search_photos(index: Path, folder: Path | None, say: Callable[[Any], None], progress: bool) -> list[Asked]:
    """Index the photographs and ask about what is in them; with a folder of one's own, about what the encoder finds there."""
    from clipmend.backbones.photos import demo_photos
    from clipmend.search import ImageIndex, build_index

    encoder = clipmend.load("photos")
    mended = clipmend.PeakPatch.from_pretrained("photos").apply(encoder)
    if folder is None:
        named = demo_photos()
        gathered = index.with_name("photos")
        shutil.rmtree(gathered, ignore_errors=True)
        gathered.mkdir(parents=True)
        for name, path in named.items():
            shutil.copy(path, gathered / f"{name}{path.suffix}")
        build_index(encoder, gathered, index, progress=progress)
        return ask(ImageIndex.open(index), encoder, mended, PHOTO_QUERIES, lambda path, thing: path.stem == thing, k=7)
    report = build_index(encoder, folder, index, progress=progress)
    say(f"{folder}: {report}")
    opened = ImageIndex.open(index)
    things = _things(encoder, opened)
    queries = [Query(f"a photo without {name}", name) for name in things]
    # Nobody has annotated these photographs: the nearest to the plain word stands for what shows the thing.
    return ask(opened, encoder, mended, queries, lambda path, thing: things[thing] == path, k=7)


def _things(encoder: DualEncoder, index: Any, count: int = 5) -> dict[str, Path]:
    """The things of the shipped noun list that the index's images match best, each with its best image."""
    from clipmend.data.nouns import load_nouns

    nouns = load_nouns()
    scores = torch.from_numpy(index.embeddings()).float() @ encoder.encode_texts([f"a photo of {n.indefinite}" for n in nouns]).T
    found: dict[str, Path] = {}
    for flat in scores.flatten().argsort(descending=True).tolist():
        image, noun = divmod(flat, len(nouns))
        path = index.path(image)
        if path not in found.values():
            found[nouns[noun].indefinite] = path
        if len(found) == count:
            break
    return found


def _map(encoder: DualEncoder, mended: DualEncoder) -> dict[str, Any]:
    """A 2-D map (principal components) of affirmative and negated captions, before and after."""
    from sklearn.decomposition import PCA

    from clipmend.data.scenes import KINDS
    from clipmend.data.scenes.world import with_article

    affirmative = [f"a photo with {with_article(kind)}" for kind in KINDS]
    negated = [f"a photo without {with_article(kind)}" for kind in KINDS]
    points = {}
    for name, model in (("before", encoder), ("after", mended)):
        vectors = model.encode_texts(affirmative + negated)
        flat = PCA(2, random_state=0).fit_transform(vectors.numpy())
        points[name] = {"affirmative": flat[: len(KINDS)].round(4).tolist(), "negated": flat[len(KINDS) :].round(4).tolist()}
        cosine = (vectors[: len(KINDS)] * vectors[len(KINDS) :]).sum(-1)
        points[name]["mean_cosine"] = round(cosine.mean().item(), 4)
    return {"kinds": list(KINDS), **points}


def _tell(asked: list[Asked], say: Callable[[Any], None]) -> None:
    from rich.table import Table

    table = Table(title="What the query excludes", title_justify="left")
    for column in ("query", "among the first, before", "after", "first seen at rank, before", "after"):
        table.add_column(column, justify="left" if column == "query" else "right")
    for answer in asked:
        shown = len(answer.before)
        table.add_row(
            answer.query.text, f"{sum(answer.wrong_before)} of {shown}", f"{sum(answer.wrong_after)} of {shown}",
            *(f"{rank} of {answer.of}" if rank else "-" for rank in answer.moved),
        )  # fmt: skip
    say(table)


class _Clock:
    """Announces steps and times them."""

    def __init__(self, seconds: dict[str, float], say: Callable[[Any], None]) -> None:
        self.seconds, self.say = seconds, say

    @contextmanager
    def __call__(self, name: str, title: str) -> Iterator[None]:
        self.say(f"\n{title}")
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began
        self.say(f"   {self.seconds[name]:.1f} s")
