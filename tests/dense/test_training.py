"""The trainer: its batches, its steps, kills, processes, frozen sides, and the model that comes out."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoTokenizer, CLIPModel

import clipmend
from backbones import tiny
from clipmend.dense import FinetuneConfig, finetune, make_recipe
from clipmend.dense.batches import Batches
from clipmend.dense.pairs import Pairs, as_pairs
from clipmend.dense.progress import read_metrics
from clipmend.dense.recipes import Recipe
from clipmend.dense.towers import Towers
from dense import small_training as small

pytest.importorskip("accelerate", reason="needs the extra train")

WORKER = Path(__file__).with_name("training_worker.py")


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "clip")


@pytest.fixture(scope="module")
def siglip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.siglip_folder(tmp_path_factory.mktemp("models") / "siglip")


def trained(model: str, recipe: str = "plain", fields: dict[str, Any] | None = None, **values: Any) -> dict[str, torch.Tensor]:
    done = finetune(model, small.pairs(), small.config(recipe, fields, **{"choose": "last", **values}), device="cpu")
    return small.weights(done.model)


def assert_weights(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor], **near: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}", **near)  # type: ignore[arg-type]


# ---- towers -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_towers_are_the_library_s_features(family: str, clip: str, siglip: str) -> None:
    encoder: Any = clipmend.load(clip if family == "clip" else siglip, device="cpu")
    towers = Towers(encoder, tokens=frozenset({"image", "text"})).eval()
    texts = ["a dog", "no cat"]
    pixels = torch.stack([encoder.prepare_image(picture) for picture in tiny.images()[:2]])
    tokens = encoder.tower.tokens(texts).ids
    length = 20 if towers.whole_length else max(map(len, tokens))
    ids = torch.tensor([row + [encoder.tower.tokens.pad_id] * (length - len(row)) for row in tokens])
    with torch.no_grad():
        out = towers({"pixels": pixels, "ids": ids})
    assert_close(out["image"], encoder.encode_images(tiny.images()[:2]), atol=1e-6, rtol=0)
    assert_close(out["text"], encoder.encode_texts(texts), atol=1e-6, rtol=0)
    assert_close(out["logit_scale"].item(), encoder.logit_scale)
    assert ("logit_bias" in out) == (family == "siglip")
    assert out["image_tokens"].shape == (2, 16, encoder.embed_dim)
    assert out["text_tokens"].shape == (2, length, encoder.embed_dim)
    assert_close(out["image_tokens"].norm(dim=-1), torch.ones(2, 16))
    place = [len(row) - 1 for row in tokens] if family == "clip" else [-1, -1]
    # The pooled text is one of the projected tokens: the projection of tokens is that of the pooled state.
    assert_close(out["text_tokens"][torch.arange(2), place], out["text"], atol=1e-6, rtol=0)


def test_several_views_a_pair(clip: str) -> None:
    towers = Towers(small_encoder(clip), tokens=frozenset({"image/crop"})).eval()
    pixels = torch.randn(2, 3, 3, 32, 32)
    ids = torch.randint(3, 200, (2, 2, 5))
    with torch.no_grad():
        out = towers({"pixels": pixels[:, 0], "image/crop": pixels, "text/part": ids})
        flat = towers({"pixels": pixels.flatten(0, 1), "text/part": ids.flatten(0, 1)})
    assert "text" not in out
    assert_close(out["image/crop"].flatten(0, 1), flat["image"])
    assert_close(out["text/part"].flatten(0, 1), flat["text/part"])
    assert out["image/crop_tokens"].shape == (2, 3, 16, 24)


def small_encoder(name: str) -> Any:
    return clipmend.load(name, device="cpu")


# ---- batches ----------------------------------------------------------------------------------------------------------------


def test_each_pair_once_an_epoch_on_any_number_of_processes() -> None:
    rows = np.arange(100, 150)
    for world in (1, 2, 3):
        made = [
            Batches(None, rows, batch_size=8, accumulate=2, micro_batches=2, seed=5, rank=rank, world=world)  # type: ignore[arg-type]
            for rank in range(world)
        ]
        assert made[0].per_epoch == 3
        for epoch in range(2):
            seen: list[int] = []
            for step in range(3 * epoch, 3 * epoch + 3):
                for part in range(2):
                    batch = made[0].rows_of(step, part)
                    own = [one.own(batch) for one in made]
                    assert np.concatenate(own).tolist() == batch.tolist()
                    assert max(map(len, own)) - min(map(len, own)) <= 1
                    seen += batch.tolist()
            assert len(set(seen)) == len(seen) == 48
    assert made[0].rows_of(0).tolist() != made[0].rows_of(3).tolist()


def test_held_out_images_share_no_caption_with_the_training() -> None:
    captions = [f"caption {k // 3}" for k in range(60)]
    data = Pairs("x", list(range(30)), captions, np.arange(60) // 2, [str(k) for k in range(30)])
    train, held = data.split(0.1, 100, seed=1)
    assert len(np.unique(data.image_of[held])) == 3
    assert not set(data.image_of[train]) & set(data.image_of[held])
    assert not {captions[k] for k in train} & {captions[k] for k in held}
    assert data.split(0.5, 4, seed=1)[1].size == 8


# ---- steps ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["plain", "hn-clip"])
def test_micro_batches_and_checkpointed_gradients_change_nothing(recipe: str, clip: str) -> None:
    wanted = trained(clip, recipe, steps=3)
    for values in ({"micro_batches": 3}, {"gradient_checkpointing": True}):
        assert_weights(trained(clip, recipe, steps=3, **values), wanted, atol=3e-5, rtol=1e-4)


def test_accumulated_gradients_are_the_mean(clip: str) -> None:
    first = trained(clip, steps=1, batch_size=8, accumulate=2, warmup=0, grad_clip=0)
    encoder = small_encoder(clip)
    data, settings = small.pairs(), small.config()
    train, _ = data.split(settings.validation, settings.validation_limit, settings.seed)
    order = np.random.default_rng((0, 1, 0)).permutation(train)
    model = encoder.model.requires_grad_()
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if (p.ndim > 1) == matrix], "weight_decay": 0.01 * matrix} for matrix in (1, 0)],
        lr=1e-3, betas=(0.9, 0.98), eps=1e-6,
    )  # fmt: skip
    total = torch.zeros(())
    for part in range(2):
        rows = order[8 * part : 8 * part + 8]
        pixels = torch.stack([encoder.prepare_image(data.open(row)) for row in rows])
        inputs = encoder.tower.tokens.tokenizer([data.captions[row] for row in rows], padding=True, return_tensors="pt")
        logits = model(input_ids=inputs["input_ids"], pixel_values=pixels).logits_per_image
        target = torch.arange(8)
        total = (
            total + (torch.nn.functional.cross_entropy(logits, target) + torch.nn.functional.cross_entropy(logits.T, target)) / 4
        )
    total.backward()
    optimizer.step()
    assert_weights(first, small.weights(model), atol=3e-5, rtol=1e-4)


def test_sixteen_pairs_are_learned_by_heart(clip: str) -> None:
    data = small.pairs(18)
    done = finetune(data=data, model=clip, config=small.config("hn-clip", steps=40, batch_size=16, choose="last"), device="cpu")
    train, _ = data.split(0.1, 1000, 0)
    images = done.encoder.encode_images([data.open(row) for row in train])
    texts = done.encoder.encode_texts([data.captions[row] for row in train])
    assert (images @ texts.T).argmax(1).tolist() == list(range(16))
    before = clipmend.load(clip, device="cpu")
    untrained = before.encode_images([data.open(row) for row in train]) @ before.encode_texts([data.captions[r] for r in train]).T
    assert (untrained.argmax(1) == torch.arange(16)).float().mean() < 0.5


def test_the_scale_stays_within_its_bounds(clip: str, siglip: str) -> None:
    for name, most in ((clip, math.log(100)), (siglip, math.log(100))):
        model = small_encoder(name).model
        with torch.no_grad():
            model.logit_scale.fill_(4.6)
        towers = Towers(
            clipmend.load(
                model, tokenizer=small_encoder(name).tower.tokens.tokenizer, processor=small_encoder(name).image_processor
            )
        )
        with torch.no_grad():
            model.logit_scale.fill_(9.0)
        towers.clamp_scale()
        assert model.logit_scale.item() == pytest.approx(most)
        with torch.no_grad():
            model.logit_scale.fill_(-1.0)
        towers.clamp_scale()
        assert model.logit_scale.item() == 0


@pytest.mark.parametrize("side", ["text", "image"])
def test_a_frozen_side_keeps_its_bytes(side: str, clip: str) -> None:
    before = small.weights(CLIPModel.from_pretrained(clip))
    after = trained(clip, "hn-clip", freeze=side, steps=3)
    prefixes = ("text_model", "text_projection") if side == "text" else ("vision_model", "visual_projection")
    for name, value in before.items():
        assert torch.equal(value, after[name]) == name.startswith(prefixes), name


def test_repeated_images_and_captions_are_no_negatives(clip: str, tmp_path: Path) -> None:
    items = small.items(12)
    doubled = as_pairs([*items, *((picture, f"{text} again") for picture, text in items[:6])])
    assert len(doubled.images) == 12
    finetune(clip, doubled, small.config(steps=2, batch_size=14, validation=0.1), directory=tmp_path / "work", device="cpu")
    negatives = [entry["negatives"] for entry in read_metrics(tmp_path / "work" / "metrics.jsonl") if "negatives" in entry]
    assert len(negatives) == 2
    assert all(12 <= value < 13 for value in negatives)


def test_half_precision_keeps_float32_weights(clip: str) -> None:
    full = trained(clip, steps=2)
    half = trained(clip, steps=2, precision="bf16")
    assert {value.dtype for value in half.values()} == {torch.float32}
    assert 0 < (full["visual_projection.weight"] - half["visual_projection.weight"]).abs().max() < 5e-3
    with pytest.raises(ValueError, match="'fp16' needs a GPU"):
        trained(clip, steps=2, precision="fp16")
    again = trained(clip, steps=2)  # the precision of one training is not that of the next
    assert_weights(again, full, atol=0, rtol=0)


def test_siglip_trains_with_its_own_loss(siglip: str) -> None:
    before = small.weights(small_encoder(siglip).model)
    after = trained(siglip, steps=2)
    assert after["logit_bias"] != before["logit_bias"]
    softmax = trained(siglip, fields={"global_loss": "softmax"}, steps=2)
    assert torch.equal(softmax["logit_bias"], before["logit_bias"])  # a softmax does not feel it
    assert trained(siglip, "hn-clip", steps=1).keys() == before.keys()


def test_a_frozen_margin_is_that_of_the_model_before(clip: str) -> None:
    values = {"steps": 2, "warmup": 0}
    live, frozen = (trained(clip, fields={"gamma": 0.5, "margin": margin}, **values) for margin in ("live", "frozen"))
    first = [trained(clip, fields={"gamma": 0.5, "margin": margin}, steps=1, warmup=0) for margin in ("live", "frozen")]
    assert_weights(first[0], first[1], atol=1e-5, rtol=1e-4)  # before the first step the two are one
    assert any((live[name] - frozen[name]).abs().max() > 1e-5 for name in live)


# ---- the state that is kept, kills, processes ---------------------------------------------------------------------------------


def test_the_best_state_is_kept(clip: str, tmp_path: Path) -> None:
    settings = small.config(steps=6, validate_every=1, learning_rate=3e-3, validation=0.3)
    done = finetune(clip, small.pairs(), settings, device="cpu")
    scores = {entry["step"]: entry["score"] for entry in done.history}
    assert list(scores) == list(range(7))
    assert done.best_step == max(step for step, score in scores.items() if score == max(scores.values()))
    data = small.pairs()
    _, held = data.split(0.3, 1000, 0)
    texts = done.encoder.encode_texts([data.captions[row] for row in held])
    images = done.encoder.encode_images([data.open(row) for row in held])
    found = 50 * sum((s.argmax(1) == torch.arange(len(held))).double().mean() for s in (texts @ images.T, images @ texts.T))
    assert float(found) == pytest.approx(scores[done.best_step])


def run_worker(*arguments: Any, launcher: tuple[str, ...] = ()) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, *launcher, str(WORKER), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.timeout(300)
def test_killed_and_resumed_is_the_same_bit_for_bit(clip: str, tmp_path: Path) -> None:
    options = {"recipe": "hn-clip", "steps": 24, "validate_every": 7, "checkpoint_every": 2, "micro_batches": 2, "lens_every": 5}
    kills = sorted(int(step) for step in np.random.default_rng().choice(np.arange(1, 20), 2, replace=False))
    run_worker(clip, tmp_path / "work", tmp_path / "resumed.safetensors", json.dumps(options), json.dumps(kills))
    # In one process without any working folder, and another thread count for the images; the same for the arithmetic, whose
    # rounding hangs on it.
    data, settings, threads = small.pairs(), small.config(**options), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = finetune(clip, data, settings, device="cpu", workers=1)
    finally:
        torch.set_num_threads(threads)
    resumed = load_file(tmp_path / "resumed.safetensors")
    for name, value in small.weights(whole.model).items():
        assert torch.equal(resumed[name], value), f"{name} differs after kills at {kills}"
    record = json.loads((tmp_path / "resumed.json").read_text())
    assert record["history"] == whole.history
    lines = read_metrics(tmp_path / "work" / "metrics.jsonl")
    steps = [line["step"] for line in lines if "loss" in line]
    assert steps == list(range(1, 25))  # what killed lives wrote beyond their checkpoint is written once
    assert sorted(path.name for path in (tmp_path / "work").iterdir() if path.name.startswith("best")) == [
        f"best-{whole.best_step}.safetensors"
    ]


@pytest.mark.parametrize("micro_batches", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_two_processes_equal_one(micro_batches: int, clip: str, tmp_path: Path) -> None:
    # An odd batch: uneven shares. Late interaction over texts of different length on either process.
    options = {"recipe": "hn-clip", "steps": 4, "batch_size": 9, "micro_batches": micro_batches, "choose": "last", "lens_every": 2}
    # "--cpu" would want MPI; what "--multi_gpu" starts runs on the CPU where ACCELERATE_USE_CPU says so.
    launcher = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1")
    launcher = (*launcher, "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0")
    run_worker(clip, tmp_path / "work", tmp_path / "two.safetensors", json.dumps(options), launcher=launcher)
    record = json.loads((tmp_path / "two.json").read_text())
    assert record["processes"] == 2
    one = finetune(clip, small.pairs(), small.config(**options), device="cpu")
    assert_weights(load_file(tmp_path / "two.safetensors"), small.weights(one.model), atol=3e-5, rtol=1e-4)
    assert record["history"] == one.history


def test_a_checkpoint_of_another_training_is_refused(clip: str, tmp_path: Path) -> None:
    finetune(clip, small.pairs(), small.config(steps=2), directory=tmp_path, device="cpu")
    with pytest.raises(ValueError, match="belongs to a fine-tuning of another model"):
        finetune(clip, small.pairs(), small.config(steps=3), directory=tmp_path, device="cpu")
    with pytest.raises(ValueError, match="other data"):
        finetune(clip, small.pairs(20), small.config(steps=2), directory=tmp_path, device="cpu")
    (tmp_path / "checkpoint.pt").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match="cannot be read"):
        finetune(clip, small.pairs(), small.config(steps=2), directory=tmp_path, device="cpu")


# ---- what comes out -----------------------------------------------------------------------------------------------------------


def test_the_result_opens_in_plain_transformers_at_the_new_length(clip: str, tmp_path: Path) -> None:
    told: list[str] = []
    items = small.items()
    long = [(picture, f"{text}. " + "a dog. " * (20 if k % 2 else 2)) for k, (picture, text) in enumerate(items)]
    done = finetune(clip, long, small.config("hn-clip", steps=3, length=248), device="cpu", on_start=told.extend)
    assert any("0 of 22 captions (0.0%) are cut at 248 tokens, 12 were at 40" in note for note in told), told
    assert any("7 negatives a query" in note for note in told)
    done.command = "clipmend finetune x"
    folder = done.save(tmp_path / "out")
    model, tokenizer = CLIPModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    assert model.config.text_config.max_position_embeddings == tokenizer.model_max_length == 248
    inputs = tokenizer([long[1][1]], truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape[1] > 40
    with torch.no_grad():
        found = model.get_text_features(input_ids=inputs["input_ids"]).pooler_output
    assert_close(F.normalize(found, dim=-1), done.encoder.encode_texts([long[1][1]]), atol=1e-5, rtol=0)
    assert clipmend.load(str(folder), device="cpu").fingerprint == done.encoder.fingerprint
    assert done.encoder.fingerprint != clipmend.load(clip, device="cpu").fingerprint
    card = (folder / "README.md").read_text()
    for text in ("hn-clip", "clipmend finetune x", "7 negatives a query", done.data_digest[:16], "token_weight", "| 3 |"):
        assert text in card
    assert str(Path(clip).parent) not in card
    record = json.loads((folder / "finetune.json").read_text())
    assert FinetuneConfig.from_dict(record["config"]) == done.config
    with pytest.raises(FileExistsError, match="not empty"):
        done.save(folder)


def test_a_live_model_is_trained_where_it_is(clip: str) -> None:
    encoder = small_encoder(clip)
    done = finetune(encoder, small.pairs(), small.config(steps=1, choose="last"), device="cpu")
    assert done.model is encoder.model
    assert not any(parameter.requires_grad for parameter in done.model.parameters())
    assert not done.model.training


# ---- what is refused ------------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_names_step_and_rate(clip: str) -> None:
    class Broken(Recipe):
        name = "broken"

        def losses(self, batch: Any, at: Any) -> dict[str, torch.Tensor]:
            value = self.global_term(batch)
            return {"global": value * float("nan") if at.step == 2 else value}

    settings = small.config(steps=4, warmup=0)
    object.__setattr__(settings, "recipe", Broken())
    with pytest.raises(ValueError, match=r"the loss is nan at step 3 of 4, with a learning rate of 0\.0005; choose a lower one"):
        finetune(clip, small.pairs(), settings, device="cpu")
    with pytest.raises(ValueError, match="choose a lower one"):
        finetune(clip, small.pairs(), small.config(steps=8, learning_rate=1e30, warmup=0, grad_clip=0), device="cpu")


def test_bad_input(clip: str, siglip: str, tmp_path: Path) -> None:
    def refused(*arguments: Any, **values: Any) -> str:
        with pytest.raises((ValueError, TypeError, OSError)) as caught:
            finetune(*arguments, device="cpu", **values)
        return str(caught.value)

    data = small.pairs()
    assert "cannot be saved as one" in refused("scenes", data, small.config())
    assert "a step takes 64 pairs" in refused(clip, data, small.config(batch_size=64))
    assert "too small for 5 micro-batches" in refused(clip, data, small.config(batch_size=4, micro_batches=5))
    assert "SigLIP, cannot be stretched" in refused(siglip, data, small.config(length=248))
    assert "fewer than the 40" in refused(clip, data, small.config(length=30))
    assert "3 images are too few" in refused(clip, small.items(3), small.config(batch_size=2))
    assert "item 1 is no pair" in refused(clip, [small.items(1)[0], "x"], small.config())
    assert "item 0: the caption is '  '" in refused(clip, [(Image.new("RGB", (8, 8)), "  ")], small.config())
    assert "cannot train on an int" in refused(clip, 3, small.config())
    assert "empty" in refused(clip, " ", small.config())
    assert "needs a model with a logit bias" in refused(clip, data, small.config(fields={"global_loss": "sigmoid"}))
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"\x89PNG nonsense")
    broken = [*small.items(8), (str(bad), "a broken picture")]
    assert "bad.png" in refused(clip, broken, small.config(batch_size=4, steps=6))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch_size": 1}, "a pair alone has no negatives"),
        ({"micro_batches": 0}, "micro_batches is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"validation": 1.0}, "validation is 1.0"),
        ({"precision": "fp8"}, "precision is 'fp8'"),
        ({"freeze": "both"}, "freeze is 'both'"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"recipe": "none"}, "there is no recipe 'none'"),
        ({"choose": "first"}, "choose is 'first'"),
    ],
)
def test_configurations_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FinetuneConfig(**values)


def test_a_configuration_is_written_and_read() -> None:
    made = FinetuneConfig(recipe=make_recipe("hn-clip", token_weight=0.5), steps=3, precision="bf16")
    assert FinetuneConfig.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    with pytest.raises(ValueError, match="there is no epoch in"):
        FinetuneConfig.from_dict({"epoch": 3})
