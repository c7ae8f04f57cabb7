"""Every recipe by two processes (gloo) gives what one process gives on the same pairs, up to rounding."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

import clipmend
from clipmend.dense import RECIPES, finetune
from dense import small_training as small

WORKER = Path(__file__).parent / "two_process_worker.py"
EDGES = "opencv" if importlib.util.find_spec("cv2") else "skimage"

# Nine pairs a step: five to one process and four to the other. Where a recipe has several terms, none is too small to be seen.
FIELDS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "plain-frozen": ("plain", {"gamma": 0.5, "margin": "frozen"}),
    "hn-clip": ("hn-clip", {}),
    "long-clip": ("long-clip", {"components": 4, "fixed_positions": 3}),  # with 32 the PCA of nine images is exact
    "debias-clip": ("debias-clip", {"components": 4, "fixed_positions": 0}),
    "finelip": ("finelip", {"hinge": 0.5}),
    "goal": ("goal", {"parts": 2, "gamma": 0.5, "choose": "random"}),
    "structxlip": ("structxlip", {"edges": EDGES, "parts": 2, "chunk_weight": 0.5, "consistency_weight": 0.5}),
    "lora": ("lora", {"rank": 2, "targets": "all", "positions": True}),
    "dora": ("dora", {"rank": 2}),
}
RUNS: dict[str, dict[str, Any]] = {
    name: {"recipe": recipe, "fields": fields, "steps": 2, "batch_size": 9, "choose": "last", "lens_every": 2}
    | {"micro_batches": 2 if name in ("goal", "finelip") else 1}
    for name, (recipe, fields) in FIELDS.items()
}


def needed(names: tuple[str, ...]) -> None:
    for name in names:
        if name in ("lora", "dora"):
            pytest.importorskip("peft")
        if name == "structxlip":
            pytest.importorskip("cv2" if EDGES == "opencv" else "skimage")


def test_no_recipe_is_left_out() -> None:
    assert {recipe for recipe, _ in FIELDS.values()} == set(RECIPES)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("hn-clip", "goal"), id="hn-clip,goal"),
        pytest.param(tuple(name for name in RUNS if name not in ("hn-clip", "goal")), id="others", marks=pytest.mark.slow),
    ],
)
def test_two_processes_equal_one(names: tuple[str, ...], tmp_path: Path) -> None:
    needed(names)
    model = small.clip_folder(tmp_path / "clip")
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    cases = json.dumps({name: RUNS[name] for name in names})
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, *launcher, str(WORKER), model, str(tmp_path), cases]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr[-3000:]
    before = small.weights(clipmend.load(model, device="cpu").model)
    for name in names:
        record = json.loads((tmp_path / f"{name}.json").read_text())
        assert record["processes"] == 2
        one = finetune(model, small.told_pairs(), small.config(**RUNS[name]), device="cpu")
        wanted, found = small.weights(one.model), load_file(tmp_path / f"{name}.safetensors")
        assert found.keys() == wanted.keys()
        for key, value in wanted.items():
            assert_close(found[key], value, atol=3e-5, rtol=1e-4, msg=lambda text, where=f"{name} {key}": f"{where}: {text}")
        moved = max(float((wanted[key] - before[key]).abs().max()) for key in before)
        assert moved > 5e-4, f"{name}: nothing was trained"
        assert [entry["step"] for entry in record["history"]] == [entry["step"] for entry in one.history]
