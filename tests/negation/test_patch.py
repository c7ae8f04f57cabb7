"""A patch on a backbone, on disk and on the hub."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder, Fingerprint, PreparedTexts
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.patch import PeakPatch
from helpers import RandomDualEncoder

TEXTS = ["a dog", "no dog", "a red bus without a driver", ".", "a street with no cars and no people at all today", "🙂 cat"]


def strong(patch: PeakPatch) -> PeakPatch:
    """A patch whose corrections are large, as after training."""
    torch.manual_seed(1)
    nn.init.normal_(patch.ecn.mlp[-1].weight, std=0.3)
    for layer in patch.scn.modules() if patch.scn else []:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.3)
    return patch


@pytest.fixture
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder(layers=6)


@pytest.fixture
def patch(encoder: RandomDualEncoder) -> PeakPatch:
    return strong(PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, scn_layers=(2, 4, 6), context=16)))


def images(count: int = 5) -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 255, (12, 12, 3), np.uint8)) for _ in range(count)]


def by_hand(encoder: DualEncoder, patch: PeakPatch, text: str, strength: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Plain lines for one text: corrected unit vector, length of the plain one, context ``[L, D]``."""
    c = patch.config
    assert c.peak is not None
    assert c.anchor is not None
    assert c.scn_layers is not None
    states = encoder.text_states([text], list(range(1, encoder.num_text_layers + 1)))
    assert states.embedding is not None
    ecn = patch.ecn.eval()
    with torch.no_grad():
        delta = ecn.delta(states.tokens_at(c.peak), states.mask, states.eos_at(c.peak), states.eos_at(c.anchor), states.embedding)[
            0
        ]
        unit = F.normalize(F.normalize(states.embedding[0], dim=-1) + strength * ecn.log_alpha.exp() * delta, dim=-1)
        layers = [F.normalize(encoder.project(states.pooled_at(k)[0]), dim=-1) for k in c.scn_layers[:-1]]
    return unit, states.embedding[0].norm(), torch.stack([*layers, unit])


# ---- applying ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1.0, 0.4, 2.0])
def test_corrected_embeddings_equal_plain_lines(encoder: RandomDualEncoder, patch: PeakPatch, strength: float) -> None:
    mended = patch.apply(encoder, strength)
    expected = torch.stack([by_hand(encoder, patch, text, strength)[0] for text in TEXTS])
    actual = mended.encode_texts(TEXTS)
    torch.testing.assert_close(actual, expected)
    assert actual.dtype == torch.float32
    assert (F.cosine_similarity(actual, encoder.encode_texts(TEXTS)) < 0.99).all(), "the correction must be seen in this test"
    torch.testing.assert_close(mended.encode_texts(TEXTS, batch_size=2), expected)
    for k, text in enumerate(TEXTS):
        torch.testing.assert_close(mended.encode_texts([text])[0], expected[k])


def test_mended_is_a_dual_encoder_and_delegates(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    assert isinstance(mended, DualEncoder)
    assert mended.name == "random + patch"
    assert mended.fingerprint == encoder.fingerprint
    for name in ("embed_dim", "text_width", "num_text_layers", "context_length", "logit_scale", "device", "text_pooling"):
        assert getattr(mended, name) == getattr(encoder, name)
    assert torch.equal(mended.encode_images(images()), encoder.encode_images(images()))
    own, theirs = mended.text_states(TEXTS, [2, 4]), encoder.text_states(TEXTS, [2, 4])
    assert torch.equal(own.pooled, theirs.pooled)
    assert torch.equal(mended.project(own), encoder.project(theirs))
    assert mended.text_passes == encoder.text_passes, "other attributes are the backbone's"
    with pytest.raises(AttributeError):
        mended.no_such_thing  # noqa: B018
    assert "strength=1" in repr(mended)


def test_one_pass_of_the_backbone(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    mended.encode_texts(TEXTS)
    assert encoder.text_passes == 1
    mended.prepare_texts(TEXTS)
    assert encoder.text_passes == 2


def test_backbone_is_unchanged(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    before = {k: v.clone() for k, v in encoder._modules_list.state_dict().items()}
    networks = {k: v.clone() for k, v in patch.ecn.state_dict().items()}
    mended = patch.apply(encoder)
    mended.score(images(), TEXTS)
    assert all(torch.equal(v, before[k]) for k, v in encoder._modules_list.state_dict().items())
    assert all(torch.equal(v, networks[k]) for k, v in patch.ecn.state_dict().items())
    assert not any(p.requires_grad for p in encoder._modules_list.parameters())


def test_later_training_does_not_reach_a_mended_encoder(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    before = mended.encode_texts(TEXTS)
    nn.init.zeros_(patch.ecn.mlp[-1].weight)
    assert torch.equal(mended.encode_texts(TEXTS), before)
    assert patch.ecn.log_alpha.requires_grad


def test_strength_zero_is_the_backbone_bit_for_bit(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder, strength=0)
    for normalize in (True, False):
        assert torch.equal(mended.encode_texts(TEXTS, normalize=normalize), encoder.encode_texts(TEXTS, normalize=normalize))
    assert mended.prepare_texts(TEXTS).context is None
    assert torch.equal(mended.score(images(), TEXTS), encoder.score(images(), TEXTS))
    pairs = torch.tensor([[0, 1], [4, 5]])
    assert torch.equal(mended.score(images(), TEXTS, pairs=pairs), encoder.score(images(), TEXTS, pairs=pairs))


def test_length_is_kept_without_normalisation(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    unit, scaled = mended.encode_texts(TEXTS), mended.encode_texts(TEXTS, normalize=False)
    plain = encoder.encode_texts(TEXTS, normalize=False)
    torch.testing.assert_close(scaled.norm(dim=-1), plain.norm(dim=-1))
    torch.testing.assert_close(F.normalize(scaled, dim=-1), unit)
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(len(TEXTS)))
    assert plain.norm(dim=-1).std() > 0


def test_nothing_to_encode(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    for strength in (0.0, 1.0):
        mended = patch.apply(encoder, strength)
        assert mended.encode_texts([]).shape == (0, 16)
        assert len(mended.prepare_texts([])) == 0
        assert mended.score(torch.zeros(3, 16), []).shape == (3, 0)
    assert encoder.text_passes == 0


def test_one_string_is_not_a_list(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    with pytest.raises(TypeError, match="not one string"):
        patch.apply(encoder).encode_texts("a dog")


def test_many_texts_go_in_chunks(encoder: RandomDualEncoder, patch: PeakPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    mended = patch.apply(encoder)
    texts = [f"{text} {k}" for k in range(4) for text in TEXTS]
    whole, prepared = mended.encode_texts(texts), mended.prepare_texts(texts)
    monkeypatch.setattr("clipmend.negation.mended._CHUNK", 5)
    torch.testing.assert_close(mended.encode_texts(texts, batch_size=3), whole)
    chunked = mended.prepare_texts(texts, batch_size=3)
    assert prepared.context is not None
    assert chunked.context is not None
    torch.testing.assert_close(chunked.context, prepared.context)


@pytest.mark.parametrize("chunk", [512, 2], ids=["one chunk", "several"])
def test_long_texts_are_reported_once(
    encoder: RandomDualEncoder, patch: PeakPatch, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr("clipmend.negation.mended._CHUNK", chunk)
    mended = patch.apply(encoder)
    texts = ["a dog", "word " * 40, "a cat", "word " * 50, "more " * 60]
    with pytest.warns(UserWarning, match="truncated") as caught:
        mended.encode_texts(texts, batch_size=2)
    assert [warning.message.count for warning in caught] == [3]
    with pytest.raises(ValueError, match="longer than"):
        mended.encode_texts(texts, batch_size=2, on_long="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mended.encode_texts(texts, batch_size=2, on_long="truncate")


def test_long_texts_are_counted_over_all_chunks(
    encoder: RandomDualEncoder, patch: PeakPatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An encoder with a text tower tokenises everything first, so that its one report counts the whole call."""
    calls: list[tuple[int, str]] = []
    encoder.tower = SimpleNamespace(tokenise=lambda texts, on_long: calls.append((len(texts), on_long)))  # type: ignore[attr-defined]
    monkeypatch.setattr("clipmend.negation.mended._CHUNK", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.apply(encoder).encode_texts(["a dog", "word " * 40, "word " * 50], batch_size=2)
    assert calls == [(3, "warn")]


def test_embeddings_that_are_not_finite_name_the_text(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    encoder.token.weight[encoder._ids("cat")[1]] = float("nan")
    assert mended.encode_texts(["a dog"]).isfinite().all()
    with pytest.raises(ValueError, match=r"embedding by random of text 1 \('a dog and a cat'\) is not finite; 1 of 2"):
        mended.encode_texts(["a dog", "a dog and a cat"])


def test_corrections_that_are_not_finite_are_told_apart(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    with torch.no_grad():
        patch.ecn.log_alpha.fill_(float("nan"))
    with pytest.raises(ValueError, match="the patch's correction of text 0"):
        patch.apply(encoder).encode_texts(["a dog"])


def test_several_threads_at_once(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    lists = [[f"{text} {k}" for text in TEXTS] for k in range(16)]
    expected = [mended.encode_texts(texts) for texts in lists]
    with ThreadPoolExecutor(4) as pool:
        for actual, wanted in zip(pool.map(mended.encode_texts, lists), expected, strict=True):
            assert torch.equal(actual, wanted)


@pytest.mark.parametrize(
    "options", [{"use_anchor": False}, {"use_pool": False}, {"eos_only": True}, {"use_scn": False}, {"use_direct": True}]
)
def test_ablations_work_end_to_end(encoder: RandomDualEncoder, options: dict[str, bool], tmp_path: Path) -> None:
    patch = strong(PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, context=16, **options)))
    mended = patch.apply(encoder)
    expected = torch.stack([by_hand(encoder, patch, text)[0] for text in TEXTS])
    torch.testing.assert_close(mended.encode_texts(TEXTS), expected)
    again = PeakPatch.from_pretrained(patch.save_pretrained(tmp_path / "patch"))
    assert torch.equal(again.apply(encoder).score(images(), TEXTS), mended.score(images(), TEXTS))


# ---- scores -----------------------------------------------------------------------------------------------------------------


def test_adjusted_is_another_application_with_the_same_networks(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended = patch.apply(encoder)
    i = F.normalize(torch.randn(4, encoder.embed_dim, generator=torch.Generator().manual_seed(2)), dim=-1)
    for strength, gate in ((0.5, True), (2.0, False), (0.0, False), (1.0, True)):
        other, fresh = mended.adjusted(strength, gate), patch.apply(encoder, strength, gate)
        assert (other.strength, other.gate) == (strength, gate)
        assert torch.equal(other.encode_texts(TEXTS), fresh.encode_texts(TEXTS))
        assert torch.equal(other.score(i, TEXTS), fresh.score(i, TEXTS))
        assert other._ecn is mended._ecn
        assert other._scn is mended._scn
    assert (mended.strength, mended.gate) == (1.0, patch.config.gate)
    assert mended.adjusted() is mended
    assert mended.adjusted(0.5).adjusted(gate=True).strength == 0.5
    for strength in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="strength"):
            mended.adjusted(strength)


@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_scores_equal_plain_lines(encoder: RandomDualEncoder, patch: PeakPatch, strength: float) -> None:
    mended = patch.apply(encoder, strength)
    i = encoder.encode_images(images())
    scn = patch.scn
    assert scn is not None
    rows = []
    for text in TEXTS:
        context = by_hand(encoder, patch, text, strength)[2].expand(len(i), -1, -1)
        with torch.no_grad():
            rows.append(i @ context[0, -1] + strength * scn.eval().correction(i, context))
    expected = torch.stack(rows, 1)
    torch.testing.assert_close(mended.score(images(), TEXTS), expected)
    prepared = mended.prepare_texts(TEXTS)
    torch.testing.assert_close(mended.score(i, prepared), expected)
    pairs = torch.tensor([[4, 0], [0, 3], [2, 5], [2, 5]])
    torch.testing.assert_close(mended.score(i, prepared, pairs=pairs), expected[pairs[:, 0], pairs[:, 1]])
    torch.testing.assert_close(mended.score(i, prepared[1:3]), expected[:, 1:3])
    assert mended.score(i, prepared, pairs=torch.zeros(0, 2, dtype=torch.long)).shape == (0,)
    cosine = i @ prepared.embedding.T
    assert (expected - cosine).abs().max() > 0.01, "the score correction must be seen in this test"
    assert torch.equal(mended.score(i, PreparedTexts(prepared.embedding)), cosine)


def test_pairs_in_blocks(encoder: RandomDualEncoder, patch: PeakPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    mended = patch.apply(encoder)
    pairs = torch.cartesian_prod(torch.arange(5), torch.arange(len(TEXTS)))
    whole = mended.score(images(), TEXTS, pairs=pairs)
    monkeypatch.setattr("clipmend.negation.mended._PAIRS", 7)
    torch.testing.assert_close(mended.score(images(), TEXTS, pairs=pairs), whole)
    torch.testing.assert_close(whole.view(5, -1), mended.score(images(), TEXTS))


def test_texts_prepared_by_another_patch(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    other = PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, context=16)).apply(encoder)
    with pytest.raises(ValueError, match="prepared with 2 layers"):
        patch.apply(encoder).score(images(), other.prepare_texts(TEXTS))


# ---- the gate ---------------------------------------------------------------------------------------------------------------


def test_gate_keeps_plain_captions_bit_for_bit(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    mended, ungated = patch.apply(encoder, gate=True), patch.apply(encoder)
    negated = [k for k, text in enumerate(TEXTS) if "no " in text or "without" in text]
    plain = [k for k in range(len(TEXTS)) if k not in negated]
    assert len(negated) == 3
    for normalize in (True, False):
        actual, own = mended.encode_texts(TEXTS, normalize=normalize), encoder.encode_texts(TEXTS, normalize=normalize)
        assert torch.equal(actual[plain], own[plain])
        torch.testing.assert_close(actual[negated], ungated.encode_texts(TEXTS, normalize=normalize)[negated])
    prepared = mended.prepare_texts(TEXTS)
    assert prepared.context is not None
    assert torch.equal(prepared.embedding[plain], encoder.encode_texts(TEXTS)[plain])
    assert torch.equal(prepared.context[:, -1], prepared.embedding)
    only = [TEXTS[k] for k in plain]
    assert torch.equal(mended.encode_texts(only), encoder.encode_texts(only))
    torch.testing.assert_close(mended.encode_texts(["no dog"]), ungated.encode_texts(["no dog"]))
    with pytest.warns(UserWarning, match="2 of 3 texts truncated") as caught:
        mended.encode_texts(["a dog", "word " * 40, "no " * 40])
    assert len(caught) == 1


def test_gate_of_the_config_can_be_overridden(encoder: RandomDualEncoder) -> None:
    patch = strong(PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, gate=True)))
    assert patch.apply(encoder).gate
    assert not patch.apply(encoder, gate=False).gate


def test_what_was_asked_of_the_gate_is_kept_apart_from_what_the_patch_says(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    assert [patch.apply(encoder, gate=gate).gate_asked for gate in (None, False, True)] == [None, False, True]
    mended = patch.apply(encoder)
    assert not mended.gate
    assert mended.adjusted(0.5).gate_asked is None
    off = mended.adjusted(gate=False)
    assert (off.gate_asked, off.adjusted(0.5).gate_asked, mended.gate_asked) == (False, False, None)
    assert off.adjusted(gate=False) is off


def test_mends_says_which_texts_are_changed(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    plain = encoder.encode_texts(TEXTS)
    for mended in (patch.apply(encoder, gate=True), patch.apply(encoder), patch.apply(encoder, 0.0)):
        changed = [not torch.equal(a, b) for a, b in zip(mended.encode_texts(TEXTS), plain, strict=True)]
        assert [mended.mends(text) for text in TEXTS] == changed


# ---- refusals ---------------------------------------------------------------------------------------------------------------


class Half(RandomDualEncoder):
    """An encoder whose fingerprint is given."""

    own: Fingerprint

    @property
    def fingerprint(self) -> Fingerprint:
        return self.own


@pytest.mark.parametrize(("part", "words"), [("text", "text weights"), ("tokenizer", "tokenizer"), ("image", "image side")])
def test_another_backbone_is_refused(encoder: RandomDualEncoder, patch: PeakPatch, part: str, words: str) -> None:
    other = Half(layers=6)
    other.own = Fingerprint(**{**encoder.fingerprint.to_dict(), part: "f" * 64})
    with pytest.raises(ValueError, match=f"called random too.*{words}.*allow_mismatch"):
        patch.apply(other)
    with pytest.warns(UserWarning, match=words):
        mended = patch.apply(other, allow_mismatch=True)
    assert torch.equal(mended.encode_texts(TEXTS), patch.apply(encoder).encode_texts(TEXTS))


def test_equal_names_are_told_apart_by_what_differs(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    other = Half(layers=6)
    other.own = Fingerprint(**{**encoder.fingerprint.to_dict(), "tokenizer": "f" * 64})
    assert other.name == patch.backbone
    own = patch.fingerprint.tokenizer[:12]
    with pytest.raises(
        ValueError,
        match=f"another encoder that was called random too: its tokenizer differs .*tokenizer {own} when .*, ffffffffffff now",
    ) as refused:
        patch.apply(other)
    assert "is not the same encoder" not in str(refused.value)
    assert "text weights" not in str(refused.value)


def test_the_bundled_patch_is_named(patch: PeakPatch) -> None:
    with pytest.raises(ValueError, match=r"fitted on random, and scenes is not the same encoder.*of scenes is bundled: 'scenes'"):
        patch.apply(RandomDualEncoder(layers=6, seed=1, name="scenes"))


def test_a_missing_image_side_is_not_another_one(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    text_only = Half(layers=6)
    text_only.own = Fingerprint(encoder.fingerprint.text, "", encoder.fingerprint.tokenizer)
    patch.apply(text_only)  # the text half alone, for queries against an index
    patch.fingerprint = text_only.own
    patch.apply(encoder)  # and a patch that no image had a part in


def test_changed_weights_are_another_backbone(patch: PeakPatch) -> None:
    with pytest.raises(ValueError, match="text weights"):
        patch.apply(RandomDualEncoder(layers=6, seed=1))


def test_other_sizes_are_refused_even_with_allow_mismatch(patch: PeakPatch) -> None:
    told = r"fitted on random, and random is another encoder \(text_width is 24 in the config but 32"
    with pytest.raises(ValueError, match=told):
        patch.apply(RandomDualEncoder(layers=6, width=32), allow_mismatch=True)
    with pytest.raises(ValueError, match="last text layer"):
        patch.apply(RandomDualEncoder(layers=8), allow_mismatch=True)


def test_what_cannot_be_patched(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    with pytest.raises(ValueError, match="already carries a patch"):
        patch.apply(patch.apply(encoder))
    with pytest.raises(TypeError, match=r"clipmend\.load"):
        patch.apply(nn.Linear(2, 2))  # type: ignore[arg-type]
    for strength in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="strength"):
            patch.apply(encoder, strength)


def test_a_patch_needs_a_whole_config_and_fitting_networks(encoder: RandomDualEncoder, patch: PeakPatch) -> None:
    own: dict[str, Any] = {"backbone": "random", "fingerprint": encoder.fingerprint}
    with pytest.raises(ValueError, match=r"resolved\(encoder\)"):
        PeakPatch(PeakPatchConfig(), **own)
    with pytest.raises(ValueError, match="use_scn is True"):
        PeakPatch(patch.config, ecn=patch.ecn, **own)


def test_untrained_patches_are_seeded(encoder: RandomDualEncoder) -> None:
    state = torch.get_rng_state()
    first, second = (PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, seed=3)) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    other = PeakPatch.untrained(encoder, PeakPatchConfig(hidden=32, seed=4))
    assert torch.equal(first.ecn.mlp[0].weight, second.ecn.mlp[0].weight)
    assert not torch.equal(first.ecn.mlp[0].weight, other.ecn.mlp[0].weight)
    assert "parameters=" in repr(first)


# ---- on disk ----------------------------------------------------------------------------------------------------------------


def described(patch: PeakPatch) -> PeakPatch:
    patch.metrics = {
        "choice": {"negative": 0.97, "n": 300},
        "kept": float("nan"),
        "history": [{"step": 1, "loss": np.float32(0.5)}],
    }
    patch.training_data, patch.command = "ab" * 32, "clipmend fit random --data 'my | scenes'"
    return patch


def test_saved_and_read_again(encoder: RandomDualEncoder, patch: PeakPatch, tmp_path: Path) -> None:
    folder = described(patch).save_pretrained(tmp_path / "über mein Patch" / "one")
    assert sorted(p.name for p in folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert os.listdir(folder.parent) == ["one"], "nothing is left beside"
    again = PeakPatch.from_pretrained(folder)
    assert again.config == patch.config
    assert (again.backbone, again.fingerprint) == (patch.backbone, patch.fingerprint)
    assert (again.training_data, again.command) == (patch.training_data, patch.command)
    assert again.metrics == {"choice": {"negative": 0.97, "n": 300}, "kept": None, "history": [{"step": 1, "loss": 0.5}]}
    assert not again.ecn.training
    assert torch.equal(again.apply(encoder).encode_texts(TEXTS), patch.apply(encoder).encode_texts(TEXTS))
    assert torch.equal(again.apply(encoder).score(images(), TEXTS), patch.apply(encoder).score(images(), TEXTS))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    assert config["versions"]["clipmend"]
    assert config["dtype"] == "float32"


def test_half_precision_on_disk(encoder: RandomDualEncoder, patch: PeakPatch, tmp_path: Path) -> None:
    whole = patch.save_pretrained(tmp_path / "whole")
    half = patch.save_pretrained(tmp_path / "half", dtype=torch.float16)
    assert (half / "model.safetensors").stat().st_size < 0.6 * (whole / "model.safetensors").stat().st_size
    assert all(value.dtype == torch.float16 for value in load_file(half / "model.safetensors").values())
    again = PeakPatch.from_pretrained(half)
    assert again.ecn.log_alpha.dtype == torch.float32
    torch.testing.assert_close(
        again.apply(encoder).encode_texts(TEXTS), patch.apply(encoder).encode_texts(TEXTS), rtol=1e-2, atol=1e-2
    )


def test_weights_that_cannot_be_kept_are_not_written(patch: PeakPatch, tmp_path: Path) -> None:
    with torch.no_grad():
        patch.ecn.mlp[0].bias[0] = 1e6
    with pytest.raises(ValueError, match=r"ecn\.mlp\.0\.bias does not fit float16"):
        patch.save_pretrained(tmp_path / "patch", dtype=torch.float16)
    with torch.no_grad():
        patch.ecn.mlp[0].bias[0] = float("inf")
    with pytest.raises(ValueError, match=r"ecn\.mlp\.0\.bias is not finite"):
        patch.save_pretrained(tmp_path / "patch")
    with pytest.raises(ValueError, match="dtype must be"):
        patch.save_pretrained(tmp_path / "patch", dtype=torch.int8)
    assert os.listdir(tmp_path) == []


def test_card_says_what_matters(patch: PeakPatch) -> None:
    from clipmend.negation.card import model_card

    card = model_card(described(patch))
    assert card.startswith("---\nlibrary_name: clipmend\n")
    assert "base_model" not in card
    for words in (patch.command, patch.fingerprint.text, "anchor 2, peak 4, score correction 2, 4, 6", "choice / negative | 0.97"):
        assert words in card
    patch.backbone, patch.fingerprint = "openai/clip-vit-base-patch32", Fingerprint("t", "", "k")
    card = model_card(patch)
    assert 'base_model: "openai/clip-vit-base-patch32"' in card
    assert "not tied to one" in card
    assert 'clipmend.load("openai/clip-vit-base-patch32")' in card


def test_an_older_patch_is_replaced_and_other_files_are_kept(patch: PeakPatch, tmp_path: Path) -> None:
    folder = patch.save_pretrained(tmp_path / "patch")
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs\n")
    patch.command = "again"
    patch.save_pretrained(folder)
    assert PeakPatch.from_pretrained(folder).command == "again"
    assert sorted(os.listdir(folder)) == [".gitattributes", "README.md", "config.json", "model.safetensors"]
    empty = tmp_path / "empty"
    empty.mkdir()
    PeakPatch.from_pretrained(patch.save_pretrained(empty))


def test_folders_of_something_else_are_left_alone(patch: PeakPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    with pytest.raises(ValueError, match="holds no patch"):
        patch.save_pretrained(tmp_path)
    assert os.listdir(tmp_path) == ["config.json"]
    with pytest.raises(ValueError, match="is a file"):
        patch.save_pretrained(tmp_path / "config.json")


def test_a_kill_while_saving_leaves_the_old_patch_or_an_error(
    patch: PeakPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = patch.save_pretrained(tmp_path / "patch")
    old = (folder / "model.safetensors").read_bytes()
    with torch.no_grad():
        patch.ecn.log_alpha.add_(1)
    real = os.replace

    def killed(source: Path, target: Path) -> None:
        if Path(target).name == "config.json":
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        patch.save_pretrained(folder)
    monkeypatch.undo()
    assert (folder / "model.safetensors").read_bytes() != old
    with pytest.raises(ValueError, match=r"model\.safetensors is not the file"):
        PeakPatch.from_pretrained(folder)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        patch.save_pretrained(tmp_path / "new")
    assert os.listdir(tmp_path) == ["patch"]


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        entries = json.loads((folder / "config.json").read_text("utf-8"))
        change(entries)
        (folder / "config.json").write_text(json.dumps(entries))

    return apply


def other_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("ecn.log_alpha")
    save_file(tensors, folder / "model.safetensors")
    import hashlib

    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    edit(lambda c: c.update(weights_sha256=digest))(folder)


def flip(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "config.json").unlink(), r"config\.json is missing"),
        (lambda f: (f / "model.safetensors").unlink(), r"model\.safetensors is missing"),
        (lambda f: (f / "config.json").write_text("{"), r"config\.json is damaged"),
        (lambda f: (f / "config.json").write_bytes(b"\xff\xfe"), r"config\.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), r"config\.json does not describe"),
        (lambda f: (f / "model.safetensors").write_bytes(b"12345"), r"model\.safetensors is damaged"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), r"model\.safetensors is damaged"),
        (lambda f: os.truncate(f / "model.safetensors", 2000), r"model\.safetensors is damaged"),
        (flip, r"model\.safetensors is not the file"),
        (other_weights, r"model\.safetensors does not fit its config\.json.*log_alpha"),
        (edit(lambda c: c.update(format=2)), r"config\.json was written by a newer clipmend"),
        (edit(lambda c: c.update(format=None)), r"config\.json was written by a newer clipmend"),
        (edit(lambda c: c.update(colour=2)), r"config\.json: unknown entries colour"),
        (edit(lambda c: c.pop("metrics")), r"config\.json: missing entries metrics"),
        (edit(lambda c: c["config"].update(colour=2)), r"config\.json: unknown field colour"),
        (edit(lambda c: c["config"].update(dropout=-1)), r"config\.json: dropout"),
        (edit(lambda c: c["config"].update(peak=None)), r"config\.json: the config leaves layers"),
        (edit(lambda c: c["backbone"].pop("fingerprint")), r'config\.json: the entry "backbone"'),
        (edit(lambda c: c.update(backbone=3)), r'config\.json: the entry "backbone" must be a mapping'),
        (edit(lambda c: c["config"].update(hidden=64)), r"model\.safetensors does not fit its config\.json"),
        (edit(lambda c: c["config"].update(use_scn=False)), r"model\.safetensors holds an SCN"),
    ],
)
def test_damage_is_named(patch: PeakPatch, tmp_path: Path, damage: Callable[[Path], Any], message: str) -> None:
    folder = patch.save_pretrained(tmp_path / "patch")
    damage(folder)
    with pytest.raises(ValueError, match=message):
        PeakPatch.from_pretrained(folder)


# ---- names and the hub ------------------------------------------------------------------------------------------------------


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no patch called 'nothing'.*photos, scenes"):
        PeakPatch.from_pretrained("nothing")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="is a file"):
        PeakPatch.from_pretrained(tmp_path / "file")


def test_bundled_names(patch: PeakPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clipmend.backbones.__file__", str(tmp_path / "__init__.py"))
    with pytest.raises(ValueError, match="'scenes' is not in this installation"):
        PeakPatch.from_pretrained("scenes")
    patch.save_pretrained(tmp_path / "scenes" / "patch", dtype=torch.float16)
    assert PeakPatch.from_pretrained("scenes").config == patch.config


class Hub:
    """The hub, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.calls = root, []

    def api(self, token: str | None = None) -> Any:
        def create_repo(repo_id: str, **options: Any) -> None:
            self.calls.append(("create", repo_id, token, options))

        def upload_folder(repo_id: str, folder_path: Path, **options: Any) -> str:
            self.calls.append(("upload", repo_id, token, options))
            shutil.copytree(folder_path, self.root / repo_id)
            return f"https://hub/{repo_id}/commit/1"

        return SimpleNamespace(create_repo=create_repo, upload_folder=upload_folder)

    def download(self, repo_id: str, **options: Any) -> str:
        self.calls.append(("download", repo_id, options))
        if not (self.root / repo_id).exists():
            raise OSError("404: repository not found")
        return str(self.root / repo_id)


def test_to_the_hub_and_back(encoder: RandomDualEncoder, patch: PeakPatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path)
    monkeypatch.setattr("huggingface_hub.HfApi", hub.api)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub.download)
    for module in ("files", "patch"):  # this hub needs no network
        monkeypatch.setattr(f"clipmend.negation.{module}.hub_problem", lambda *_: "")
    assert patch.push_to_hub("me/mended", private=True, token="secret", revision="v1") == "https://hub/me/mended/commit/1"
    created, uploaded = hub.calls
    assert created == ("create", "me/mended", "secret", {"private": True, "exist_ok": True})
    assert uploaded[3] == {"revision": "v1", "commit_message": "Upload a PeakPatch"}
    assert sorted(os.listdir(tmp_path / "me" / "mended")) == ["README.md", "config.json", "model.safetensors"]
    again = PeakPatch.from_pretrained("me/mended", revision="v1")
    assert torch.equal(again.apply(encoder).encode_texts(TEXTS), patch.apply(encoder).encode_texts(TEXTS))
    assert hub.calls[-1][2]["revision"] == "v1"
    with pytest.raises(ValueError, match=r"'me/other'.*repository not found"):
        PeakPatch.from_pretrained("me/other")
