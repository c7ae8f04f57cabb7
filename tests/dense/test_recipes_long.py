"""Recipes long-clip and debias-clip: losses against slow ones, the PCA against numpy's, what is drawn, and whole trainings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPModel

import clipmend
from clipmend.data.sentences import split_sentences
from clipmend.dense import finetune, make_recipe
from clipmend.dense.batches import Preparer
from clipmend.dense.pairs import Pairs, as_pairs
from clipmend.dense.recipes import Example, Joined, Moment
from clipmend.dense.recipes.debias_clip import pad_front
from clipmend.dense.recipes.long_clip import principal_part, text_key
from dense import small_training as small

NOW = Moment(0, 10, 0.0)
BLANK = Image.new("RGB", (8, 8))
NAMES = ["long-clip", "debias-clip"]


def unit(generator: torch.Generator, *shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def batch(rows: int = 9, width: int = 7, seed: int = 0) -> Joined:
    generator = torch.Generator().manual_seed(seed)
    outputs = {
        "image": unit(generator, rows, width),
        "text": unit(generator, rows, width),
        "text/short": unit(generator, rows, width),
    }
    outputs["logit_scale"] = torch.tensor(6.0, dtype=torch.float64)
    ids = torch.arange(rows)
    return Joined(outputs, ids, ids, {}, {"short_key": torch.arange(rows) * 7}, unit(generator, rows, width))


def slow_pca(features: Tensor, components: int) -> Tensor:
    x = features.numpy()
    mean = x.mean(0)
    _, _, directions = np.linalg.svd(x - mean, full_matrices=False)
    found = np.zeros_like(x)
    for row in range(len(x)):
        found[row] = mean
        for k in range(min(components, len(directions))):
            found[row] += np.dot(x[row] - mean, directions[k]) * directions[k]
    return torch.from_numpy(found)


def slow(image: Tensor, text: Tensor, scale: Tensor, smoothing: float, gamma: float = 0.0, same: Tensor | None = None) -> Tensor:
    n = len(image)
    boost = gamma * (text @ text.T).detach()
    boost.fill_diagonal_(0)
    scores = scale * (image @ text.T + boost)
    if same is not None:
        scores = scores.masked_fill(same & ~torch.eye(n, dtype=torch.bool), -torch.inf)
    target = torch.arange(n)
    forth = F.cross_entropy(scores, target, label_smoothing=smoothing)
    return (forth + F.cross_entropy(scores.T, target, label_smoothing=smoothing)) / 2


# ---- the losses ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_both_terms(name: str, gamma: float) -> None:
    b = batch()
    terms = make_recipe(name, components=3, gamma=gamma).losses(b, NOW)
    assert list(terms) == ["global", "short"]
    assert_close(terms["global"], slow(b.image, b.text, b.scale, 0.1, gamma))
    short = slow(slow_pca(b.image, 3), b.outputs["text/short"], b.scale, 0.1)
    assert_close(terms["short"], short)  # the margin is the global term's alone
    assert_close(make_recipe(name, components=3, short_weight=0.25).losses(b, NOW)["short"], 0.25 * short)
    # Each mechanism, switched off, changes the result.
    without = make_recipe(name, components=0).losses(b, NOW)["short"]
    assert_close(without, slow(b.image, b.outputs["text/short"], b.scale, 0.1))
    assert abs(without - terms["short"]) > 1e-3
    assert abs(make_recipe(name, components=3, label_smoothing=0.0).losses(b, NOW)["short"] - terms["short"]) > 1e-3
    assert abs(make_recipe(name, gamma=0.5 - gamma).losses(b, NOW)["global"] - terms["global"]) > 1e-3
    assert list(make_recipe(name, short_weight=0.0).losses(b, NOW)) == ["global"]


def test_a_frozen_margin_is_of_the_whole_captions() -> None:
    b = batch()
    live, frozen = (make_recipe("long-clip", gamma=0.5, margin=m, components=3).losses(b, NOW) for m in ("live", "frozen"))
    assert abs(live["global"] - frozen["global"]) > 1e-4
    assert_close(live["short"], frozen["short"])


def test_a_short_caption_that_two_images_share_is_no_negative() -> None:
    b = batch()
    b.numbers["short_key"][4] = b.numbers["short_key"][2]
    same = b.numbers["short_key"][:, None] == b.numbers["short_key"]
    found = make_recipe("long-clip", components=3, label_smoothing=0.0).losses(b, NOW)
    image = slow_pca(b.image, 3)
    assert_close(found["short"], slow(image, b.outputs["text/short"], b.scale, 0.0, same=same))
    assert abs(found["short"] - slow(image, b.outputs["text/short"], b.scale, 0.0)) > 1e-3
    assert_close(found["global"], slow(b.image, b.text, b.scale, 0.0))
    assert text_key("a dog") == text_key("a dog") != text_key("a dog ")
    assert text_key("\udcff \U0001f436").dtype == np.int64


def test_a_siglip_s_own_loss_takes_the_place_of_both() -> None:
    b = batch()
    b.outputs["logit_bias"] = torch.tensor(-2.0, dtype=torch.float64)
    signs = 2 * torch.eye(9, dtype=torch.float64) - 1
    terms = make_recipe("long-clip", components=3, fixed_positions=0).losses(b, NOW)
    for name, image, text in (("global", b.image, b.text), ("short", slow_pca(b.image, 3), b.outputs["text/short"])):
        assert_close(terms[name], -F.logsigmoid(signs * (b.scale * image @ text.T - 2.0)).sum() / 9)


# ---- the PCA ------------------------------------------------------------------------------------------------------------------


def test_pca_is_numpy_s() -> None:
    features = unit(torch.Generator().manual_seed(3), 70, 48)
    found = principal_part(features, 32)
    assert_close(found, slow_pca(features, 32))
    assert (found - features).abs().max() > 1e-2
    assert_close(principal_part(features.float(), 32), found.float(), atol=1e-5, rtol=1e-4)


def test_pca_of_33_pairs_or_fewer_does_nothing_and_says_so() -> None:
    features = unit(torch.Generator().manual_seed(3), 34, 48)
    assert_close(slow_pca(features[:33], 32), features[:33])
    assert torch.equal(principal_part(features[:33], 32), features[:33])
    assert (principal_part(features, 32) - features).abs().max() > 1e-3
    recipe = make_recipe("long-clip")
    assert recipe.notes(33) == []
    (note,) = recipe.notes(32)
    assert "33 pairs a batch" in note
    assert "choose a batch_size above 33" in note
    assert make_recipe("long-clip", components=0).notes(2) == make_recipe("long-clip", short_weight=0.0).notes(2) == []
    for name in NAMES:
        assert make_recipe(name, components=4).notes(4)
        assert not make_recipe(name, components=4).notes(5)


def test_the_gradient_of_the_pca_is_finite_and_that_of_a_given_projection() -> None:
    features = unit(torch.Generator().manual_seed(5), 12, 8)
    features[3] = features[7]  # equal singular values would be in the way of a gradient through the directions
    given = features.clone().requires_grad_()
    weights = unit(torch.Generator().manual_seed(6), 12, 8)
    (principal_part(given, 3) * weights).sum().backward()
    _, _, v = torch.linalg.svd(features - features.mean(0), full_matrices=False)
    projection = v[:3].T @ v[:3]
    wanted = (weights - weights.mean(0)) @ projection + weights.mean(0)
    assert given.grad is not None
    assert_close(given.grad, wanted)


def test_features_that_are_not_finite_are_left_to_the_trainer() -> None:
    features = unit(torch.Generator().manual_seed(3), 40, 36)
    features[0, 0] = torch.nan
    assert principal_part(features, 32).isnan().any()


# ---- the texts ----------------------------------------------------------------------------------------------------------------


def test_the_short_caption_is_the_data_s_or_the_first_sentence() -> None:
    recipe = make_recipe("long-clip")
    rng = np.random.default_rng(0)
    texts = lambda **given: recipe.views(Example(0, BLANK, "A dog, e.g. a pug. It runs.", **given), rng).texts  # noqa: E731
    assert texts() == texts(short=" ") == {"short": "A dog, e.g. a pug."}
    assert texts(short="a pug") == {"short": "a pug"}
    assert make_recipe("long-clip", short_weight=0.0).views(Example(0, BLANK, "A dog."), rng).texts == {}


SENTENCES = ["A summary.", "One dog.", "Two cats.", "Three birds.", "Four fish."]


def drawn(caption: str, seed: int = 0, **fields: Any) -> str:
    example = Example(0, BLANK, caption, short="not used")
    return str(make_recipe("debias-clip", **fields).views(example, np.random.default_rng(seed)).texts["short"])


def test_without_the_summary_fewer_and_in_another_order() -> None:
    caption = " ".join(SENTENCES)
    found = [split_sentences(drawn(caption, seed)) for seed in range(200)]
    assert {sentence for text in found for sentence in text} == set(SENTENCES[1:])
    assert all(len(set(text)) == len(text) for text in found)
    counts = np.bincount([len(text) for text in found], minlength=5)
    assert (counts[1:5] > 25).all()
    assert counts[0] == 0
    assert sum(text != sorted(text, key=SENTENCES.index) for text in found) > 50
    assert len({tuple(text) for text in found if len(text) == 4}) > 10
    # One mechanism at a time, switched off.
    assert drawn(caption, sample=False, permute=False) == " ".join(SENTENCES[1:])
    assert drawn(caption, sample=False, permute=False, drop_summary=False) == caption
    assert sorted(split_sentences(drawn(caption, sample=False))) == sorted(SENTENCES[1:])
    kept = [split_sentences(drawn(caption, seed, permute=False)) for seed in range(30)]
    assert all(text == sorted(text, key=SENTENCES.index) for text in kept)
    assert len({len(text) for text in kept}) == 4


def test_captions_of_one_sentence_and_of_none() -> None:
    assert drawn("A dog runs") == drawn("A dog runs", drop_summary=False) == "A dog runs"
    assert drawn("A dog runs. It barks") == "It barks"
    assert drawn("") == drawn("  ") == ""


def test_how_many_captions_have_one_sentence_is_told() -> None:
    (note,) = make_recipe("debias-clip").check(paragraphs(8))
    assert note.startswith("2 of 8 captions (25.0%) have one sentence")
    assert make_recipe("debias-clip", drop_summary=False).check(paragraphs(8)) == []
    assert make_recipe("long-clip").check(paragraphs(8)) == []


def test_padding_in_front() -> None:
    ids = [98, 5, 6, 99]  # CLIP's: the end token is the one behind the start token
    assert pad_front(ids, 2, 99) == [98, 0, 0, 5, 6, 99]  # an end token in front would be taken for the end
    assert pad_front(ids, 2, 7) == [98, 7, 7, 5, 6, 99]
    assert pad_front([5, 6, 1], 2, 0) == [0, 0, 5, 6, 1]  # SigLIP's have no start token
    assert pad_front(ids, 0, 99) == ids
    assert pad_front([3], 1, 3) == [0, 3]
    recipe = make_recipe("debias-clip")
    lengths = [len(recipe.token_ids("text/short", ids, 10, 99, np.random.default_rng(seed))) for seed in range(200)]
    assert set(lengths) == set(range(4, 11))
    assert recipe.token_ids("text", ids, 10, 99, np.random.default_rng(0)) is ids  # the whole caption stays
    assert recipe.token_ids("text/short", ids, 4, 99, np.random.default_rng(0)) == ids
    half = make_recipe("debias-clip", padding=0.5)
    assert max(len(half.token_ids("text/short", ids, 10, 99, np.random.default_rng(seed))) for seed in range(50)) == 7
    assert make_recipe("debias-clip", padding=0.0).token_ids("text/short", ids, 10, 99, np.random.default_rng(0)) is ids
    assert make_recipe("long-clip").token_ids("text/short", ids, 10, 99, np.random.default_rng(0)) is ids


# ---- whole trainings ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "clip")


def paragraphs(count: int = 24) -> Pairs:
    """Two or three short sentences each; every fourth caption has one."""
    found = []
    for k, (picture, caption) in enumerate(small.items(count)):
        found.append((picture, caption if k % 4 == 0 else f"cat. {small.COLOURS[k % 12]}. dog {k}"))
    return as_pairs(found)


def examples(clip: str, seed: int, step: int, row: int) -> list[int]:
    encoder = clipmend.load(clip, device="cpu")
    preparer = Preparer(encoder, paragraphs(), make_recipe("debias-clip"), whole_length=False, seed=seed)
    found: list[int] = preparer.example(step, row)["text/short"]
    return found


def test_what_is_drawn_depends_on_seed_step_and_row_alone(clip: str) -> None:
    first = examples(clip, 0, 3, 1)
    assert examples(clip, 0, 3, 1) == first
    others = [examples(clip, *where) for where in [(1, 3, 1), (0, 4, 1), (0, 5, 1), (0, 3, 2), (0, 3, 5)]]
    assert all(other != first for other in others)


def test_a_text_padded_in_front_is_read_at_its_own_end(clip: str) -> None:
    encoder: Any = clipmend.load(clip, device="cpu")
    tokens = encoder.tower.tokens
    ids = tokens(["a dog"]).ids[0]
    padded = pad_front(ids, 6, tokens.pad_id)
    with torch.no_grad():
        out = encoder.model.text_model(input_ids=torch.tensor([padded]))
    assert_close(out.pooler_output[0], out.last_hidden_state[0, len(padded) - 1])
    assert padded[0] == ids[0]
    assert padded[7:] == ids[1:]


def weights_after(clip: str, name: str, data: Pairs, fields: dict[str, Any], **values: Any) -> dict[str, Tensor]:
    settings = small.config(name, fields, steps=3, choose="last", **values)
    return small.weights(finetune(clip, data, settings, device="cpu").model)


@pytest.mark.parametrize("name", NAMES)
def test_end_to_end(name: str, clip: str, tmp_path: Path) -> None:
    told: list[str] = []
    data = paragraphs()
    settings = small.config(name, {"components": 3}, steps=3, choose="last")
    done = finetune(clip, data, settings, directory=tmp_path / "work", device="cpu", on_start=told.extend)
    assert not any("does nothing" in note for note in told)
    before, after = small.weights(CLIPModel.from_pretrained(clip)), small.weights(done.model)
    table = "text_model.embeddings.position_embedding.weight"
    assert torch.equal(before[table][:20], after[table][:20])
    assert (before[table][20:] - after[table][20:]).abs().max() > 1e-6
    assert not torch.equal(before["visual_projection.weight"], after["visual_projection.weight"])
    opened = small.weights(CLIPModel.from_pretrained(done.save(tmp_path / "out")))
    assert all(torch.equal(opened[key], after[key]) for key in after)
    # One batch in three pieces gives the same: the PCA is of all of it.
    pieces = weights_after(clip, name, data, {"components": 3}, micro_batches=3)
    for key, value in after.items():
        assert_close(pieces[key], value, atol=3e-5, rtol=1e-4)
    for off in ({"components": 0}, {"components": 3, "short_weight": 0.0}):
        other = weights_after(clip, name, data, off)
        assert max(float((other[key] - after[key]).abs().max()) for key in after) > 1e-4


def test_the_inert_pca_is_told_of(clip: str) -> None:
    told: list[str] = []
    finetune(clip, small.pairs(), small.config("long-clip", steps=1), device="cpu", on_start=told.extend)
    assert any("8 pairs a batch are put together again exactly from 32 directions" in note for note in told)


def test_short_captions_of_the_data_are_used(clip: str) -> None:
    data = small.pairs()
    short: NDArray[Any] = np.array([f"dog {k}" for k in range(len(data))], dtype=object)
    data.short = list(short)
    plain = weights_after(clip, "long-clip", small.pairs(), {"components": 3})
    given = weights_after(clip, "long-clip", data, {"components": 3})
    assert max(float((plain[key] - given[key]).abs().max()) for key in plain) > 1e-4


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"short_weight": -1.0}, "short_weight is -1.0"),
        ({"components": -1}, "components is -1"),
        ({"global_loss": "sigmoid"}, "label_smoothing is of the softmax loss"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], said: str) -> None:
    for name in NAMES:
        with pytest.raises(ValueError, match=said):
            make_recipe(name, **fields)


def test_padding_is_a_share() -> None:
    for value in (-0.1, 1.5):
        with pytest.raises(ValueError, match="padding is"):
            make_recipe("debias-clip", padding=value)


def test_positions_that_cannot_be_held_fixed(clip: str, tmp_path: Path) -> None:
    siglip = small.siglip_folder(tmp_path / "siglip")
    with pytest.raises(ValueError, match="long-clip holds the first 20 positions fixed; say fixed_positions=0: SiglipModel"):
        finetune(siglip, small.pairs(), small.config("long-clip", steps=1), device="cpu")
    finetune(siglip, small.pairs(), small.config("debias-clip", {"fixed_positions": 0, "components": 3}, steps=1), device="cpu")
    with pytest.raises(ValueError, match="the text side is frozen"):
        finetune(clip, small.pairs(), small.config("long-clip", steps=1, freeze="text"), device="cpu")
    with pytest.raises(ValueError, match="or fewer than the 40 there are"):
        finetune(clip, small.pairs(), small.config("long-clip", {"fixed_positions": 41}, steps=1), device="cpu")
