"""The generator that comes with the package: it draws what an embedding tells, and less of what a mended one denies."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from clipmend.data.scenes import render
from clipmend.generation.sampling import BUNDLED, SceneGenerator, load_generator, to_images
from clipmend.generation.world import few_objects_scenes

pytest.importorskip("diffusers")


@pytest.fixture(scope="module")
def generator() -> SceneGenerator:
    return load_generator()


@pytest.fixture(scope="module")
def encoder() -> clipmend.DualEncoder:
    return clipmend.load("scenes")


def test_its_size_is_told(generator: SceneGenerator) -> None:
    size = sum(path.stat().st_size for path in BUNDLED["scenes"].iterdir())
    assert size < 3_900_000
    assert generator.training["steps_done"] == generator.training["steps"]
    assert generator.training["threads"] > 0


def test_an_image_drawn_from_an_embedding_is_most_like_its_scene(generator: SceneGenerator, encoder: clipmend.DualEncoder) -> None:
    scenes = [render(scene, 64) for scene in few_objects_scenes(24, 91, "test")]
    told = F.normalize(encoder.encode_images(scenes), dim=-1)
    drawn = to_images(generator.sample(generator.of_images(told), list(range(24)), steps=12, method="euler"))
    again = F.normalize(encoder.encode_images(drawn), dim=-1)
    right = int(((again @ told.T).argmax(1) == torch.arange(24)).sum())
    assert right >= 18, f"{right} of 24"  # one by chance


def test_it_draws_less_of_what_a_mended_prompt_denies(generator: SceneGenerator, encoder: clipmend.DualEncoder) -> None:
    mended = clipmend.PeakPatch.from_pretrained("scenes").apply(encoder)
    things = ("cat", "dog", "tree", "house")
    shown = {"plain": 0.0, "mended": 0.0}
    for thing in things:
        seen = F.normalize(encoder.encode_texts([f"a photo of a {thing}"]), dim=-1)
        for name, one in (("plain", encoder), ("mended", mended)):
            images = generator.draw(one, [f"a red cup on a beach, but no {thing}"], list(range(6)), steps=12, method="euler")
            shown[name] += float((F.normalize(encoder.encode_images(images), dim=-1) @ seen.T).mean()) / len(things)
    assert shown["mended"] < shown["plain"] - 0.02, shown


def test_the_command_draws_with_it(tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    told = ["generate", "a beach with a red cup but no cat", "--patch", "scenes", "-n", "2", "--steps", "2", "-o", str(out)]
    done = CliRunner().invoke(app, told)
    assert done.exit_code == 0, done.output
    with Image.open(out) as sheet:
        assert sheet.width >= 2 * 128
