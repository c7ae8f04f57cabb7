"""What a training step samples from annotated data."""

from __future__ import annotations

import numpy as np
import torch

from clipmend.data.records import Caption, NegationData, Question
from clipmend.negation.features import TextFeatures, extract_text_features
from clipmend.negation.sampling import Source, one_sided
from helpers import RandomDualEncoder


def features_of(texts: list[str]) -> TextFeatures:
    return extract_text_features(RandomDualEncoder(), texts, anchor=1, peak=2, scn_layers=(2, RandomDualEncoder().num_text_layers))


def test_captions_that_teach_what_can_be_denied_are_left_out() -> None:
    captions = [
        Caption("a cat but no dog", 0, "hybrid", ("cat",), ("dog",), "no"),  # no caption denies a cat
        Caption("a red dog but no cup", 0, "hybrid", ("dog", "red dog"), ("cup",), "no"),
        Caption("two dogs at the beach, no cup", 0, "hybrid", ("dog", "two dogs", "at beach"), ("cup",), "no"),
        Caption("no dog", 0, "negative", (), ("dog",), "no"),
        Caption("a cat", 0, "affirmative", ("cat",)),
    ]
    assert one_sided(captions) == {0}
    data = NegationData(["0", "1"], [frozenset({"cat"}), frozenset({"dog"})], captions, [])
    texts = [c.text for c in captions]
    source = Source(data, torch.eye(2), features_of(texts), balanced=True)
    assert 0 not in source.negated[0]
    assert 0 not in source.deniers["dog"]
    assert 0 in Source(data, torch.eye(2), features_of(texts)).negated[0]


def test_questions_come_in_equal_parts_of_each_form() -> None:
    captions = [Caption(f"text {k}", -1, "affirmative", ("cat",)) for k in range(3)]
    templates = ["affirmative"] * 40 + ["negative"] * 4 + ["hybrid"] * 10
    questions = [Question(k % 2, (0, 1, 2), 0, template) for k, template in enumerate(templates)]
    data = NegationData(["0", "1"], [frozenset({"cat"}), frozenset()], captions, questions)
    source = Source(data, torch.eye(2), features_of([c.text for c in captions]))
    for seed in range(20):
        images, options, answers = source.question_batch(np.random.default_rng(seed), 12)
        assert len(images) == len(options) == len(answers) == 12
    assert source.question_batch(np.random.default_rng(0), 30)[0].shape[0] == 10 + 4 + 10  # a form with fewer gives all it has
