"""Fine-tuning where something goes wrong: disks that are full, configurations of the wrong kind, odd places to write to."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from typer.testing import CliRunner

from clipmend.checkpoint import CHECKPOINT, save_checkpoint
from clipmend.cli.app import app
from clipmend.dense import FinetuneConfig, Pairs
from clipmend.dense.pairs import as_pairs
from clipmend.dense.states import save_best
from clipmend.dense.stats import caption_geometry
from dense import small_training as small

pytest.importorskip("accelerate", reason="needs the extra train")

FEW = ("--batch-size", "4", "--lr", "1e-3", "--device", "cpu", "--validation", "0.2")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "photos"
    folder.mkdir()
    for k, (picture, caption) in enumerate(small.items(10)):
        picture.save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text(caption, encoding="utf-8")
    return folder


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["finetune", *map(str, arguments), *FEW])


def test_a_full_disk_is_an_error_that_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / CHECKPOINT, {"identity": "a", "step": 1})
    before = (tmp_path / CHECKPOINT).read_bytes()

    def full(*arguments: Any, **more: Any) -> None:  # what torch.save makes of a full disk
        raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match=f"{CHECKPOINT} cannot be written; is the disk full"):
        save_checkpoint(tmp_path / CHECKPOINT, {"identity": "a", "step": 2})
    assert (tmp_path / CHECKPOINT).read_bytes() == before

    def full_too(tensors: Any, path: Path) -> None:  # and safetensors has an error of its own
        Path(path).write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("clipmend.dense.states.save_file", full_too)
    with pytest.raises(OSError, match=r"best-3\.safetensors cannot be written"):
        save_best(tmp_path, {"weight": torch.zeros(2)}, 3)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number"),
        ({"steps": "5"}, "steps is '5'; it must be a whole number"),
        ({"steps": 1.5}, "steps is 1.5; it must be a whole number"),
        ({"steps": True}, "steps is True; it must be a whole number"),
        ({"epochs": float("inf")}, "epochs is inf"),
        ({"betas": ["a", "b"]}, "betas is 'a'; it must be a number"),
        ({"betas": 5}, "betas is 5; it must be two numbers"),
        ({"betas": [0.9, 1.0]}, "either must be from 0"),
        ({"eps": "small"}, "eps is 'small'; it must be a number"),
        ({"seed": -1}, "seed is -1; it must be 0 or more"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
        ({"lens_every": 1.5}, "lens_every is 1.5; it must be a whole number"),
        ({"gradient_checkpointing": "no"}, "gradient_checkpointing is 'no'; it must be true or false"),
        ({"learning_rate": [1]}, r"learning_rate is \[1\]; it must be a number"),
        ({"batch_size": None}, "batch_size is None; it must be a whole number"),
    ],
)
def test_a_configuration_of_another_kind_is_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FinetuneConfig.from_dict(values)


def test_numbers_of_numpy_are_numbers() -> None:
    assert FinetuneConfig(batch_size=np.int64(8), learning_rate=np.float64(1e-3)).rate == 1e-3


def test_the_working_directory_is_a_place_for_the_model(
    model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    result = run(model, "--data", photos, "-o", ".", "--steps", 2, "--recipe", "plain")
    assert result.exit_code == 0, result.output
    assert {"model.safetensors", "metrics.jsonl"} <= {path.name for path in (tmp_path / "here").iterdir()}
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_lens_asked_for_too_late_does_not_cost_the_model(model: str, photos: Path, tmp_path: Path) -> None:
    work = ("--data", photos, "--work", tmp_path / "work", "--steps", 2, "--recipe", "plain")
    assert run(model, *work, "-o", tmp_path / "one").exit_code == 0
    result = run(model, *work, "-o", tmp_path / "two", "--lens-every", 1)
    assert result.exit_code == 0, result.output
    assert "saw no batch" in result.output
    assert (tmp_path / "two" / "model.safetensors").read_bytes() == (tmp_path / "one" / "model.safetensors").read_bytes()


def test_a_picture_that_cannot_be_drawn_leaves_no_half_folder(
    model: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr("clipmend.dense.lens.plot_lens", broken)
    arguments = (model, "--data", photos, "-o", tmp_path / "out", "--steps", 2, "--recipe", "plain", "--lens-every", 1)
    result = run(*arguments)
    assert isinstance(result.exception, OSError)
    assert [path.name for path in tmp_path.iterdir()] == ["out.work"]  # the training is there to go on from
    monkeypatch.undo()
    assert run(*arguments).exit_code == 0
    assert (tmp_path / "out" / "lens.png").is_file()


def test_a_long_caption_does_not_make_the_others_long() -> None:
    captions = [f"caption {k % 1990}" for k in range(2000)] + ["word " * 4000]
    tracemalloc.start()
    pairs = Pairs("many", ["a.png"], captions, np.zeros(len(captions), np.int64), ["a"])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10e6  # 160 MB as an array of texts
    same = pairs.caption_ids[:, None] == pairs.caption_ids
    assert same.sum() == len(captions) + 20
    with pytest.raises(ValueError, match="no two different captions"):
        caption_geometry(None, ["a", "a"])  # type: ignore[arg-type]


def test_other_short_captions_are_other_data() -> None:
    pairs = as_pairs(small.items(4))
    digests = []
    for short in (None, ["a", "b", "c", "d"], ["a", "b", "c", "e"]):
        pairs.short = short
        digests.append(pairs.digest())
    assert len(set(digests)) == 3


def test_one_caption_for_all_images_is_told() -> None:
    pairs = as_pairs([(picture, "a cat") for picture, _ in small.items(8)])
    with pytest.raises(ValueError, match="every other caption stands under one of these too"):
        pairs.split(0.2, 10, 0)
