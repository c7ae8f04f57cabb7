"""Recipe finelip: hinge and relevance against slow ones, aggregators, and a whole training with its own score."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPModel

import clipmend
from clipmend.dense import finetune, make_recipe
from clipmend.dense.recipes import Joined, Moment
from clipmend.dense.recipes.finelip import TokenAggregator, TokenAggregators, finelip_scores, relevance
from clipmend.dense.towers import Towers
from dense import small_training as small

NOW = Moment(0, 10, 0.0)


def unit(generator: torch.Generator, *shape: int) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def batch(rows: int = 6, seed: int = 0) -> Joined:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"image": (5,), "text": (5,), "image_parts": (3, 5), "text_parts": (4, 5)}
    outputs = {name: unit(generator, rows, *shape) for name, shape in shapes.items()}
    outputs["logit_scale"] = torch.tensor(6.0, dtype=torch.float64)
    return Joined(outputs, torch.arange(rows), torch.arange(rows))


def bent(value: float, slope: float) -> float:
    return value if value > 0 else slope * value


def slow_relevance(images: Tensor, texts: Tensor, slope: float = 0.1) -> Tensor:
    found = torch.zeros(len(images), len(texts), dtype=torch.float64)
    for i in range(len(images)):
        for j in range(len(texts)):
            cosines = [[bent(float(p @ w), slope) for w in texts[j]] for p in images[i]]
            by_patch = [max(row) for row in cosines]
            by_word = [max(column) for column in zip(*cosines, strict=True)]
            found[i, j] = sum(by_patch) / len(by_patch) + sum(by_word) / len(by_word)
    return found


def slow_hinge(b: Joined, hinge: float = 0.2, slope: float = 0.1) -> Tensor:
    scores = slow_relevance(b.outputs["image_parts"], b.outputs["text_parts"], slope)
    total, n = 0.0, len(scores)
    for i in range(n):
        for j in range(n):
            if b.image_ids[i] == b.image_ids[j] or b.caption_ids[i] == b.caption_ids[j]:
                continue
            total += max(0.0, hinge + float(scores[i, j] - scores[i, i])) + max(0.0, hinge + float(scores[j, i] - scores[i, i]))
    return torch.tensor(total / n, dtype=torch.float64)


def slow_softmax(b: Joined, gamma: float) -> Tensor:
    boost = gamma * (b.text @ b.text.T).fill_diagonal_(0)
    scores, target = b.scale * (b.image @ b.text.T + boost), torch.arange(len(b.image))
    return (F.cross_entropy(scores, target) + F.cross_entropy(scores.T, target)) / 2


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_both_terms(gamma: float) -> None:
    b = batch()
    terms = make_recipe("finelip", gamma=gamma).losses(b, NOW)
    assert_close(terms["global"], slow_softmax(b, gamma))
    assert_close(terms["relevance"], slow_hinge(b))
    assert terms["relevance"] > 0.1
    # Each of its numbers is used.
    for fields in ({"hinge": 0.5}, {"slope": 0.5}):
        other = make_recipe("finelip", **fields).losses(b, NOW)["relevance"]
        assert_close(other, slow_hinge(b, **fields))
        assert abs(other - terms["relevance"]) > 1e-4
    assert_close(make_recipe("finelip", relevance_weight=0.5).losses(b, NOW)["relevance"], 0.5 * terms["relevance"])
    assert_close(make_recipe("finelip", gamma=gamma, global_weight=0.5).losses(b, NOW)["global"], 0.5 * terms["global"])
    off = make_recipe("finelip", relevance_weight=0.0)
    assert list(off.losses(b, NOW)) == ["global"]
    assert not off.tokens()
    assert list(make_recipe("finelip", global_weight=0.0).losses(b, NOW)) == ["relevance"]


def test_repeated_ids_are_no_negatives() -> None:
    b = batch()
    whole = make_recipe("finelip").losses(b, NOW)["relevance"]
    b.image_ids[3] = 1
    one = make_recipe("finelip").losses(b, NOW)["relevance"]
    assert_close(one, slow_hinge(b))
    b.caption_ids[0] = 5
    both = make_recipe("finelip").losses(b, NOW)["relevance"]
    assert_close(both, slow_hinge(b))
    assert both < one < whole


def test_relevance_in_blocks_with_gradient() -> None:
    b = batch()
    given = [b.outputs[name].clone().requires_grad_() for name in ("image_parts", "text_parts")]
    whole = relevance(*given)
    assert_close(whole, slow_relevance(given[0].detach(), given[1].detach()))
    weights = unit(torch.Generator().manual_seed(1), 6, 6)
    slopes = torch.autograd.grad((whole * weights).sum(), given)
    pieces = relevance(*given, block=4)
    assert_close(pieces, whole)
    assert_close(torch.autograd.grad((pieces * weights).sum(), given), slopes)
    with torch.no_grad():
        assert_close(relevance(*given, block=4), whole)


def test_an_aggregator_is_a_softmax_over_its_tokens_and_masked_words_take_no_part() -> None:
    torch.manual_seed(0)
    made = TokenAggregator(20, 3).double()
    norm, first, _, last = made.weigh
    assert first.weight.shape == (4, 20)  # a fifth
    assert last.weight.shape == (3, 4)
    tokens = unit(torch.Generator().manual_seed(2), 2, 6, 20)
    mask = torch.tensor([[False, True, True, False, True, False], [True] * 6])
    found = made(tokens, mask)
    for row in range(2):
        kept = tokens[row][mask[row]]
        scores = torch.stack([last(F.gelu(first(norm(token)))) for token in kept])  # [T, K]
        for k in range(3):
            shares = scores[:, k].exp() / scores[:, k].exp().sum()
            mixed = sum((share * token for share, token in zip(shares, kept, strict=True)), torch.zeros(20, dtype=torch.float64))
            assert_close(found[row, k], mixed / mixed.norm())
    changed = tokens.clone()
    changed[0, ~mask[0]] = 7.0
    assert_close(made(changed, mask), found)
    assert (made(tokens)[0] - found[0]).abs().max() > 1e-3
    slope = torch.autograd.grad(made(changed.requires_grad_(), mask).sum(), changed)[0]
    assert (slope[0, ~mask[0]] == 0).all()


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "clip")


def after(clip: str, fields: dict[str, Any], **values: Any) -> dict[str, Tensor]:
    settings = small.config("finelip", fields, steps=3, choose="last", **values)
    return small.weights(finetune(clip, small.pairs(), settings, device="cpu").model)


def test_end_to_end_and_the_score_of_its_own(clip: str, tmp_path: Path) -> None:
    work = tmp_path / "work"
    rates = {"head_learning_rate": 1e-2}
    done = finetune(clip, small.pairs(), small.config("finelip", rates, steps=3, choose="last"), directory=work, device="cpu")
    trained = small.weights(done.model)
    folder = done.save(tmp_path / "out")
    opened = small.weights(CLIPModel.from_pretrained(folder))
    assert opened.keys() == small.weights(CLIPModel.from_pretrained(clip)).keys()  # an ordinary model, without aggregators
    assert all(torch.equal(opened[name], trained[name]) for name in opened)

    aggregators: Any = TokenAggregators.read(work)
    assert aggregators.image.weigh[3].weight.shape == (3, 4)  # a fifth of 16 patches; 24 / 5
    assert aggregators.text.weigh[3].weight.shape == (8, 4)  # of 40 positions
    images, texts = zip(*small.items(5), strict=True)
    encoder: Any = clipmend.load(folder, device="cpu")
    cosines = encoder.encode_images(list(images)) @ encoder.encode_texts(list(texts)).T
    plain = finelip_scores(encoder, aggregators, images, texts, weight=0.0, batch_size=2)
    assert_close(plain, cosines, atol=1e-5, rtol=1e-4)
    # What the trainer's towers give, padded differently, has the same relevance.
    towers = Towers(encoder, tokens=frozenset({"image", "text"}))
    ids = [encoder.tower.tokens([text]).ids[0] for text in texts]
    wanted = torch.zeros(5, 5)
    with torch.no_grad():
        for i, image in enumerate(images):
            for j, row in enumerate(ids):
                out = towers({"pixels": encoder.prepare_image(image)[None], "ids": torch.tensor([row])})
                words = torch.tensor([[False, *[True] * (len(row) - 2), False]])
                parts = aggregators(out, {}, {"text_words": words})
                wanted[i, j] = 0.8 * cosines[i, j] + 0.2 * slow_relevance(parts["image_parts"], parts["text_parts"])[0, 0]
    assert_close(finelip_scores(encoder, aggregators, images, texts, batch_size=3), wanted, atol=1e-5, rtol=1e-4)
    assert finelip_scores(encoder, aggregators, [], texts).shape == (0, 5)
    with pytest.raises(ValueError, match=r"weight is 1\.5"):
        finelip_scores(encoder, aggregators, images, texts, weight=1.5)
    with pytest.raises(ValueError, match="for a joint space of 8, and"):
        finelip_scores(encoder, TokenAggregators(8, 2, 2), images, texts)

    # One batch in three pieces; the aggregators' own rate; the mechanism off.
    pieces = after(clip, rates, micro_batches=3)
    for name, value in trained.items():
        assert_close(pieces[name], value, atol=3e-5, rtol=1e-4)
    for fields in ({"head_learning_rate": 0.0}, {"relevance_weight": 0.0}):
        other = after(clip, fields)
        assert max(float((other[name] - trained[name]).abs().max()) for name in trained) > 1e-4


def test_a_siglip_and_aggregators_that_cannot_be_read(tmp_path: Path) -> None:
    siglip = small.siglip_folder(tmp_path / "siglip")
    work = tmp_path / "work"
    finetune(siglip, small.pairs(), small.config("finelip", steps=1, choose="last"), directory=work, device="cpu")
    (best,) = work.glob("best-*.safetensors")
    read: Any = TokenAggregators.read(best)
    assert read.text.weigh[3].weight.shape[0] == 4  # of 20 positions
    images, texts = zip(*small.items(2), strict=True)
    assert finelip_scores(clipmend.load(siglip, device="cpu"), read, images, texts).isfinite().all()
    weights = {name: value for name, value in load_file(best).items() if not name.startswith("heads.")}
    save_file(weights, tmp_path / "best-1.safetensors")
    with pytest.raises(ValueError, match="holds no token aggregators"):
        TokenAggregators.read(tmp_path)
    with pytest.raises(FileNotFoundError, match="working folder"):
        TokenAggregators.read(tmp_path / "siglip")
    (tmp_path / "torn.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="cannot be read"):
        TokenAggregators.read(tmp_path / "torn.safetensors")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hinge": -1.0}, "hinge is -1.0"),
        ({"relevance_weight": -1.0}, "relevance_weight is -1.0"),
        ({"relevance_weight": 0.0, "global_weight": 0.0}, "nothing is left to minimise"),
        ({"share": 0.0}, "share is 0.0"),
        ({"slope": 2.0}, "slope is 2.0"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_recipe("finelip", **fields)
