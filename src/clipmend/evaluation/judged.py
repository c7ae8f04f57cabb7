"""Beyond recall: do the first k images respect what the query excludes? Someone must say what an image shows: a judge.

Recall asks where one image stands, and cannot show that a denial was understood: a query "a street, no cars" may rank its own
image first and cars second to tenth. Here every one of the first k images is judged. The annotation of a data set is a judge that
makes no mistakes (:class:`OracleJudge`); a detector, or a model that answers questions about pictures, is one where there is no
annotation. All that it needs is one method (:class:`Judge`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track
from clipmend.data.images import find_image
from clipmend.data.records import Caption
from clipmend.evaluation.embed import ImageEmbeddings, OnMissing, distinct, image_vectors, prepared_texts
from clipmend.evaluation.intervals import bootstrap_mean
from clipmend.evaluation.judge_identity import import_own
from clipmend.evaluation.presence import Presence, read_presence
from clipmend.evaluation.results import Measure, Result, items_digest, model_names

__all__ = ["Judge", "OracleJudge", "RespectResult", "evaluate_respect", "load_judge"]


@runtime_checkable
class Judge(Protocol):
    """Says how likely things are to be seen in an image.

    A detector answers with the score of its best box of each thing; a model that answers questions, with the probability of "yes"
    to "is there a THING in the image?". NaN says that it cannot tell: such an image counts neither way.
    """

    def judge(self, image_path: Path, things: Sequence[str]) -> Sequence[float]:
        """Probability, 0 to 1, that each of ``things`` ("cat", "red cup") is in the image, in their order."""
        ...


class OracleJudge:
    """A judge that looks things up in an annotation.

    Args:
        facts: what is true of each image, by the last part of its name: exhaustive for ``vocabulary``.
        vocabulary: what was annotated; any other thing cannot be told. ``None``: everything that some image has, and its nouns
            with any other adjective ("red cat", where cats and their colours are annotated).
        nouns: nouns that were looked for besides, with any adjective, though no image may have them.

    Example:
        >>> judge = OracleJudge({"0.png": {"cat", "red cat"}, "1.png": {"dog"}})
        >>> judge.judge(Path("images/0.png"), ["cat", "blue cat", "dog", "zebra"])
        [1.0, 0.0, 0.0, nan]
    """

    def __init__(self, facts: dict[str, Iterable[str]], vocabulary: Iterable[str] | None = None, nouns: Iterable[str] = ()) -> None:
        self.facts = {Path(name).name: frozenset(things) for name, things in facts.items()}
        if len(self.facts) < len(facts):
            raise ValueError("two images of the annotation have the same file name, so that it is not clear which is meant")
        self.images = tuple(facts)
        known = frozenset().union(*self.facts.values()) if vocabulary is None else frozenset(vocabulary)
        self.vocabulary = known
        self._heads = {*nouns, *(thing.rpartition(" ")[2] for thing in known if vocabulary is None)}

    @classmethod
    def of(cls, presence: Presence, facts: Sequence[Iterable[str]] | None = None) -> OracleJudge:
        """From an annotation of presence, or, aligned with it, every true atom of each drawn scene."""
        if facts is None:
            return cls(dict(zip(presence.images, presence.kinds, strict=True)), presence.vocabulary)
        from clipmend.data.scenes.world import BACKGROUNDS, KINDS, plural

        places = [background.rpartition(" ")[2] for background in BACKGROUNDS]
        nouns = [*KINDS, *(plural(kind) for kind in KINDS), *places]  # "two cats" is an atom too
        return cls(dict(zip(presence.images, facts, strict=True)), None, nouns)

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        """1, 0, or NaN where the annotation does not say."""
        there = self.facts.get(Path(image_path).name)
        if there is None:
            return [math.nan] * len(things)
        return [1.0 if thing in there else 0.0 if self._told(thing) else math.nan for thing in things]

    def _told(self, thing: str) -> bool:
        return thing in self.vocabulary or thing.rpartition(" ")[2] in self._heads


def load_judge(name: str) -> Judge:
    """A judge by name: a table of what is in which image (see :func:`read_presence`), or ``module:object``.

    The module is an installed one or a file in the working directory. An object that has no method ``judge`` is called, without
    arguments, and must give one that has. Kept results are told apart by
    :func:`~clipmend.evaluation.judge_identity.judge_identity`. A ``scenes.jsonl`` of drawn
    scenes knows colours, sizes, numbers and backgrounds too.

    Raises:
        FileNotFoundError: no such table.
        ValueError: no such module or object, or one that is no judge.
    """
    module, colon, attribute = name.partition(":")
    if not colon or Path(name).exists():
        path = Path(name)
        presence = read_presence(path)
        return OracleJudge.of(presence, _drawn(path))
    try:
        found: Any = getattr(import_own(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"judge {name!r}: {error}; name a table of what is in which image, or module:object") from None
    made = found if hasattr(found, "judge") and not isinstance(found, type) else found()
    if not isinstance(made, Judge):
        raise ValueError(f"judge {name!r}: {type(made).__name__} has no method judge(image_path, things)")
    return made


def _drawn(path: Path) -> list[frozenset[str]] | None:
    if path.suffix.lower() not in (".jsonl", ".ndjson"):
        return None
    from clipmend.evaluation.suite import drawn_facts

    return drawn_facts(path)


@dataclass
class RespectResult(Result):
    """Share of the first k images that respect the query's denials, mean over queries.

    Measures, for each k: ``respected@k``: nothing denied is in the image; ``fulfilled@k``: besides, all that is asserted is.
    ``respected@all`` is the share of the whole gallery: what picking images at random would give.

    Args:
        respected: float ``[Q, K]`` share of the first k images, NaN where the judge could tell of none.
        fulfilled: float ``[Q, K]``, likewise.
        gallery: float ``[Q]`` share of all images (that were judged) that respect the query; NaN where unknown.
        ks: the cut-offs.
        image_of: int ``[Q]`` cluster of each query: its own image, or the query itself.
        unjudged: (image, thing) pairs of which the judge could not tell.
        judged: pairs of which it could.
    """

    respected: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    fulfilled: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    gallery: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    ks: tuple[int, ...] = (1, 5, 10)
    image_of: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    unjudged: int = 0
    judged: int = 0

    task: ClassVar[str] = "respected_exclusion"
    title: ClassVar[str] = "What the first k images show, share of them %"

    def _columns(self) -> dict[str, NDArray[np.float64]]:
        columns = {f"respected@{k}": self.respected[:, i] for i, k in enumerate(self.ks)}
        columns |= {f"fulfilled@{k}": self.fulfilled[:, i] for i, k in enumerate(self.ks)}
        return {**columns, "respected@all": self.gallery}

    def measures(self) -> dict[str, Measure]:
        return self._measures

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        measures = {}
        for name, values in self._columns().items():
            told = ~np.isnan(values)
            if not told.any():
                continue
            low, high = bootstrap_mean(values[told], self.image_of[told], samples=500, level=self.level, share=True)
            measures[name] = Measure(float(values[told].mean()), int(told.sum()), low, high)
        return measures

    def clusters(self, over: str = "images") -> int:
        if over != "images":
            raise ValueError(f"a result on the first images is resampled over the queries' images, not {over!r}")
        return int(self.image_of.max()) + 1

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        self.clusters(over)
        own = weights[self.image_of]
        draws = {}
        with np.errstate(invalid="ignore", divide="ignore"):
            for name, values in self._columns().items():
                told = ~np.isnan(values)
                draws[name] = (np.nan_to_num(values) @ own) / (told.astype(np.float64) @ own)
        return draws

    def details(self) -> dict[str, Any]:
        return {"judged": self.judged, "unjudged": self.unjudged}


def evaluate_respect(
    encoder: DualEncoder,
    queries: Sequence[Caption],
    images: Sequence[str],
    judge: Judge,
    *,
    image_of: Sequence[int] | None = None,
    image_root: str | Path | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    files: Mapping[str, Path] | None = None,
    ks: Sequence[int] = (1, 5, 10),
    whole_gallery: bool | None = None,
    threshold: float = 0.5,
    tie_tolerance: float = 1e-6,
    on_missing: OnMissing = "error",
    batch_size: int = 64,
    level: float = 0.95,
    dataset: str | None = None,
    model: str | None = None,
    pretrained: str | None = None,
    progress: bool = False,
) -> RespectResult:
    """Judge the first k images of every query that denies something.

    Args:
        encoder: any :class:`~clipmend.DualEncoder`; images are ranked by the cosine, as an index does.
        queries: texts with what they assert and deny: a table's own parse, or
            ``[parse(text).caption for text in texts]`` with the rule parser. Those that deny nothing are left out.
        images: the gallery.
        judge: says what is in an image. Each image is shown to it once, with all that is asked of it.
        image_of: position of the image each query was written for: intervals then draw images (default: every query its own).
        image_root: folder that image names start from.
        image_embeddings: ready image vectors: ``[N, D]`` in the order of ``images``, or a mapping by name.
        files: file of each image that the judge is to look at, by name (default: found under ``image_root``).
        ks: cut-offs; one beyond the gallery is left out and noted.
        whole_gallery: also judge every image for every query (``respected@all``); default: for an :class:`OracleJudge` only.
        threshold: a thing is there from this probability on.
        tie_tolerance: scores this close are tied; of tied images the first is taken to be the one that respects the query least.
        on_missing: ``"error"``, or ``"skip"`` to leave missing images out.
        batch_size: texts a forward pass.
        level: coverage of the intervals.
        dataset: name of the data.
        model: name of the model in tables (default: the encoder's).
        pretrained: weights or patch.
        progress: show progress bars on a terminal.

    Raises:
        ValueError: no query denies anything, no cut-off fits, or a judge that gives something else than one number a thing.
        FileNotFoundError: images missing, unless they are skipped.
    """
    chosen = [row for row, query in enumerate(queries) if query.denies]
    if not chosen:
        raise ValueError(f"{dataset or 'the data'}: no query denies anything, so there is nothing to respect")
    notes = []
    if len(chosen) < len(queries):
        notes.append(f"{len(queries) - len(chosen)} of {len(queries)} queries deny nothing: left out")
    asked = [queries[row] for row in chosen]
    owner = np.arange(len(asked)) if image_of is None else np.asarray(image_of, np.int64)[chosen]
    vectors, kept = image_vectors(
        encoder, list(images), image_root=image_root, image_embeddings=image_embeddings, on_missing=on_missing, progress=progress
    )
    names = [images[i] for i in kept]
    cuts = tuple(dict.fromkeys(k for k in ks if 1 <= k <= len(names)))
    if not cuts or min(ks) < 1:
        raise ValueError(f"the first k images are judged for k from 1 to {len(names)}, not {tuple(ks)}")
    if len(cuts) < len(set(ks)):
        notes.append(f"cut-offs beyond the gallery of {len(names)} images left out")
    texts, text_of = distinct([query.text for query in asked])
    embedding = prepared_texts(encoder, texts, batch_size=batch_size, progress=progress).embedding.float()
    lists = _short_lists(embedding, vectors, max(cuts), tie_tolerance)
    top = [lists[text] for text in text_of]
    everything = isinstance(judge, OracleJudge) if whole_gallery is None else whole_gallery
    root = Path(image_root) if image_root is not None else Path()
    paths = [(files or {}).get(name) or find_image(name, root) or Path(name) for name in names]
    answers = _ask(judge, asked, paths, top, everything, progress)
    respected, fulfilled = (np.full((len(asked), len(cuts)), np.nan) for _ in range(2))
    gallery = np.full(len(asked), np.nan)
    told = total = 0
    for row, query in enumerate(asked):
        images_of, levels = top[row]
        bad = _verdict(answers, images_of, query.denies, threshold, any_of=True)
        lacking = _verdict(answers, images_of, query.asserts, threshold, any_of=False)
        total += len(bad) * len(query.denies)
        told += int((~np.isnan(bad)).sum()) * len(query.denies)
        fine = np.where(np.isnan(bad), np.nan, 1 - bad)
        known = np.where(np.isnan(bad) | np.isnan(lacking), np.nan, 1.0)
        whole = np.where((bad == 1) | (lacking == 0), 0.0, known)  # one fault is enough, whatever else is unknown
        fine, whole = _worst_first(fine, levels), _worst_first(whole, levels)
        for column, k in enumerate(cuts):
            respected[row, column] = _mean(fine[:k])
            fulfilled[row, column] = _mean(whole[:k])
        if everything:
            gallery[row] = _mean(1 - _verdict(answers, np.arange(len(names)), query.denies, threshold, any_of=True))
    if np.isnan(respected).all():
        raise ValueError(f"the judge could tell of none of the {total} things in question; does it know these nouns?")
    if total > told:
        notes.append(f"the judge could not tell of {total - told} of {total} (image, denied thing) pairs: left out")
    label, weights = model_names(encoder, model, pretrained)
    return RespectResult(
        dataset=dataset or "queries",
        model=label,
        pretrained=weights,
        items=items_digest([names, [(q.text, q.asserts, q.denies) for q in asked], cuts]),
        notes=notes,
        level=level,
        respected=respected,
        fulfilled=fulfilled,
        gallery=gallery,
        ks=cuts,
        image_of=np.unique(owner, return_inverse=True)[1],
        unjudged=total - told,
        judged=told,
    )


ShortList = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Images, the best first, and for each the number of its level: images of one level are tied."""


def _short_lists(texts: torch.Tensor, images: torch.Tensor, k: int, tie_tolerance: float) -> list[ShortList]:
    """The best k images of each text, and all that are tied with the last of them."""
    lists: list[ShortList] = []
    for part in texts.split(max(16, (1 << 22) // max(len(images), 1))):
        scores = part @ images.T
        edge = scores.topk(k, dim=1).values[:, -1:]
        for row, within in zip(scores.numpy(), (scores >= edge - tie_tolerance).numpy(), strict=True):
            found = np.flatnonzero(within)
            found = found[np.argsort(-row[found], kind="stable")]
            lists.append((found, np.cumsum(np.append(0, row[found][:-1] - row[found][1:] > tie_tolerance))))
    return lists


def _worst_first(values: NDArray[np.float64], levels: NDArray[np.int64]) -> NDArray[np.float64]:
    """The values of a short list, the lowest of each level first, so that a tie never counts for the model."""
    return values[np.lexsort((np.nan_to_num(values, nan=0.5), levels))]


def _ask(
    judge: Judge,
    queries: Sequence[Caption],
    paths: Sequence[Path],
    top: Sequence[ShortList],
    everything: bool,
    progress: bool,
) -> list[dict[str, float]]:
    """What the judge says of each image: each is shown once, with every thing that some query asks of it."""
    wanted: list[dict[str, None]] = [{} for _ in paths]
    if everything:
        things = dict.fromkeys(thing for query in queries for thing in (*query.denies, *query.asserts))
        wanted = [things for _ in paths]
    else:
        for row, query in enumerate(queries):
            for image in top[row][0]:
                wanted[image].update(dict.fromkeys((*query.denies, *query.asserts)))
    answers: list[dict[str, float]] = []
    for path, needed in track(zip(paths, wanted, strict=True), len(paths), "judging", progress):
        if not needed:
            answers.append({})
            continue
        said = [float(p) for p in judge.judge(path, list(needed))]
        if len(said) != len(needed):
            raise ValueError(f"{path}: the judge gave {len(said)} numbers for {len(needed)} things")
        wrong = next((p for p in said if not math.isnan(p) and not 0 <= p <= 1), None)
        if wrong is not None:
            raise ValueError(f"{path}: the judge said {wrong}, which is no probability")
        answers.append(dict(zip(needed, said, strict=True)))
    return answers


def _verdict(
    answers: Sequence[dict[str, float]], images: NDArray[np.int64], things: Sequence[str], threshold: float, *, any_of: bool
) -> NDArray[np.float64]:
    """1 where any (or all) of the things are there, 0 where not, NaN where what cannot be told would decide."""
    verdict = np.empty(len(images))
    for row, image in enumerate(images):
        said = [answers[image][thing] for thing in things]
        there = [p >= threshold for p in said if not math.isnan(p)]
        unknown = len(there) < len(said)
        if any_of:
            verdict[row] = 1.0 if any(there) else math.nan if unknown else 0.0
        else:
            verdict[row] = 0.0 if not all(there) else math.nan if unknown else 1.0
    return verdict


def _mean(values: NDArray[np.float64]) -> float:
    told = values[~np.isnan(values)]
    return float(told.mean()) if len(told) else math.nan
