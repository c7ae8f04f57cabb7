"""A tiny generator, trained for seconds: it learns, resumes exactly, and draws the same for the same seed."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from clipmend.data.scenes import make_scenes
from clipmend.generation.sampling import BUNDLED, SceneGenerator, load_generator, noise_of
from helpers import RandomDualEncoder

pytest.importorskip("diffusers")

from clipmend.generation.decoder import DecoderConfig, PatchBasis, SceneDecoder  # needs what was just looked for
from clipmend.generation.train import TrainConfig, prepare, train
from clipmend.generation.world import few_objects_scenes

SHAPE = DecoderConfig(
    embed_dim=16, image_size=32, patch=4, components=12, width=32, heads=2, layers=2, tokens=2, embedding=32, refiner=8
)  # fmt: skip
CONFIG = TrainConfig(
    scenes=6, captions=2, steps=200, batch_size=24, learning_rate=4e-3, warm_up=20, average=0.97, estimated=0.3, refined=8
)  # fmt: skip


@pytest.fixture(scope="module")
def encoder() -> RandomDualEncoder:
    return RandomDualEncoder()


@pytest.fixture(scope="module")
def trained(encoder: RandomDualEncoder, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SceneGenerator]:
    out = tmp_path_factory.mktemp("generator")
    return out, train(encoder, out, CONFIG, SHAPE)


def test_it_draws_the_scene_that_it_was_told_of(trained: tuple[Path, SceneGenerator], encoder: RandomDualEncoder) -> None:
    _, generator = trained
    data = prepare(encoder, few_objects_scenes(6, CONFIG.seed), 32, 1, 0)
    pixels = data.pixels
    drawn = generator.sample(generator.of_images(data.embeddings[0]), list(range(6)), steps=12, guidance=1.5).float()
    apart = (drawn[:, None] - pixels[None].float()).square().mean((2, 3, 4))  # [drawn, real]
    right = int((apart.argmin(1) == torch.arange(6)).sum())
    assert right >= 4, f"{right} of 6"  # one of six by chance
    own, others = apart.diagonal().mean(), apart[~torch.eye(6, dtype=torch.bool)].mean()
    assert own < 0.6 * others


def test_seeds_fix_the_picture_whatever_is_drawn_beside(trained: tuple[Path, SceneGenerator]) -> None:
    _, generator = trained
    condition = generator.of_texts(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)))
    three = generator.sample(condition, [5, 6, 5], steps=3)
    assert torch.equal(three, generator.sample(condition, [5, 6, 5], steps=3))
    alone = generator.sample(generator.of_texts(torch.randn(3, 16, generator=torch.Generator().manual_seed(0))[1:2]), [6], steps=3)
    assert (alone[0].int() - three[1].int()).abs().max() <= 1  # sums of another batch may round otherwise
    assert not torch.equal(generator.sample(condition, [7, 8, 9], steps=3), three)


def test_the_noise_of_a_seed() -> None:
    assert torch.equal(noise_of(3, SHAPE), noise_of(3, SHAPE))
    both = torch.stack([noise_of(0, SHAPE).flatten(), noise_of(1, SHAPE).flatten()])
    assert abs(float(torch.corrcoef(both)[0, 1])) < 0.15
    with pytest.raises(ValueError, match="negative"):
        noise_of(-1, SHAPE)


def test_guidance_away_from_the_condition_itself_changes_nothing(trained: tuple[Path, SceneGenerator]) -> None:
    _, generator = trained
    condition = generator.of_texts(torch.randn(2, 16, generator=torch.Generator().manual_seed(1)))
    plain = generator.sample(condition, [0, 1], guidance=1.0, steps=4).int()
    same = generator.sample(condition, [0, 1], away=condition, guidance=3.0, steps=4).int()
    assert (plain - same).abs().max() <= 1
    assert (plain - generator.sample(condition, [0, 1], guidance=3.0, steps=4).int()).abs().max() > 5


def test_a_stopped_training_goes_on_to_equal_weights(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=8)
    whole = train(encoder, tmp_path / "whole", config, SHAPE)
    train(encoder, tmp_path / "parts", config, SHAPE, stop_after=3)
    assert (tmp_path / "parts" / "checkpoint.pt").exists()
    assert (tmp_path / "parts" / "so-far" / "samples.png").exists()
    assert not (tmp_path / "parts" / "model.safetensors").exists()
    resumed = train(encoder, tmp_path / "parts", config, SHAPE)
    for (name, one), two in zip(whole.decoder.state_dict().items(), resumed.decoder.state_dict().values(), strict=True):
        assert torch.equal(one, two), name
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()


def test_a_checkpoint_of_another_training_is_refused(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=8)
    train(encoder, tmp_path, config, SHAPE, stop_after=2)
    with pytest.raises(ValueError, match="learning_rate"):
        train(encoder, tmp_path, replace(config, learning_rate=1e-4), SHAPE)


def test_saved_and_loaded_it_draws_the_same(trained: tuple[Path, SceneGenerator], tmp_path: Path) -> None:
    out, generator = trained
    loaded = load_generator(out)
    condition = generator.of_texts(torch.randn(2, 16, generator=torch.Generator().manual_seed(2)))
    one, two = (g.sample(condition, [0, 1], steps=4).int() for g in (generator, loaded))
    assert (one - two).abs().float().mean() < 1.0  # float16
    generator.save(tmp_path, torch.float32)
    three = load_generator(tmp_path).sample(condition, [0, 1], steps=4).int()
    assert torch.equal(one, three)
    assert loaded.training["steps_done"] == CONFIG.steps


def test_another_encoder_is_refused(trained: tuple[Path, SceneGenerator], encoder: RandomDualEncoder) -> None:
    generator = load_generator(trained[0])
    assert len(generator.draw(encoder, ["a cat", "a dog"], [0, 1], steps=1)) == 4
    with pytest.raises(ValueError, match="another image side"):
        generator.draw(RandomDualEncoder(seed=9), ["a cat"], [0])


def test_bad_conditions_are_refused(trained: tuple[Path, SceneGenerator]) -> None:
    _, generator = trained
    condition = generator.of_texts(torch.randn(2, 16))
    with pytest.raises(ValueError, match="as many seeds"):
        generator.sample(condition, [0])
    with pytest.raises(ValueError, match="finite"):
        generator.sample(generator.of_images(torch.full((1, 16), float("nan"))), [0])
    with pytest.raises(ValueError, match="16 numbers"):
        generator.sample(generator.of_images(torch.randn(1, 8)), [0])
    assert generator.sample(generator.of_texts(torch.zeros(0, 16)), []).shape == (0, 32, 32, 3)


def test_nothing_or_something_else_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no trained generator"):
        load_generator(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ValueError, match=r"model\.safetensors cannot be read"):
        load_generator(tmp_path)


def weights_of(generator: SceneGenerator) -> dict[str, Tensor]:
    return generator.decoder.state_dict()


def test_in_bfloat16_it_learns_and_goes_on_to_equal_weights(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=12, bfloat16=True)
    whole = train(encoder, tmp_path / "whole", config, SHAPE)
    train(encoder, tmp_path / "parts", config, SHAPE, stop_after=5)
    resumed = train(encoder, tmp_path / "parts", config, SHAPE)
    plain = weights_of(train(encoder, tmp_path / "plain", replace(config, bfloat16=False), SHAPE))
    for name, value in weights_of(whole).items():
        assert value.dtype == torch.float32, name
        assert torch.equal(value, weights_of(resumed)[name]), name
        if value.numel() > 8 and float(plain[name].std()) > 0:  # near what float32 learns, and not the same
            assert float((value - plain[name]).norm()) <= 0.2 * float(plain[name].norm()) + 0.05, name
    assert not torch.equal(weights_of(whole)["layers.0.attn1.to_q.weight"], plain["layers.0.attn1.to_q.weight"])
    assert whole.training["bfloat16"] is True
    train(encoder, tmp_path / "other", config, SHAPE, stop_after=2)
    with pytest.raises(ValueError, match=r"bfloat16: True there, False now"):
        train(encoder, tmp_path / "other", replace(config, bfloat16=False), SHAPE)


def test_a_compiled_training_computes_through_the_compiled_network_and_saves_the_plain_one(
    encoder: RandomDualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def compiled(net: torch.nn.Module) -> Callable[..., Tensor]:
        def run(*arguments: Tensor) -> Tensor:
            calls.append(len(arguments))
            return net(*arguments)

        return run

    config = replace(CONFIG, steps=4)
    plain = weights_of(train(encoder, tmp_path / "plain", config, SHAPE))
    monkeypatch.setattr(torch, "compile", compiled)
    train(encoder, tmp_path / "compiled", config, SHAPE, compiled=True, stop_after=2)
    found = weights_of(train(encoder, tmp_path / "compiled", config, SHAPE, compiled=False))  # goes on without
    assert calls == [3, 3]
    assert all(torch.equal(plain[name], found[name]) for name in plain)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None and shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiled_it_learns_what_it_learns_plain(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    config = replace(CONFIG, steps=6)
    train(encoder, tmp_path / "plain", config, SHAPE, stop_after=3)  # the losses told are smoothed from where a run went on
    plain = train(encoder, tmp_path / "plain", config, SHAPE)
    train(encoder, tmp_path / "compiled", config, SHAPE, compiled=True, stop_after=3)
    found = train(encoder, tmp_path / "compiled", config, SHAPE, compiled=True)
    assert found.training["losses"]["flow"] == pytest.approx(plain.training["losses"]["flow"], rel=0.05)
    for name, value in weights_of(plain).items():
        if value.dim() > 1:
            assert float((weights_of(found)[name] - value).norm()) <= 0.1 * float(value.norm()) + 0.02, name
    assert load_generator(tmp_path / "compiled").training["steps_done"] == 6


def test_a_training_that_diverges_stops_and_keeps_its_last_checkpoint(
    encoder: RandomDualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, steps=8)
    train(encoder, tmp_path, config, SHAPE, stop_after=3)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    monkeypatch.setattr(SceneDecoder, "forward", lambda self, x, t, told: x * float("nan") * told.sum())
    with pytest.raises(ValueError, match="step 4: the gradient is no longer finite"):
        train(encoder, tmp_path, config, SHAPE, checkpoint_every=1)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 not a checkpoint"])
def test_a_damaged_checkpoint_or_cache_is_named(encoder: RandomDualEncoder, tmp_path: Path, damage: bytes) -> None:
    config = replace(CONFIG, steps=8)
    train(encoder, tmp_path, config, SHAPE, stop_after=2)
    good = (tmp_path / "checkpoint.pt").read_bytes()
    (tmp_path / "checkpoint.pt").write_bytes(damage)
    passes = encoder.image_passes
    with pytest.raises(ValueError, match=r"checkpoint\.pt cannot be read .* delete it"):
        train(encoder, tmp_path, config, SHAPE)
    (tmp_path / "checkpoint.pt").write_bytes(good)
    (cache,) = tmp_path.glob("embeddings-*.safetensors")
    cache.write_bytes(damage)
    with pytest.raises(ValueError, match=r"embeddings-.* cannot be read .* delete it"):
        train(encoder, tmp_path, config, SHAPE)
    assert encoder.image_passes == passes
    cache.unlink()
    assert train(encoder, tmp_path, config, SHAPE).training["steps_done"] == 8


def test_a_finished_generator_is_not_trained_over(
    trained: tuple[Path, SceneGenerator], encoder: RandomDualEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = trained
    before = (out / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="holds a generator that is finished"):
        train(encoder, out, CONFIG, SHAPE)
    assert (out / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"learning_rate": math.inf}, {"warm_up": 0},
        {"muon_rate": 0.0}, {"muon_rate": math.nan},
        {"seed": -1}, {"time_std": 0.0}, {"time_mean": math.nan}, {"weight_decay": -1.0}, {"dropped": 1.0}, {"refined": -1},
    ],
)  # fmt: skip
def test_impossible_trainings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(values))):
        TrainConfig(**values)


@pytest.mark.parametrize("module", ["train", "presence", "experiment"])
def test_the_command_lines_refuse_in_one_line(module: str, tmp_path: Path) -> None:
    wrong = ["--judge", str(tmp_path), "--prompts", "0"] if module == "experiment" else ["--steps", "0"]
    arguments = ["--out", str(tmp_path / "out"), *wrong]
    done = subprocess.run(
        [sys.executable, "-m", f"clipmend.generation.{module}", *arguments], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_prior_reads_affirmative_captions_alone(
    encoder: RandomDualEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clipmend.negation.gate import has_negation

    read: list[str] = []
    plain = RandomDualEncoder.encode_texts

    def listening(self: RandomDualEncoder, texts: list[str], **options: Any) -> Tensor:
        read.extend(texts)
        return plain(self, texts, **options)

    monkeypatch.setattr(RandomDualEncoder, "encode_texts", listening)
    train(encoder, tmp_path, replace(CONFIG, scenes=120, captions=4, steps=1), SHAPE)
    assert len(read) == 480
    assert not [text for text in read if has_negation(text)]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda config, weights: config["decoder"].update(width=20), "width must be"),
        (lambda config, weights: config.update(decoder=[1]), "must be a mapping"),
        (lambda config, weights: config.update(text_digest=5), "text_digest is of another type"),
        (lambda config, weights: config.update(training=[1]), "training is of another type"),
        (lambda config, weights: weights.update({"other.weight": torch.zeros(1)}), "other.weight is of no generator"),
        (lambda config, weights: weights["decoder.nothing"].fill_(float("nan")), "decoder.nothing holds values that are not"),
        (lambda config, weights: weights.pop("decoder.nothing"), "nothing"),
    ],
)
def test_a_folder_with_something_wrong_is_named_with_what_is(
    trained: tuple[Path, SceneGenerator], tmp_path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], Any], told: str
) -> None:
    config, weights = json.loads((trained[0] / "config.json").read_text()), load_file(trained[0] / "model.safetensors")
    change(config, weights)
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=told) as stop:
        load_generator(tmp_path)
    assert str(tmp_path) in str(stop.value)


def test_a_config_in_another_encoding_is_named(trained: tuple[Path, SceneGenerator], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes('{"backbone": "é"}'.encode("latin-1"))
    (tmp_path / "model.safetensors").write_bytes((trained[0] / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"config\.json: not JSON"):
        load_generator(tmp_path)


def test_weights_that_half_precision_cannot_hold_are_not_saved(trained: tuple[Path, SceneGenerator], tmp_path: Path) -> None:
    generator = load_generator(trained[0])
    generator.decoder.nothing.data.fill_(1e6)
    with pytest.raises(ValueError, match=r"decoder\.nothing"):
        generator.save(tmp_path)
    assert not (tmp_path / "model.safetensors").exists()
    generator.save(tmp_path, torch.float32)
    assert float(load_generator(tmp_path).decoder.nothing.max()) == 1e6


def test_what_cannot_be_drawn_with_is_refused(trained: tuple[Path, SceneGenerator]) -> None:
    _, generator = trained
    condition = generator.of_texts(torch.randn(1, 16))
    for options, told in (
        ({"guidance": float("inf")}, "guidance"), ({"guidance": float("nan")}, "guidance"), ({"shift": float("inf")}, "shift"),
        ({"batch_size": 0}, "batch_size"), ({"guidance": 1e39}, "not finite"),
    ):  # fmt: skip
        given: dict[str, Any] = {"steps": 2, **options}
        with pytest.raises(ValueError, match=told):
            generator.sample(condition, [0], **given)


def test_the_basis_keeps_everything_where_all_components_are_kept() -> None:
    pixels = torch.rand(20, 3, 16, 16, generator=torch.Generator().manual_seed(0)) * 2 - 1
    whole, half = PatchBasis(4, 48), PatchBasis(4, 24)
    assert whole.fit(pixels) == pytest.approx(1)
    assert torch.allclose(whole.decode(whole.encode(pixels)), pixels, atol=1e-4)
    assert float(whole.encode(pixels).var(unbiased=False)) == pytest.approx(1, abs=0.05)
    kept = half.fit(pixels)
    lost = (half.decode(half.encode(pixels)) - pixels).square().mean()
    all_of_it = (pixels - whole.decode(torch.zeros(1, 48, 4, 4))).square().mean()
    assert float(lost / all_of_it) == pytest.approx(1 - kept, abs=0.02)


def test_embeddings_are_made_once(encoder: RandomDualEncoder, tmp_path: Path) -> None:
    scenes = make_scenes(5, 1)
    first = prepare(encoder, scenes, 32, 2, 0, cache=tmp_path)
    passes = encoder.image_passes
    second = prepare(encoder, scenes, 32, 2, 0, cache=tmp_path)
    assert encoder.image_passes == passes
    assert torch.equal(first.embeddings, second.embeddings)
    assert first.owners.tolist() == [k // 2 for k in range(10)]
    flipped = prepare(encoder, scenes, 32, 1, 0).pixels.flip(2).numpy()
    from PIL import Image

    again = encoder.encode_images([Image.fromarray(np.ascontiguousarray(row)) for row in flipped])
    assert torch.allclose(again, first.embeddings[1], atol=1e-5)


@pytest.mark.parametrize(
    "values",
    [
        {"patch": 3}, {"components": 0}, {"components": 193}, {"width": 20}, {"width": 0}, {"image_size": 36}, {"image_size": 0},
        {"layers": 0}, {"heads": 3}, {"heads": 0}, {"tokens": 0},
    ],
)  # fmt: skip
def test_impossible_shapes_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must be|has 1 to"):
        DecoderConfig(**values)  # type: ignore[arg-type]


def test_the_bundled_size_fits() -> None:
    decoder = SceneDecoder()
    size = 2 * (sum(value.numel() for value in decoder.state_dict().values()) + 384 * 385)
    assert size < 3_900_000


def test_an_untrained_network_gives_the_best_linear_guess() -> None:
    decoder = SceneDecoder(SHAPE)
    deviation = torch.linspace(0.3, 2.0, SHAPE.components)
    decoder.basis.deviation.copy_(deviation)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(1024, SHAPE.components, SHAPE.grid, SHAPE.grid, generator=generator) * deviation.view(1, -1, 1, 1)
    noise = torch.randn(data.shape, generator=generator)
    told = torch.zeros(1024, SHAPE.embedding)
    for time in (0.0, 0.3, 0.8):
        x = (1 - time) * noise + time * data
        with torch.no_grad():
            said = decoder(x, torch.full((1024,), time), told)
        velocity = data - noise
        slope = (velocity * x).sum((0, 2, 3)) / x.square().sum((0, 2, 3))  # least squares, number by number
        assert torch.allclose((said / x).mean((0, 2, 3)), slope, atol=0.05)


def test_an_installation_without_the_bundled_generator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUNDLED, "scenes", tmp_path)
    with pytest.raises(OSError, match=r"the bundled generator is missing from .*: install clipmend again"):
        load_generator("scenes")
