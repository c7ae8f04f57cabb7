"""What is asked: NegBench's tables, and what a gain costs (zero-shot classification, minimal pairs, judged first hits)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.fingerprint import digest_facts, digest_file
from clipmend.data.images import find_image
from clipmend.data.readers.negbench import TABLES, find_tables, read_negbench
from clipmend.evaluation.choice import ChoiceItem, evaluate_choice, read_choice
from clipmend.evaluation.judge_identity import judge_identity
from clipmend.evaluation.judged import Judge, OracleJudge, evaluate_respect, load_judge
from clipmend.evaluation.pairs import evaluate_pairs, read_image_pairs
from clipmend.evaluation.results import Result
from clipmend.evaluation.retrieval import RetrievalData, evaluate_retrieval, read_retrieval
from clipmend.evaluation.rivals.parser import parse
from clipmend.evaluation.tables import Rows
from clipmend.evaluation.zeroshot import (
    TEMPLATES,
    LabelledImages,
    evaluate_zeroshot,
    read_class_names,
    read_labelled,
    read_templates,
)

__all__ = ["Settings", "Task", "cost_tasks", "find_tasks"]


@dataclass(frozen=True)
class Settings:
    """What every evaluation of a run shares.

    Args:
        score_correction: let a patch's score correction answer multiple choice.
        ks: cut-offs of recall and of judged hits.
        skip_missing: leave out (counted) images that are missing or cannot be read.
        batch_size: texts a forward pass.
        progress: show progress bars on a terminal.
    """

    score_correction: bool = True
    ks: tuple[int, ...] = (1, 5, 10)
    skip_missing: bool = False
    batch_size: int = 64
    progress: bool = False


@dataclass
class Task:
    """One test: a table, or a folder of classes.

    Args:
        name: as tables call it.
        kind: ``"choice"``, ``"binary_choice"``, ``"retrieval"``, ``"negated_retrieval"``, ``"respected"``, ``"zeroshot"`` or
            ``"pairs"``.
        source: file or folder.
        about: the data it is about.
        roots: folders that image names start from; the first that has the image is taken.
        facts: what else the numbers depend on (templates, class names, the judge).
        extra: what the kind needs besides: a judge, templates, class names.
    """

    name: str
    kind: str
    source: Path | str
    about: str = ""
    roots: tuple[Path, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    _embedded: tuple[str, Tensor] | None = field(default=None, init=False, repr=False)

    @property
    def plain(self) -> bool:
        """Whether it has nothing to do with negation: it shows what a gain costs."""
        return self.kind in ("retrieval", "zeroshot", "pairs")

    @cached_property
    def data(self) -> Any:
        """The table, read."""
        if self.kind == "choice":
            items = read_choice(self.source)
            forms = TABLES[self.name].forms if self.name in TABLES else ()
            return Rows([_with_forms(item, forms) for item in items], items.source, items.notes)
        if self.kind == "binary_choice":
            return _binary(Path(self.source))
        if self.kind == "pairs":  # a denial is no cost: other tables are about denials
            pairs = read_image_pairs(self.source)
            kept = [pair for pair in pairs if pair.kind != "negation"]
            if not kept:
                raise ValueError(f"{self.source}: holds pairs of kind negation only; what a gain costs shows in other kinds")
            return Rows(kept, pairs.source, pairs.notes)
        if self.kind == "zeroshot":
            return read_labelled(self.source, self.extra.get("class_names"), self.extra.get("split"))
        return read_retrieval(self.source)

    @cached_property
    def images(self) -> list[str]:
        """Names of the images, each once."""
        if isinstance(self.data, LabelledImages):
            return self.data.images
        if isinstance(self.data, RetrievalData):
            return self.data.images
        return list(dict.fromkeys(item.image for item in self.data))

    @cached_property
    def files(self) -> dict[str, Path]:
        """Name to file, of the images that are there."""
        if isinstance(self.data, LabelledImages) and self.data.content is not None:
            return {}
        roots = (self.data.image_root,) if isinstance(self.data, LabelledImages) and self.data.image_root else self.roots
        found = {}
        for name in self.images:
            path = next((path for root in roots if (path := find_image(name, root)) is not None), None)
            if path is not None:
                found[name] = path
        return found

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is asked: the bytes of the table and of its images, and what else decides the numbers."""
        source = Path(self.source)
        content = digest_file(source) if source.is_file() else ""
        files = [(name, _content(self.files[name]) if name in self.files else "") for name in self.images]
        labels: list[Any] = []
        if isinstance(self.data, LabelledImages):
            labels = [self.data.labels.tolist(), self.data.classes, self.data.fingerprint]
        return digest_facts({"kind": self.kind, "content": content, "images": files, "labels": labels, "facts": self.facts})

    def missing(self) -> str:
        """What to say of images that are not there; ``""`` where all are."""
        if isinstance(self.data, LabelledImages):
            return ""
        absent = [name for name in self.images if name not in self.files]
        if not absent:
            return ""
        roots = ", ".join(map(str, self.roots))
        named = f"{', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}"
        return (
            f"{self.name}: {len(absent)} of {len(self.images)} images ({named}) not found under {roots}; try --image-root DIR, or "
            "leave them out with --skip-missing"
        )

    def evaluate(self, encoder: DualEncoder, vectors: Mapping[str, Tensor], settings: Settings, names: Mapping[str, str]) -> Result:
        """Ask everything.

        Args:
            encoder: a backbone, a mended one or a rival.
            vectors: of the images, by name.
            settings: of the run.
            names: ``model`` and ``pretrained`` for the result.
        """
        common: dict[str, Any] = {
            "image_embeddings": vectors, "dataset": self.name, "batch_size": settings.batch_size, "progress": settings.progress,
            **names,
        }  # fmt: skip
        if self.kind == "zeroshot":
            return self._zeroshot(encoder, common)
        common["on_missing"] = "skip" if settings.skip_missing else "error"
        if self.kind in ("choice", "binary_choice"):
            return evaluate_choice(encoder, self.data, score_correction=settings.score_correction, **common)
        if self.kind == "pairs":
            return evaluate_pairs(encoder, self.data, score_correction=settings.score_correction, **common)
        if self.kind == "respected":
            return self._respected(encoder, common, settings)
        return evaluate_retrieval(encoder, self.data, ks=settings.ks, **common)

    def _zeroshot(self, encoder: DualEncoder, common: dict[str, Any]) -> Result:
        data: LabelledImages = self.data
        if data.content is not None:  # in no files: embedded once for all methods of a backbone, which share its image side
            key = encoder.fingerprint.image or encoder.name
            if self._embedded is None or self._embedded[0] != key:
                self._embedded = key, encoder.encode_images(data.content, progress=common["progress"])
            common["image_embeddings"] = self._embedded[1]
        elif len(common["image_embeddings"]) < len(data.images):
            data = _kept(data, common["image_embeddings"])
        return evaluate_zeroshot(encoder, data, templates=self.extra["templates"], **common)

    def _respected(self, encoder: DualEncoder, common: dict[str, Any], settings: Settings) -> Result:
        """The first hits of the captions that deny something; what they deny is the table's own parse, else the rule parser's."""
        data: RetrievalData = self.data
        captions = data.parse or [parse(text).caption for text in data.captions]
        judge: Judge = self.extra["judge"]
        return evaluate_respect(
            encoder, captions, data.images, judge, image_of=data.image_of.tolist(), files=self.files, ks=settings.ks, **common
        )


def _content(path: Path) -> str:
    """SHA-256 of a file; many tables name the same images, so each is read once."""
    status = path.stat()
    return _content_of(path, status.st_size, status.st_mtime_ns)


@cache
def _content_of(path: Path, size: int, changed: int) -> str:
    return digest_file(path)


def _kept(data: LabelledImages, vectors: Mapping[str, Tensor]) -> LabelledImages:
    rows = [row for row, name in enumerate(data.images) if name in vectors]
    notes = [*data.notes, f"{len(data.images) - len(rows)} of {len(data.images)} images could not be read: left out"]
    return replace(data, images=[data.images[row] for row in rows], labels=data.labels[rows], notes=notes)


def _with_forms(item: ChoiceItem, forms: Sequence[str]) -> ChoiceItem:
    """Where the make of a table is known, the forms of its wrong options are too."""
    if item.parse is not None or len(forms) != len(item.captions) or (item.answer != 0 and "" in forms):
        return item
    return replace(item, made=tuple(forms))


def _binary(path: Path) -> Rows[ChoiceItem]:
    """Questions with two options and no template (CheXpert)."""
    source = read_negbench(path)
    items = []
    for record in source:
        assert record.answer is not None  # the reader gives questions of this table
        line = int(record.where.rpartition("line ")[2])
        items.append(ChoiceItem(record.image, record.captions, record.answer, record.template, row=line))
    return Rows(items, str(path), source.log.notes)


def find_tasks(folder: str | Path, image_roots: Sequence[str | Path] = (), only: Sequence[str] | None = None) -> list[Task]:
    """NegBench's tables in a folder and below.

    Args:
        folder: where the tables are.
        image_roots: folders with images, tried in their order; then the table's own folder and ``folder``.
        only: names of tables (without ``.csv``), or kinds (``choice``, ``retrieval``, ...), or parts of names.

    Raises:
        FileNotFoundError: no folder, or no table in it.
        ValueError: nothing is left of what was asked for.
    """
    root = Path(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder")
    tasks = []
    for name, path in find_tables(root).items():
        kind = TABLES[name]
        roots = tuple(dict.fromkeys([*map(Path, image_roots), path.parent, root]))
        tasks.append(Task(name, kind.task, path, kind.about, roots))
    if only:

        def called(task: Task, part: str) -> bool:
            return part == task.kind or part in task.name

        strange = [part for part in only if not any(called(task, part) for task in tasks)]
        if strange:
            raise ValueError(f"{root}: no table is called {', '.join(strange)}; there are {', '.join(task.name for task in tasks)}")
        tasks = [task for task in tasks if any(called(task, part) for part in only)]
    return tasks


def cost_tasks(
    tables: Sequence[Task],
    *,
    zeroshot: Sequence[str | Path] = (),
    class_names: str | Path | None = None,
    templates: str | Path | None = None,
    split: str | None = None,
    pairs: Sequence[str | Path] = (),
    judge: str | None = None,
) -> list[Task]:
    """What is asked beside NegBench's tables.

    Args:
        tables: the tables; with a judge, the first hits of those of negated retrieval are judged.
        zeroshot: folders with one folder a class, or ``hf:NAME``.
        class_names: file with their class names.
        templates: file with prompt templates.
        split: split of a Hugging Face data set.
        pairs: tables of minimal pairs.
        judge: see :func:`~clipmend.evaluation.judged.load_judge`.

    Raises:
        ValueError: class names, templates or a split without a data set, a judge without a table to judge.
    """
    if not zeroshot and (class_names or templates or split):
        raise ValueError("class names, templates and a split belong to --zeroshot; give one")
    tasks = []
    names = read_class_names(class_names) if class_names else None
    prompts = read_templates(templates) if templates else list(TEMPLATES)
    for source in zeroshot:
        label = f"zeroshot/{str(source).rstrip('/').rpartition('/')[2]}"
        extra = {"class_names": names, "split": split, "templates": prompts}
        tasks.append(Task(label, "zeroshot", source, "zero-shot classification", facts={"templates": prompts}, extra=extra))
    for source in pairs:
        path = Path(source)
        tasks.append(Task(f"pairs/{path.parent.name or path.stem}", "pairs", path, "minimal pairs", (path.parent,)))
    if judge is not None:
        made = load_judge(judge)
        path = Path(judge)
        facts = {"judge": digest_file(path) if path.is_file() else judge_identity(judge, made)}
        judged = [table for table in tables if table.kind == "negated_retrieval"]
        if not judged:
            raise ValueError("--judge judges the first hits of negated retrieval, and there is no such table here")
        if isinstance(made, OracleJudge):  # an annotation of COCO says nothing of MSR-VTT
            judged = [table for table in judged if any(Path(name).name in made.facts for name in table.images)]
            if not judged:
                raise ValueError(f"{judge}: says of no image of the tables of negated retrieval what is in it")
        for table in judged:
            tasks.append(
                Task(f"respected/{table.name}", "respected", table.source, table.about, table.roots, facts, {"judge": made})
            )
    twice = sorted({task.name for task in tasks if [t.name for t in tasks].count(task.name) > 1})
    if twice:
        raise ValueError(f"two data sets would be called {twice[0]}; rename the folder of one")
    return tasks
