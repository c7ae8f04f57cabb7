"""Sampling, text-only sets, validation, and a whole small fit: determinism, resume, what is kept frozen."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from clipmend.data.nouns import load_nouns
from clipmend.data.records import FALSE, TRUE, NegationData, Question
from clipmend.data.scenes.wordings import RESERVED_PATTERN
from clipmend.negation import PeakPatchConfig
from clipmend.negation.features import extract_text_features
from clipmend.negation.guidance import guidance_targets
from clipmend.negation.sampling import Source, split_images
from clipmend.negation.text_only import text_only_captions, text_only_data
from clipmend.negation.training import fit
from clipmend.negation.validation import auroc
from helpers import RandomDualEncoder, small_data

TINY = PeakPatchConfig(
    anchor=1, peak=2, scn_layers=(2, 4), hidden=16, heads=4, context=8, steps=6, eval_every=3, batch_size=12, question_batch=8,
    text_only_sets=192, text_only_batch=8, warmup_steps=2, validation_fraction=0.2,
)  # fmt: skip


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder()


@pytest.fixture
def embeddings() -> torch.Tensor:
    return F.normalize(torch.from_numpy(np.random.default_rng(5).standard_normal((40, 16))).float(), dim=-1)


def source_of(encoder, data, embeddings, **options) -> Source:
    texts = extract_text_features(encoder, [c.text for c in data.captions], anchor=1, peak=2, scn_layers=(2, 4))
    return Source(data, embeddings, texts, **options)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000))
def test_every_batch_is_consistent_with_the_annotation(seed):
    encoder, data = RandomDualEncoder(), small_data()
    embeddings = F.normalize(torch.from_numpy(np.random.default_rng(5).standard_normal((40, 16))).float(), dim=-1)
    source = source_of(encoder, data, embeddings, chosen=np.arange(30))
    batch = source.batch(np.random.default_rng(seed), 10)
    assert len(set(batch.captions.tolist())) == len(batch.captions)
    where = [int((embeddings == v).all(1).nonzero()[0]) for v in batch.images]
    assert max(where) < 30
    for column, row in enumerate(batch.captions.tolist()):
        caption = data.captions[row]
        assert caption.image < 30
        assert batch.plain[column] == (not caption.denies)
        for line, image in enumerate(where):
            holds = set(caption.asserts) <= data.facts[image] and not set(caption.denies) & data.facts[image]
            assert batch.truth[line, column].item() == (TRUE if holds else FALSE)
        own = batch.own[column].item()
        assert own == -1 or batch.truth[own, column].item() == TRUE
        if caption.image in where:
            assert own == where.index(caption.image)
    for line, image in enumerate(where):  # every image meets a caption that denies something it shows
        assert any(set(data.captions[row].denies) & data.facts[image] for row in batch.captions), line


def test_questions_come_shuffled_with_the_right_answer(encoder, embeddings):
    data = small_data()
    source = source_of(encoder, data, embeddings)
    _, options, answers = source.question_batch(np.random.default_rng(0), 40)
    assert len(set(answers.tolist())) == 4
    for row, answer in zip(options, answers.tolist(), strict=True):
        image = data.captions[row[answer]].image
        assert data.truth([image], row.tolist())[0].tolist().count(TRUE) == 1


def test_embeddings_that_are_not_finite_are_named(encoder, embeddings):
    embeddings[7, 3] = float("nan")
    with pytest.raises(ValueError, match=r"image 7 \(7\.png\)"):
        source_of(encoder, small_data(), embeddings)


def test_split_is_disjoint_and_fixed():
    train, held = split_images(100, 0.2, seed=3)
    assert len(held) == 20
    assert not set(train) & set(held)
    assert np.array_equal(held, split_images(100, 0.2, seed=3)[1])


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 500), count=st.integers(1, 40))
def test_text_only_captions_say_what_they_claim(seed, count):
    import re

    data, groups = text_only_captions(load_nouns(), count, seed)
    assert len(data.facts) == len(groups) == count
    for caption in data.captions:
        assert not re.search(RESERVED_PATTERN, caption.text, re.IGNORECASE), caption.text
        assert "{" not in caption.text
        if caption.image >= 0:
            here = data.facts[caption.image]
            assert set(caption.asserts) <= here
            assert not set(caption.denies) & here
    for question in data.questions:
        truth = data.truth([question.image], list(question.options))[0].tolist()
        assert truth[question.answer] == TRUE
        assert truth.count(FALSE) == 3


def test_text_only_leaves_out_excluded_nouns_and_is_seeded(encoder):
    data, stand_ins, _ = text_only_data(encoder, None, count=200, seed=1, exclude=("dog", "boat"))
    words = {word for c in data.captions for atom in (*c.asserts, *c.denies) for word in atom.split()}
    assert not [w for w in words if w.endswith(("dog", "boat"))]
    again, same, _ = text_only_data(encoder, None, count=200, seed=1, exclude=("dog", "boat"))
    assert [c.text for c in data.captions] == [c.text for c in again.captions]
    assert torch.equal(stand_ins, same)
    with pytest.raises(ValueError, match="at least 8 nouns"):
        text_only_data(encoder, ["cat", "dog"], count=10)


def test_stand_ins_move_to_the_image_mean(encoder):
    mean = torch.zeros(16)
    mean[0] = 3.0
    _, stand_ins, _ = text_only_data(encoder, None, count=96, seed=0, image_mean=mean)
    assert stand_ins.mean(0)[0] > 0.8


def test_unknown_nouns_get_a_plural(encoder):
    names = ["gizmo", "box", "fairy", "toy", "cat", "brush", "quux", "wug"]
    data, _, _ = text_only_data(encoder, names, count=96, seed=0)
    assert {a for c in data.captions for a in c.denies} == set(names)
    assert any("brushes" in c.text for c in data.captions)


def test_given_nouns_may_be_plurals_and_have_plurals_of_their_own(encoder):
    names = ["dogs", "dog", "moon wolf", "gravel", "box", "fairy", "toy", "brush", "quux"]
    data, _, _ = text_only_data(encoder, names, count=200, seed=0)
    assert {a for c in data.captions for a in c.denies} == {"dog", "moon wolf", "gravel", "box", "fairy", "toy", "brush", "quux"}
    texts = " ".join(c.text for c in data.captions)
    assert "moon wolves" in texts
    assert "wolfs" not in texts
    assert "gravels" not in texts


def test_auroc_equals_the_pairwise_count():
    rng = np.random.default_rng(0)
    positive, negative = torch.from_numpy(rng.integers(0, 5, 30)).float(), torch.from_numpy(rng.integers(0, 5, 20)).float()
    pairs = (positive[:, None] > negative).double() + 0.5 * (positive[:, None] == negative).double()
    assert auroc(positive, negative) == pytest.approx(pairs.mean().item())
    assert np.isnan(auroc(positive, negative[:0]))


def weights_of(patch) -> list[torch.Tensor]:
    return [p.detach().clone() for network in (patch.ecn, patch.scn) for p in network.parameters()]


@pytest.mark.parametrize("objective", ["truthful", "released"])
def test_fit_is_deterministic_and_leaves_the_backbone(encoder, embeddings, objective):
    config = replace(TINY, objective=objective)
    before = encoder.fingerprint
    one = fit(encoder, small_data(), config, image_embeddings=embeddings)
    torch.manual_seed(99)  # the global generator plays no part
    two = fit(encoder, small_data(), config, image_embeddings=embeddings)
    assert all(torch.equal(a, b) for a, b in zip(weights_of(one), weights_of(two), strict=True))
    assert RandomDualEncoder().fingerprint == before == encoder.fingerprint
    mended = one.apply(encoder)
    assert mended.encode_texts(["a cat but no dog"]).shape == (1, 16)
    assert one.metrics["best_step"] in (3, 6)
    assert {"images/choice", "images/exclusion", "score"} <= set(one.metrics["validation"])


def test_text_only_fit_needs_no_image(encoder):
    patch = fit(encoder, config=replace(TINY, text_only_sets=480))
    assert patch.metrics["images"] == 0
    assert patch.metrics["text_only_sets"] > 0
    assert encoder.image_passes == 0


def test_images_only_fit(encoder, embeddings):
    patch = fit(encoder, small_data(), replace(TINY, text_only_weight=0.0, use_scn=False), image_embeddings=embeddings)
    assert patch.metrics["text_only_sets"] == 0
    assert patch.scn is None


@pytest.mark.parametrize("stop_after", [1, 3, 5])
def test_a_killed_fit_resumes_to_the_same_weights(encoder, embeddings, tmp_path, monkeypatch, stop_after):
    from clipmend.negation import training

    config = replace(TINY, eval_every=2, pretrain_steps=1)
    whole = fit(encoder, small_data(), config, image_embeddings=embeddings, directory=tmp_path / "whole")
    calls = 0
    truthful = training._Run.losses

    def dies(self, rng, progress=0.0):
        nonlocal calls
        calls += 1
        if calls > stop_after:
            raise KeyboardInterrupt
        return truthful(self, rng, progress)

    monkeypatch.setattr(training._Run, "losses", dies)
    with pytest.raises(KeyboardInterrupt):
        fit(encoder, small_data(), config, image_embeddings=embeddings, directory=tmp_path / "killed")
    monkeypatch.undo()
    resumed = fit(encoder, small_data(), config, image_embeddings=embeddings, directory=tmp_path / "killed")
    assert all(torch.equal(a, b) for a, b in zip(weights_of(whole), weights_of(resumed), strict=True))
    assert whole.metrics["history"] == resumed.metrics["history"]


def test_a_checkpoint_of_another_fit_is_refused(encoder, embeddings, tmp_path):
    fit(encoder, small_data(), TINY, image_embeddings=embeddings, directory=tmp_path)
    with pytest.raises(ValueError, match="another configuration"):
        fit(encoder, small_data(), replace(TINY, bound=0.3), image_embeddings=embeddings, directory=tmp_path)
    (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read"):
        fit(encoder, small_data(), TINY, image_embeddings=embeddings, directory=tmp_path)


def test_data_without_negation_is_refused(encoder, embeddings):
    data = small_data()
    plain = NegationData(data.images, data.facts, [c for c in data.captions if not c.denies], name="plain")
    with pytest.raises(ValueError, match="not one caption denies"):
        fit(encoder, plain, TINY, image_embeddings=embeddings)


def test_learning_happens(encoder):
    """A planted world: images are the backbone's embeddings of what they show, so negation can be learned from them."""
    data = small_data(120, seed=2)
    shown = [f"a photo of a {' and a '.join(sorted(f))}" for f in data.facts]
    images = encoder.encode_texts(shown)
    config = replace(TINY, steps=150, eval_every=50, batch_size=48, hidden=64, text_only_weight=0.0, logit_scale=30.0)
    history = fit(encoder, data, config, image_embeddings=images).metrics["history"]
    untrained = fit(encoder, data, replace(config, steps=1), image_embeddings=images).metrics["history"][0]
    assert max(entry["images/choice"] for entry in history) > untrained["images/choice"] + 0.2


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("objective", ["truthful", "released"])
@pytest.mark.parametrize("held", [0.1, 0.99])
def test_a_handful_of_images_trains(encoder, count, objective, held):
    config = replace(TINY, steps=1, objective=objective, text_only_weight=0.0, validation_fraction=held, batch_size=500)
    patch = fit(encoder, small_data(count), config, image_embeddings=torch.eye(16)[:count])
    assert patch.metrics["images"] >= 1
    assert all(torch.isfinite(p).all() for p in weights_of(patch))


@pytest.mark.parametrize("with_data", [True, False])
@pytest.mark.parametrize("bad", [torch.ones(40, 8), torch.ones(16), torch.ones(0, 16)])
def test_image_embeddings_of_another_shape_are_refused(encoder, bad, with_data):
    with pytest.raises(ValueError, match=r"image embeddings must be \[images, 16\] for random"):
        fit(encoder, small_data() if with_data else None, TINY, image_embeddings=bad)


def test_image_embeddings_may_be_an_array(encoder, embeddings):
    config = replace(TINY, steps=1, text_only_weight=0.0)
    one, two = (fit(encoder, small_data(), config, image_embeddings=e) for e in (embeddings, embeddings.numpy()))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(one), weights_of(two), strict=True))


def test_images_that_are_not_finite_tell_no_mean(encoder, embeddings):
    embeddings[3, 0] = float("nan")
    with pytest.raises(ValueError, match=r"^image_embeddings: the embedding of image 3 holds NaN"):
        fit(encoder, None, TINY, image_embeddings=embeddings)


@pytest.mark.parametrize("image", [-1, 40])
def test_questions_about_no_image_are_refused(image):
    data = small_data()
    with pytest.raises(ValueError, match=rf"question 0 names image {image} of 40"):
        NegationData(data.images, data.facts, data.captions, [Question(image, (0, 1), 0, "affirmative")], name="asked")


@pytest.mark.parametrize("name", ["text-only", "../outside"])
def test_the_name_of_the_data_is_no_place(encoder, embeddings, tmp_path, name):
    data = small_data()
    data.name = name
    fit(encoder, data, replace(TINY, steps=1), image_embeddings=embeddings, directory=tmp_path / "work")
    assert [p.name for p in tmp_path.iterdir()] == ["work"]
    kept = list((tmp_path / "work" / "features").iterdir())
    assert sorted(p.name for p in kept if p.is_dir()) == ["captions", "captions-borrowed", "text-only-texts"]
    assert all(p.name.startswith(("captions-guidance-", "text-only-texts-guidance-")) for p in kept if p.is_file())


@pytest.mark.parametrize(
    ("scores", "kept"),
    [((0.5, 0.9, 0.895), 3), ((0.5, 0.9, 0.88), 2), ((0.9, 0.895, 0.889), 2), ((0.9, 0.8, 0.85), 1), ((0.1, 0.2, 0.3), 3)],
)
def test_the_latest_state_not_clearly_worse_than_the_best_is_kept(encoder, embeddings, monkeypatch, scores, kept):
    from clipmend.negation import training

    given = iter(scores)
    monkeypatch.setattr(training._Run, "validate", lambda self: {"score": next(given), "error": 0.01})
    config = replace(TINY, steps=3, eval_every=1, text_only_weight=0.0)
    assert fit(encoder, small_data(), config, image_embeddings=embeddings).metrics["best_step"] == kept


def test_guidance_is_computed_once_for_a_directory(encoder, embeddings, tmp_path, monkeypatch):
    first = fit(encoder, small_data(), replace(TINY, steps=2), image_embeddings=embeddings, directory=tmp_path)
    (tmp_path / "checkpoint.pt").unlink()
    asked = []
    monkeypatch.setattr("clipmend.negation.guidance.guidance_targets", lambda *a: asked.append(a) or guidance_targets(*a))
    again = fit(encoder, small_data(), replace(TINY, steps=2), image_embeddings=embeddings, directory=tmp_path)
    assert not asked
    assert all(torch.equal(a, b) for a, b in zip(first.ecn.parameters(), again.ecn.parameters(), strict=True))
    (tmp_path / "checkpoint.pt").unlink()
    fit(encoder, small_data(), replace(TINY, steps=1, guidance_strength=0.1), image_embeddings=embeddings, directory=tmp_path)
    assert len(asked) == 1  # the images' captions anew, the noun sets' as they were


@pytest.mark.parametrize("content", [{"step": 1}, [1, 2]])
def test_what_is_no_checkpoint_is_refused(encoder, embeddings, tmp_path, content):
    torch.save(content, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="is no checkpoint of a fit"):
        fit(encoder, small_data(), replace(TINY, text_only_weight=0.0), image_embeddings=embeddings, directory=tmp_path)


@pytest.mark.parametrize("nouns", ["a long string", [1] * 9])
def test_nouns_are_words(encoder, nouns):
    with pytest.raises(ValueError, match="nouns are a list of words"):
        text_only_data(encoder, nouns, count=4)


def test_progress_shows_on_a_terminal_unless_refused(encoder, embeddings, monkeypatch):
    """By default too: a fit in Python takes minutes, and a terminal that says nothing for so long looks dead."""
    from clipmend.negation import training

    bars = []

    @contextmanager
    def bar(description, total, show, start=0):
        bars.append(show)
        yield lambda step, losses: None

    monkeypatch.setattr(training, "training_bar", bar)
    fit(encoder, small_data(), replace(TINY, steps=1), image_embeddings=embeddings)
    fit(encoder, small_data(), replace(TINY, steps=1), image_embeddings=embeddings, progress=False)
    assert bars == [True, False]
