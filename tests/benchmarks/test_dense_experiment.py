"""The experiment on dense captions: what is run, how it is summed up, and (slow) a tiny one from model to page."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("accelerate")

import clipmend
from clipmend.dense.recipes import RECIPES

ROOT = Path(__file__).parents[2]
MARKS = "head\n\n<!-- dense: begin -->\nold\n<!-- dense: end -->\n\ntail\n"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    known = dict(RECIPES)
    yield import_module
    RECIPES.clear()
    RECIPES.update(known)


def kept(work: Path, label: str, texts: np.ndarray, images: np.ndarray) -> None:
    """Results of a gallery of scenes with twins, two images and two captions each."""
    count = len(images)
    (work / "results").mkdir(parents=True, exist_ok=True)
    np.savez(
        work / "results" / f"{label}.npz", text_ranks=texts, image_ranks=images, image_of=np.arange(count),
        leader=np.arange(count) // 2 * 2, twins_image_by_text=texts == 1,
    )  # fmt: skip


def run_of(variant: str, seed: int) -> dict[str, Any]:
    return {"variant": variant, "seed": seed, "measures": {}, "seconds": {"training": 1.0, "cpu": 1.0}}


def test_every_run_names_a_recipe_that_can_be_made(scripts: Any) -> None:
    module = scripts("dense_runs")
    module.register(module.WeightedRecipe), module.register(module.FixedScaleRecipe)
    known = module.runs()
    assert len(known) == len(set(known)) > 30
    for run in known.values():
        assert run.make(1e-4).learning_rate == 1e-4
    for name in module.FRAMEWORKS:
        assert known[name].make(1e-4).gamma == 0
        assert known[f"{name}-margin"].make(1e-4).gamma == 0.5
    assert {run.part for run in known.values()} >= set(module.THREE_SEEDS)


def test_differences_are_paired_by_seed_and_question(scripts: Any, tmp_path: Path) -> None:
    page = scripts("dense_page")
    rng = np.random.default_rng(0)
    ranks: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
    for variant in ("plain", "margin"):
        for seed in (0, 1):
            ranks[variant, seed] = rng.integers(1, 4, 40), rng.integers(1, 4, 40)
            kept(tmp_path, f"{variant}-seed{seed}", *ranks[variant, seed])
    runs = [run_of(variant, seed) for variant, seed in ranks]
    found = page.Found({"settings": {}, "runs": runs}, tmp_path).difference("margin", "plain")
    score = {key: 50 * ((texts == 1).mean() + (images == 1).mean()) for key, (texts, images) in ranks.items()}
    each = [score["margin", seed] - score["plain", seed] for seed in (0, 1)]
    assert found["seeds"] == pytest.approx(each)
    assert found["mean"] == pytest.approx(np.mean(each))
    assert found["low"] < found["mean"] < found["high"]


def test_a_run_against_itself_differs_by_nothing(scripts: Any, tmp_path: Path) -> None:
    page = scripts("dense_page")
    texts = np.array([1, 2, 1, 3])
    kept(tmp_path, "plain-seed0", texts, texts)
    kept(tmp_path, "margin-seed0", texts, texts)
    found = page.Found({"settings": {}, "runs": [run_of("plain", 0), run_of("margin", 0)]}, tmp_path)
    assert found.difference("margin", "plain") == {"mean": 0, "seeds": [0], "low": 0, "high": 0}


def test_intervals_over_seeds_are_students(scripts: Any) -> None:
    page = scripts("dense_page")
    assert page.half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 * 1 / 3**0.5)
    assert np.isnan(page.half_width([1.0]))


@pytest.mark.slow
def test_a_tiny_experiment_from_model_to_page(scripts: Any, tmp_path: Path) -> None:
    model, experiment = scripts("dense_model"), scripts("dense_experiment")
    runs = scripts("dense_runs")
    runs.register(runs.WeightedRecipe), runs.register(runs.FixedScaleRecipe)
    small = ["--scenes", "300", "--steps", "2", "--batch-size", "32", "--width", "64", "--image-blocks", "1", "--text-blocks", "1"]
    model.main(["--out", str(tmp_path / "clip"), "--work", str(tmp_path / "clip.work"), *small])
    assert clipmend.load(str(tmp_path / "clip")).context_length == 77
    given = ["--model", str(tmp_path / "clip"), "--work", str(tmp_path / "work"), "--json", str(tmp_path / "found.json")]
    size = ["--scenes", "60", "--test-scenes", "10", "--steps", "2", "--batch-size", "8", "--seeds", "0", "1"]
    experiment.main(
        [*given, *size, "--runs", "plain", "margin", "goal", "structxlip-margin", "triplet", "scale-50-0.5", "plain-20"]
    )
    results = sorted(path.stem for path in (tmp_path / "work" / "results").glob("*.json"))
    assert {"plain-seed0", "plain-seed1", "margin-seed1", "goal-seed0", "untrained-248"} <= set(results)
    assert "goal-seed1" not in results
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "work" / "results").iterdir()}
    experiment.main([*given, *size, "--runs", "plain", "margin"])  # nothing is made again
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "work" / "results").iterdir()}
    with pytest.raises(ValueError, match="another folder"):
        experiment.main([*given, *size[:-3], "--seeds", "0", "--rate", "1e-3"])
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(MARKS)
    experiment.main(["--table", "--work", given[3], "--json", given[5], "--page", str(page)])
    text = page.read_text()
    assert text.startswith("head")
    assert text.endswith("tail\n")
    assert "old" not in text
    assert "no results" in text
    assert "InfoNCE against HN-CLIP" in text
    assert "Every recipe" in text
    assert "triplet" in text
    for picture in ("dense-experiment.png", "dense-searches.png"):
        if (page.parent / "images" / picture).exists():
            Image.open(page.parent / "images" / picture).verify()
    assert json.loads((tmp_path / "found.json").read_text())["settings"]["steps"] == 2
