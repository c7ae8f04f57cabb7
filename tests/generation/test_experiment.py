"""The whole measurement, with a tiny generator: what is drawn once is not drawn again."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clipmend.data.scenes import Scene, make_scenes, render, scene_facts
from clipmend.generation.prior import LinearPrior
from clipmend.generation.prompts import FORMS, THINGS, prompts_with_scenes
from clipmend.generation.sampling import SceneGenerator
from helpers import RandomDualEncoder

pytest.importorskip("diffusers")

from clipmend.generation.decoder import DecoderConfig, SceneDecoder  # needs what was just looked for
from clipmend.generation.experiment import ExperimentConfig, run_experiment, table
from clipmend.generation.presence import PresenceJudge, PresenceNet
from clipmend.generation.world import few_objects_scenes


@pytest.fixture
def parts() -> tuple[SceneGenerator, RandomDualEncoder, PresenceJudge]:
    torch.manual_seed(0)
    prior = LinearPrior(16, 16)
    prior.weight.copy_(torch.randn(16, 16))
    decoder = SceneDecoder(
        DecoderConfig(embed_dim=16, components=4, width=16, heads=2, layers=1, tokens=1, embedding=16, refiner=0)
    )
    torch.nn.init.normal_(decoder.last.weight)
    return SceneGenerator(decoder, prior), RandomDualEncoder(), PresenceJudge(PresenceNet(8))


Parts = tuple[SceneGenerator, RandomDualEncoder, PresenceJudge]
CONFIG = ExperimentConfig(prompts=4, seeds=2, steps=1, threshold=0.02)


def test_it_runs_goes_on_and_compares_each_way_with_the_plain_one(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, encoder, judge = parts
    config = CONFIG
    measured = run_experiment(generator, encoder, encoder, judge, tmp_path, config)
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert set(saved["scores"]) == set(FORMS)
    assert set(saved["scores"]["affirmative"]) == {"plain", "mended", "image embedding", "scene itself"}
    assert set(saved["scores"]["hybrid"]) == set(config.methods)
    # The "mended" encoder is the plain one here, and the noise is the same: so are the images.
    same = saved["scores"]["hybrid"]["mended"]["against_plain"]["score"]
    assert same["difference"] == 0
    assert np.array_equal(measured.scores["hybrid"]["mended"].hits, measured.scores["hybrid"]["plain"].hits)
    assert measured.scores["hybrid"]["plain"].n == 8
    assert np.isfinite(measured.distances["plain"]["frechet"])
    assert (tmp_path / "table.md").read_text() == table(measured)
    assert all((tmp_path / f"{form}.png").exists() for form in FORMS)

    def never(*args: object, **options: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(SceneGenerator, "sample", never)
    again = run_experiment(generator, encoder, encoder, judge, tmp_path, config)
    assert again.to_dict() == measured.to_dict()


class Perfect(PresenceJudge):
    """Knows the scenes that prompts are made of, by their pixels; sees nothing in any other image."""

    def __init__(self, scenes: Sequence[Scene]) -> None:
        super().__init__(PresenceNet(8))
        self.known = {np.asarray(render(scene, 64)).tobytes(): scene_facts(scene) for scene in scenes}

    def probabilities(self, images: Any, things: Sequence[str] = THINGS, **options: Any) -> np.ndarray:
        shown = [self.known.get(image.numpy().tobytes(), frozenset()) for image in images]
        return np.array([[float(thing in facts) for thing in things] for facts in shown])


def test_where_things_are_lost_is_told_by_rows_of_known_content(parts: Parts, tmp_path: Path) -> None:
    generator, encoder, _ = parts
    pairs = {form: prompts_with_scenes(form, 4) for form in FORMS}
    judge = Perfect([scene for made in pairs.values() for _, scene in made])
    measured = run_experiment(generator, encoder, encoder, judge, tmp_path, CONFIG)
    real = [scene_facts(scene) for scene in few_objects_scenes(8, 7_900, "test")]
    for form, made in pairs.items():
        assert measured.scores[form]["scene itself"].score == 1  # a judge that makes no mistakes loses nothing
        assert measured.scores[form]["scene itself"].n == 8
        assert measured.scores[form]["plain"].score < 1 or form == "exclusion"
        chance = measured.chance[form]
        fit = [all(t in known for t in p.asserts) and not any(t in known for t in p.denies) for p, _ in made for known in real]
        assert chance["score"] == pytest.approx(sum(fit) / len(fit))
        spared = [not any(t in known for t in p.denies) for p, _ in made for known in real if p.denies]
        assert chance["exclusion_success"] == (pytest.approx(sum(spared) / len(spared)) if spared else None)
        there = [thing in known for p, _ in made for thing in p.asserts for known in real]
        assert chance["presence_recall"] == pytest.approx(sum(there) / len(there))
    assert set(measured.distances) == {"any scene", "plain", "mended", "image embedding"}
    rows = (tmp_path / "table.md").read_text().splitlines()
    (row,) = [row for row in rows if row.startswith("| hybrid | scene itself |")]
    assert "100.0 (" in row
    assert "[+" in row
    assert sum("*any scene*" in row for row in rows) == 3


def test_a_sample_is_left_to_a_person(parts: Parts, tmp_path: Path) -> None:
    generator, encoder, judge = parts
    run_experiment(generator, encoder, encoder, judge, tmp_path, CONFIG)
    with (tmp_path / "check.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["number"] for row in rows} == {str(number) for number in range(1, 49)}  # all of 3 forms, 2 ways, 4 prompts, 2 seeds
    assert {row["drawn_from"] for row in rows} == {"plain", "mended"}
    assert all(
        row["judge"] == ("yes" if float(row["probability"]) >= 0.02 else "no") for row in rows if row["probability"] != "0.020"
    )
    assert all(row["person"] == "" for row in rows)
    assert (tmp_path / "check.png").exists()
    assert (tmp_path / "check-judged.png").exists()


def test_a_killed_run_draws_the_rest_alone_and_ends_with_equal_scores(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator, encoder, judge = parts
    whole = run_experiment(generator, encoder, encoder, judge, tmp_path / "whole", CONFIG)
    draw = SceneGenerator.sample
    drawn: list[int] = []

    def some(self: SceneGenerator, *arguments: Any, **options: Any) -> torch.Tensor:
        if len(drawn) == 4:
            raise KeyboardInterrupt
        drawn.append(1)
        return draw(self, *arguments, **options)

    monkeypatch.setattr(SceneGenerator, "sample", some)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(generator, encoder, encoder, judge, tmp_path / "parts", CONFIG)
    assert not (tmp_path / "parts" / "scores.json").exists()
    drawn.clear()

    def counted(self: SceneGenerator, *arguments: Any, **options: Any) -> torch.Tensor:
        drawn.append(1)
        return draw(self, *arguments, **options)

    monkeypatch.setattr(SceneGenerator, "sample", counted)
    again = run_experiment(generator, encoder, encoder, judge, tmp_path / "parts", CONFIG)
    assert len(drawn) == 3 + 2 * 6 - 4  # three ways of affirmative prompts, six of each other form; four were there
    assert again.to_dict() == whole.to_dict()


def test_ways_need_not_be_all(parts: Parts, tmp_path: Path) -> None:
    generator, encoder, judge = parts
    config = replace(CONFIG, methods=("scene itself", "negative prompt"))
    measured = run_experiment(generator, encoder, encoder, judge, tmp_path, config)
    assert set(measured.scores["affirmative"]) == {"scene itself"}
    assert set(measured.scores["hybrid"]) == {"scene itself", "negative prompt"}
    assert "negative prompt" in table(measured)


@pytest.mark.parametrize(
    "values",
    [
        {"methods": ("magic",)}, {"methods": ()}, {"methods": ("plain", "plain")}, {"prompts": 0}, {"seeds": 0},
        {"prompts": 1, "seeds": 1}, {"steps": 0}, {"guidance": math.nan}, {"weight": math.inf}, {"threshold": math.nan},
        {"threshold": 50.0}, {"threshold": 0.0}, {"method": "magic"},
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_before_anything_is_drawn(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unknown method|one method|at least|threshold"):
        ExperimentConfig(**values)


def test_one_prompt_is_enough(parts: Parts, tmp_path: Path) -> None:
    generator, encoder, judge = parts
    measured = run_experiment(generator, encoder, encoder, judge, tmp_path, replace(CONFIG, prompts=1))
    assert measured.scores["hybrid"]["plain"].n == 2
    assert json.loads((tmp_path / "scores.json").read_text())["scores"]["hybrid"]["plain"]["n"] == 2
    assert "nan" not in table(measured)


def test_the_held_out_scenes_are_in_no_training(parts: Parts) -> None:
    trained = {scene_key(scene) for scene in (*few_objects_scenes(400, 40, "train"), *make_scenes(400, 60, "train"))}
    asked = {scene_key(scene) for form in FORMS for _, scene in prompts_with_scenes(form, 100)}
    assert not trained & asked
    assert not asked & {scene_key(scene) for seed in (7_900, 7_901) for scene in few_objects_scenes(400, seed, "test")}


def scene_key(scene: Scene) -> tuple[Any, ...]:
    return scene.background, scene.objects
