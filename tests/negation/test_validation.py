"""Validation against a slow reference, question by question and caption by caption."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from clipmend.data.records import FALSE, TRUE, Caption, NegationData
from clipmend.negation.features import extract_text_features
from clipmend.negation.networks import ScoreCorrectionNetwork
from clipmend.negation.sampling import Source
from clipmend.negation.validation import Validation
from helpers import RandomDualEncoder, small_data

IMAGES = 60


@pytest.fixture(scope="module")
def source() -> Source:
    data = small_data(IMAGES)
    images = F.normalize(torch.from_numpy(np.random.default_rng(5).standard_normal((IMAGES, 16))).float(), dim=-1)
    texts = extract_text_features(RandomDualEncoder(), [c.text for c in data.captions], anchor=1, peak=2, scn_layers=(2, 4))
    return Source(data, images, texts)


def corrector(source: Source):
    """A fixed made-up correction, and how often each caption went through it."""
    generator = torch.Generator().manual_seed(1)
    moved = F.normalize(torch.randn(len(source.data.captions), 16, generator=generator), dim=-1)
    seen: list[int] = []

    def correct(rows: np.ndarray):
        seen.extend(rows.tolist())
        features = source.texts.batch(rows)
        return moved[rows], {"embedding": features["embedding"], "scn": features["scn"]}

    return correct, moved, seen


def test_every_number_equals_the_slow_reference(source: Source) -> None:
    validation = Validation(source, questions=40, queries=20, hybrids=40, plain=30)
    torch.manual_seed(0)
    scn = ScoreCorrectionNetwork(16, 2, context=8, bound=0.5).eval()
    for parameter in scn.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    correct, moved, seen = corrector(source)
    with torch.no_grad():
        found = validation.measure(correct, scn)
    assert len(seen) == len(set(seen)), "a caption is corrected once"
    right, right_ecn = 0, 0
    for image, row in zip(validation.asked_images.tolist(), validation.asked.tolist(), strict=True):
        cosine = moved[row] @ source.images[image]
        right_ecn += bool((cosine[0] > cosine[1:]).all())
        layers = source.texts.batch(np.asarray(row))["scn"].clone()
        layers[:, -1] = moved[row]
        with torch.no_grad():
            score = cosine + scn.correction(source.images[[image] * len(row)], layers)
        right += bool((score[0] > score[1:]).all())
    assert found["choice_ecn"] == pytest.approx(right_ecn / len(validation.asked))
    assert found["choice"] == pytest.approx(right / len(validation.asked))
    ranks = []
    for row in validation.hybrids.tolist():
        scores = source.images @ moved[row]
        ranks.append(int((scores >= scores[source.data.captions[row].image]).sum()))
    assert found["recall"] == pytest.approx(np.mean(np.asarray(ranks) <= 5))
    aurocs = []
    for row in validation.queries.tolist():
        truth = source.data.truth(range(IMAGES), [row])[:, 0]
        scores = (source.images @ moved[row]).numpy()
        aurocs.append(np.mean([t > f for t in scores[truth == TRUE] for f in scores[truth == FALSE]]))
    assert found["exclusion"] == pytest.approx(np.mean(aurocs), abs=1e-6)
    assert found["score"] == pytest.approx(
        np.mean([found["choice"], found["exclusion"], found["recall"]]) - max(0, 0.95 - found["kept"])
    )
    shares = [(found["choice"], len(validation.asked)), (found["recall"], len(ranks))]
    variance = sum(p * (1 - p) / n for p, n in shares) + np.var(aurocs) / len(aurocs)
    assert found["error"] == pytest.approx(np.sqrt(variance) / 3)
    with torch.no_grad():
        tried = validation.choice_by_bound(correct, scn, [0.5, 0.25])
    assert tried[0.5] == found["choice"]
    assert scn.bound == 0.25


def test_nothing_to_measure_scores_nothing() -> None:
    data = NegationData(["0"], [frozenset({"cat"})], [Caption("a cat", -1, "affirmative", ("cat",))], [])
    texts = extract_text_features(RandomDualEncoder(), ["a cat"], anchor=1, peak=2, scn_layers=(2, 4))
    empty = Validation(Source(data, torch.eye(1, 16), texts, chosen=np.zeros(0, np.int64)))
    assert not empty.asks
    assert empty.measure(lambda rows: (torch.empty(0), {}), None) == {}
