"""Through the whole stack: what a search of drawn scenes finds is what the evaluation says of encoder and patch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import clipmend
from clipmend.data.scenes.build import exclusion_queries, make_scenes, scene_facts
from clipmend.data.scenes.draw import render
from clipmend.data.scenes.world import KINDS
from clipmend.evaluation import evaluate_exclusion
from clipmend.evaluation.areas import auroc, macro
from clipmend.evaluation.exclusion import ExclusionQuery, ExclusionResult
from clipmend.evaluation.presence import Presence
from clipmend.negation import PeakPatch
from clipmend.search import ImageIndex
from clipmend.search.answers import answer_json
from clipmend.search.opening import open_gallery
from clipmend.search.searcher import Searcher

SCENES, QUERIES = 100, 24


class Stack:
    """Drawn scenes as files, an index of them, the bundled encoder and patch, and queries that exclude a kind."""

    def __init__(self, home: Path) -> None:
        scenes = make_scenes(SCENES, seed=11, split="test")
        self.encoder = clipmend.load("scenes")
        self.mended = PeakPatch.from_pretrained("scenes").apply(self.encoder)
        names = []
        kinds = []
        for scene in scenes:
            path = home / scene.name
            path.parent.mkdir(parents=True, exist_ok=True)
            render(scene).save(path)
            names.append(scene.name)
            kinds.append(scene_facts(scene) & set(KINDS))
        self.presence = Presence(names, kinds)
        asked = [q for subset in ("standard", "reserved_wording") for q in exclusion_queries(3, subset, per_wording=1)]
        self.queries = [ExclusionQuery(q.text, "|".join(sorted(q.denies)), q.wording) for q in asked][:QUERIES]
        self.home = home
        ImageIndex.build(self.encoder, home / "images", home / "index").close()
        self.gallery = open_gallery(home / "index")
        # Evaluated on what the encoder gives now, not on what the index has kept.
        self.vectors = self.encoder.encode_images([home / name for name in names])

    def evaluated(self, encoder: Any, correction: bool = False) -> ExclusionResult:
        return evaluate_exclusion(
            encoder, self.queries, self.presence, image_embeddings=self.vectors, score_correction=correction, samples=20
        )

    def searched(self, searcher: Searcher, **options: Any) -> tuple[float, float]:
        """AUROC and precision@10 from what the searcher gives, by the evaluation's rule of means."""
        kinds = {Path(name).name: there for name, there in zip(self.presence.images, self.presence.kinds, strict=True)}
        areas, precisions = [], []
        for query in self.queries:
            hits = searcher.search(query.query, k=SCENES, **options).hits
            fits = [not kinds[hit.item.path] & set(query.absent.split("|")) for hit in hits]
            assert len(fits) == SCENES
            areas.append(auroc([hit.score for hit in hits], fits, 1e-6))
            precisions.append(np.mean(fits[:10]))
        return float(macro(areas, [query.absent for query in self.queries])), float(np.mean(precisions))


def precision(result: ExclusionResult) -> float:
    """Precision@10 of the evaluation's own scores."""
    best = np.argsort(-result.scores, axis=1, kind="stable")[:, :10]
    return float(np.mean(~np.take_along_axis(result.present, best, 1)))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    return Stack(tmp_path_factory.mktemp("scenes stack"))


def test_plain_search_is_the_plain_evaluation(stack: Stack) -> None:
    result = stack.evaluated(stack.encoder)
    assert stack.searched(Searcher(stack.gallery, stack.encoder)) == pytest.approx((result.auroc, precision(result)), abs=1e-9)


def test_mended_search_is_the_mended_evaluation_and_better(stack: Stack) -> None:
    before, after = stack.evaluated(stack.encoder), stack.evaluated(stack.mended)
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    area, at_ten = stack.searched(searcher)
    assert (area, at_ten) == pytest.approx((after.auroc, precision(after)), abs=1e-9)
    assert area > before.auroc + 0.2
    assert at_ten > precision(before) + 0.1
    assert stack.searched(searcher, strength=0) == pytest.approx((before.auroc, precision(before)), abs=1e-9)


def test_reranked_search_is_the_evaluation_with_score_correction(stack: Stack) -> None:
    result = stack.evaluated(stack.mended, correction=True)
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    assert stack.searched(searcher, rerank=SCENES) == pytest.approx((result.auroc, precision(result)), abs=1e-9)


def test_strength_and_gate_are_those_of_the_patch(stack: Stack) -> None:
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    text = stack.queries[0].query
    patch = PeakPatch.from_pretrained("scenes")
    for strength in (0.25, 2.0):
        fresh = Searcher(stack.gallery, stack.encoder, patch.apply(stack.encoder, strength))
        expected = fresh.search(text, 10, rerank=20)
        answer = searcher.search(text, 10, strength=strength, rerank=20)
        assert [(hit.id, hit.score) for hit in answer.hits] == [(hit.id, hit.score) for hit in expected.hits]
    assert searcher.mended is stack.mended
    assert (stack.mended.strength, stack.mended.gate) == (1.0, False)


def test_the_gate_is_on_unless_it_was_turned_off(stack: Stack) -> None:
    """Texts that deny nothing find exactly what they find without a patch."""
    patch = PeakPatch.from_pretrained("scenes")
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    off = Searcher(stack.gallery, stack.encoder, patch.apply(stack.encoder, gate=False))

    def scores(by: Searcher, text: str, **options: Any) -> list[tuple[int, float]]:
        return [(hit.id, hit.score) for hit in by.search(text, SCENES, **options).hits]

    for text in ("a cat", "a red house and a tree"):
        plain = scores(Searcher(stack.gallery, stack.encoder), text)
        assert scores(searcher, text) == scores(searcher, text, strength=2.0) == scores(off, text, gate=True) == plain
        mended = scores(off, text)
        assert mended == scores(searcher, text, gate=False) != plain
        assert np.array_equal(searcher.embed([text]), searcher.embed([text], strength=0))
        assert not np.array_equal(off.embed([text]), off.embed([text], strength=0))
    text = stack.queries[0].query
    assert scores(searcher, text) == scores(off, text) != scores(searcher, text, strength=0)


def test_an_answer_says_which_terms_were_mended(stack: Stack) -> None:
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    name = Path(stack.presence.images[5]).name
    query = f'"a picture without a cat" - 0.3 "grass" + like:{name}'
    assert searcher.search(query, 1).mended == (True, False, None)
    assert searcher.search(query, 1, gate=False).mended == (True, True, None)
    assert searcher.search(query, 1, strength=0).mended == (None, None, None)
    assert Searcher(stack.gallery, stack.encoder).search(query, 1).mended == (None, None, None)
    answer = searcher.search(query, 1)
    assert [term["mended"] for term in answer_json(answer, query)["terms"]] == [True, False, None]
    assert searcher.search("name:*.png", 1).mended == ()


def test_an_image_among_the_terms(stack: Stack) -> None:
    """An indexed image, named by its path, its id or its file, finds itself first."""
    searcher = Searcher(stack.gallery, stack.encoder, stack.mended)
    name = Path(stack.presence.images[5]).name
    file = stack.home / "images" / name
    for text in (f"like:{name}", f'image:"{file}"', f'image:"{file}" - 0.1 "a picture without a cat"'):
        (hit,) = searcher.search(text, 1).hits
        assert (hit.item.path, hit.file) == (name, file)
    (hit,) = searcher.search(f"like:{hit.id}", 1).hits
    assert hit.item.path == name
    assert hit.score == pytest.approx(1, abs=1e-5)
