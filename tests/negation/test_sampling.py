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
        Caption("a dog", 1, "affirmative", ("dog",)),
    ]
    assert one_sided(captions) == {0, 4}
    assert one_sided([*captions[:5], Caption("a hat", 0, "affirmative", ("hat",))]) == {0}  # no affirmative one would be left
    data = NegationData(["0", "1"], [frozenset({"cat"}), frozenset({"dog"})], captions, [])
    texts = [c.text for c in captions]
    source = Source(data, torch.eye(2), features_of(texts), balanced=True)
    assert 0 not in source.negated[0]
    assert 0 not in source.deniers["dog"]
    assert 0 in Source(data, torch.eye(2), features_of(texts)).negated[0]


def test_half_of_the_questions_come_in_equal_parts_and_half_are_new() -> None:
    kinds = ["cat", "dog", "cup", "hat"]
    captions = [Caption(f"a {kind}", k, "affirmative", (kind,)) for k, kind in enumerate(kinds)]
    captions += [Caption(f"no {kind}", -1, "negative", (), (kind,), "no") for kind in kinds]
    captions += [Caption(f"there is no {kinds[k - 1]}", k, "negative", (), (kinds[k - 1],), "no") for k in range(4)]
    captions += [Caption("a cat and a dog", -1, "affirmative", ("cat", "dog"))]
    facts = [frozenset({kind}) for kind in kinds]
    asked = [Question(0, (0, 1, 2), 0, "affirmative")] * 30 + [Question(1, (4, 5), 0, "negative")] * 3
    data = NegationData(kinds, facts, captions, asked)
    source = Source(data, torch.eye(4), features_of([c.text for c in captions]))
    truth = data.truth(range(4), range(len(captions)))
    seen = set()
    for seed in range(30):
        images, options, answers = source.question_batch(np.random.default_rng(seed), 12)
        assert images.shape[0] == len(options) == len(answers)
        assert options.shape[1] == 2  # the fewest of any question drawn
        assert len(options) == 3 + 3 + 4  # three of each form; new ones, at most one an image and here one for every image
        for vector, row, answer in zip(images, options.tolist(), answers.tolist(), strict=True):
            image = int(vector.argmax())
            assert truth[image, row[answer]] == 1
            assert all(truth[image, other] == -1 for k, other in enumerate(row) if k != answer)
            assert len({captions[k].form for k in row}) == 1
            seen.add((image, *row))
    assert len(seen) > 20
