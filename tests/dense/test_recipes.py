"""Recipes: each loss against a slow one, what switching a mechanism off does, adapters, and what a new recipe may ask for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPModel

import clipmend
from clipmend.dense import RECIPES, finetune, make_recipe
from clipmend.dense.recipes import Joined, Moment, Recipe, Views
from dense import small_training as small

NOW = Moment(0, 10, 0.0)


def batch(seed: int = 0, rows: int = 6, *, bias: bool = False, repeated: bool = False) -> Joined:
    generator = torch.Generator().manual_seed(seed)
    unit = lambda *shape: F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)  # noqa: E731
    words = torch.rand(rows, 7, generator=generator) < 0.6
    words[:, 0] = True
    outputs = {
        "image": unit(rows, 5), "text": F.normalize(unit(rows, 5) + unit(1, 5), dim=-1), "image_tokens": unit(rows, 4, 5),
        "text_tokens": unit(rows, 7, 5), "logit_scale": torch.tensor(9.0, dtype=torch.float64),
    }  # fmt: skip
    if bias:
        outputs["logit_bias"] = torch.tensor(-3.0, dtype=torch.float64)
    ids = torch.arange(rows)
    if repeated:
        ids[3] = 1
    return Joined(outputs, ids, torch.arange(rows), {"text_words": words}, {}, unit(rows, 5))


def slow_softmax(b: Joined, gamma: float, margin: Tensor | None = None) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    captions = b.text if margin is None else margin
    for forth in (True, False):
        for i in range(len(b.image)):
            scores = []
            for j in range(len(b.image)):
                if j != i and (b.image_ids[i] == b.image_ids[j] or b.caption_ids[i] == b.caption_ids[j]):
                    continue
                s = b.image[i] @ b.text[j] if forth else b.text[i] @ b.image[j]
                g = 0.0 if i == j else gamma * float(captions[i] @ captions[j])
                scores.append(b.scale * (s + g))
            total = total + torch.logsumexp(torch.stack(scores), 0) - b.scale * (b.image[i] @ b.text[i])
    return total / (2 * len(b.image))


def slow_tokens(b: Joined, scale: float) -> Tensor:
    n = len(b.image)
    s = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        for j in range(n):
            cosines = b.outputs["image_tokens"][i] @ b.outputs["text_tokens"][j][b.masks["text_words"][j]].T
            s[i, j] = (cosines.amax(1).mean() + cosines.amax(0).mean()) / 2
    target = torch.arange(n)
    return (F.cross_entropy(scale * s, target) + F.cross_entropy(scale * s.T, target)) / 2


@pytest.mark.parametrize("name", ["plain", "lora", "dora"])
@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_global_term_alone(name: str, gamma: float) -> None:
    for repeated in (False, True):
        b = batch(repeated=repeated)
        terms = make_recipe(name, gamma=gamma).losses(b, NOW)
        assert list(terms) == ["global"]
        assert_close(terms["global"], slow_softmax(b, gamma))
    assert abs(terms["global"] - slow_softmax(b, 0.5 - gamma)) > 1e-3


def test_hn_clip_is_both_terms() -> None:
    b = batch(1)
    terms = make_recipe("hn-clip").losses(b, NOW)
    assert_close(terms["global"], slow_softmax(b, 0.5))
    assert_close(terms["tokens"], slow_tokens(b, 9.0))
    assert_close(make_recipe("hn-clip", token_scale=3.0, token_weight=0.25).losses(b, NOW)["tokens"], 0.25 * slow_tokens(b, 3.0))
    off = make_recipe("hn-clip", token_weight=0.0)
    assert list(off.losses(b, NOW)) == ["global"]
    assert not off.tokens()
    everything = b.masks["text_words"].clone().fill_(True)
    other = make_recipe("hn-clip").losses(Joined(b.outputs, b.image_ids, b.caption_ids, {"text_words": everything}), NOW)
    assert abs(other["tokens"] - terms["tokens"]) > 1e-3  # the mask is used


def test_a_frozen_margin_and_smoothing() -> None:
    b = batch(2)
    found = make_recipe("plain", gamma=0.5, margin="frozen").losses(b, NOW)["global"]
    assert_close(found, slow_softmax(b, 0.5, b.margin_features))
    assert abs(found - slow_softmax(b, 0.5)) > 1e-3
    assert abs(make_recipe("plain", label_smoothing=0.1).losses(b, NOW)["global"] - slow_softmax(b, 0.0)) > 1e-3


def test_a_model_s_own_loss_is_the_sigmoid_one_where_it_has_a_bias() -> None:
    b = batch(3, bias=True)
    signs = 2 * torch.eye(6, dtype=torch.float64) - 1
    margin = (b.text @ b.text.T).fill_diagonal_(0)
    for gamma in (0.0, 0.5):
        logits = b.scale * (b.image @ b.text.T + gamma * margin) + b.outputs["logit_bias"]
        wanted = -F.logsigmoid(signs * logits).sum() / 6
        assert_close(make_recipe("plain", gamma=gamma).losses(b, NOW)["global"], wanted)
    assert_close(make_recipe("plain", global_loss="softmax").losses(b, NOW)["global"], slow_softmax(b, 0.0))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_field_is_documented(name: str) -> None:
    recipe = RECIPES[name]
    assert recipe.about
    documented = "".join(c.__doc__ or "" for c in recipe.__mro__ if c is not object)
    for field in fields(recipe):
        assert field.name in documented, f"{name}: {field.name}"
        assert field.name in (recipe.__doc__ or ""), f"{name}: {field.name} is not named in its own docstring"


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("hnclip", {}, "there is no recipe 'hnclip' .did you mean 'hn-clip'"),
        ("plain", {"token_weight": 1.0}, "the recipe plain has no token_weight; it has gamma"),
        ("plain", {"gamma": "half"}, "gamma is 'half'"),
        ("plain", {"gamma": -1.0}, "gamma=-1.0"),
        ("plain", {"margin": "dead"}, "margin='dead'"),
        ("hn-clip", {"token_weight": -1.0}, "token_weight is -1.0"),
        ("lora", {"rank": 0}, "rank is 0"),
        ("lora", {"targets": "some"}, "targets is 'some'"),
        ("lora", {"fixed_positions": 20}, "positions=True"),
        ("dora", {"dropout": 1.0}, "dropout is 1.0"),
        ("plain", {"global_loss": "sigmoid", "label_smoothing": 0.1}, "label_smoothing"),
    ],
)
def test_recipes_that_are_refused(name: str, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        make_recipe(name, **values)


# ---- adapters -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "clip")


@pytest.mark.parametrize("name", ["lora", "dora"])
def test_adapters_merge_into_an_ordinary_model(name: str, clip: str, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="needs the extra train")
    settings = small.config(name, {"rank": 2, "gamma": 0.5}, steps=3, choose="last")
    done = finetune(clip, small.pairs(), settings, directory=tmp_path / "work", device="cpu")
    before, after = small.weights(CLIPModel.from_pretrained(clip)), small.weights(done.model)
    assert after.keys() == before.keys()
    assert type(done.model) is CLIPModel
    for key in before:
        changed = not torch.equal(before[key], after[key])
        assert changed == (".self_attn." in key and key.endswith("weight")) or key == "logit_scale", key
    folder = done.save(tmp_path / "out")
    opened = small.weights(CLIPModel.from_pretrained(folder))
    assert all(torch.equal(opened[key], after[key]) for key in after)
    # The merged model gives what the adapted one gave when it was validated last.
    data = small.pairs()
    _, held = data.split(0.1, 1000, 0)
    texts, images = (
        done.encoder.encode_texts([data.captions[r] for r in held]),
        done.encoder.encode_images([data.open(r) for r in held]),
    )
    recall = 100 * ((images @ texts.T).argmax(1) == torch.arange(len(held))).double().mean()
    assert float(recall) == done.history[-1]["image_to_text@1"]


def test_an_adapted_side_and_positions(clip: str) -> None:
    pytest.importorskip("peft", reason="needs the extra train")
    fields = {"rank": 2, "targets": "all", "positions": True}
    done = finetune(clip, small.pairs(), small.config("lora", fields, steps=2, freeze="image", choose="last"), device="cpu")
    before, after = small.weights(CLIPModel.from_pretrained(clip)), small.weights(done.model)
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert not any(key.startswith("v") for key in changed)
    assert "text_model.embeddings.position_embedding.weight" in changed
    assert "text_model.encoder.layers.0.mlp.fc1.weight" in changed


def test_dora_refuses_packed_attention() -> None:
    pytest.importorskip("peft", reason="needs the extra train")

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.visual = nn.Module()
            self.visual.transformer = nn.Module()
            block = nn.Module()
            block.attn = nn.MultiheadAttention(8, 2)
            self.visual.transformer.resblocks = nn.ModuleList([block])

    with pytest.raises(ValueError, match=r"DoRA cannot adapt visual\.transformer\.resblocks\.0\.attn: open_clip packs"):
        make_recipe("dora").prepare(Packed(), ("image",))
    with pytest.raises(ValueError, match="has no blocks that lora knows"):
        make_recipe("lora").prepare(nn.Linear(2, 2), ("image",))


# ---- the interface that other recipes build on --------------------------------------------------------------------------------


class Gate(nn.Module):
    """A parameter of a recipe's own: what is behind its output is trained at another rate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(24))

    def forward(self, outputs: dict[str, Tensor], numbers: dict[str, Tensor], masks: dict[str, Tensor]) -> dict[str, Tensor]:
        assert numbers["share"].shape == (len(outputs["image"]), 2)
        assert masks["text/parts_words"].ndim == 3
        return {"gated": F.normalize(outputs["text/short"] @ self.weight, dim=-1)}


@dataclass(frozen=True, kw_only=True)
class Everything(Recipe):
    """Asks for all that a recipe may ask for."""

    name: ClassVar[str] = "everything"

    weight: float = 1.0

    def heads(self, towers: Any) -> nn.Module:
        return Gate()

    def views(self, example: Any, rng: np.random.Generator) -> Views:
        half = example.image.crop((0, 0, 16, 16))
        words = example.caption.split()
        return Views(
            images={"crop": half, "crops": [half, example.image]},
            texts={"short": " ".join(words[:3]), "parts": [words[0], " ".join(words[1:])]},
            numbers={"share": np.array([0.5, rng.random()], np.float32)},
        )

    def token_ids(self, name: str, ids: list[int], limit: int, pad_id: int, rng: np.random.Generator) -> list[int]:
        return [ids[0], *[ids[1]] * int(rng.integers(3)), *ids[1:]][:limit] if name == "text/short" else ids

    def losses(self, batch: Joined, at: Moment) -> dict[str, Tensor]:
        assert batch.outputs["image/crops"].shape == (len(batch.image), 2, 24)
        assert batch.outputs["text/parts"].shape == (len(batch.image), 2, 24)
        assert batch.numbers["share"].shape == (len(batch.image), 2)
        pull = 1 - (batch.outputs["gated"] * batch.outputs["image/crop"]).sum(-1).mean()
        pull = pull + 1 - (batch.outputs["image/crops"] * batch.outputs["text/parts"]).sum(-1).mean()
        return {"global": self.global_term(batch), "extra": self.weight * (1 - at.step / at.steps) * pull}


def test_a_recipe_may_ask_for_views_heads_numbers_and_weights_that_change(clip: str, tmp_path: Path) -> None:
    def run(**values: Any) -> dict[str, Tensor]:
        settings = small.config(steps=3, choose="last", **{k: v for k, v in values.items() if k != "weight"})
        object.__setattr__(settings, "recipe", Everything(weight=values.get("weight", 1.0)))
        return small.weights(finetune(clip, small.pairs(), settings, device="cpu").model)

    whole = run()
    assert whole.keys() == small.weights(clipmend.load(clip, device="cpu").model).keys()  # the gate is not part of the model
    parts = run(micro_batches=3)
    for name, value in whole.items():
        assert_close(parts[name], value, atol=3e-5, rtol=1e-4)
    assert any((run(weight=0.0)[name] - whole[name]).abs().max() > 1e-4 for name in whole)
