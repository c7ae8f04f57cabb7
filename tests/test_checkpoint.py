"""A working folder belongs to one training at a time."""

from __future__ import annotations

import json
import multiprocessing as mp
from pathlib import Path
from typing import Any

import pytest
import torch

from clipmend.checkpoint import exclusive, load_checkpoint, save_checkpoint


def hold(folder: Path, held: Any, go: Any) -> None:
    with exclusive(folder):
        held.set()
        go.wait(30)


def test_a_folder_in_use_is_refused_and_free_again_after_a_kill(tmp_path: Path) -> None:
    context = mp.get_context("spawn")
    held, go = context.Event(), context.Event()
    other = context.Process(target=hold, args=(tmp_path / "work", held, go))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(ValueError, match="in use by another"), exclusive(tmp_path / "work"):
            pass
    finally:
        other.kill()
        other.join()
    with exclusive(tmp_path / "work"):
        pass


def test_no_folder_holds_nothing() -> None:
    with exclusive(None), exclusive(None):
        pass


def test_the_folder_is_made(tmp_path: Path) -> None:
    with exclusive(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_nothing_is_left_of_a_lock_but_what_was_written_stays(tmp_path: Path) -> None:
    with exclusive(tmp_path / "new" / "empty"):
        pass
    assert not (tmp_path / "new").exists()
    (tmp_path / "own").mkdir()
    with exclusive(tmp_path / "own"):
        pass
    assert (tmp_path / "own").exists()
    with exclusive(tmp_path / "work"):
        (tmp_path / "work" / "state").write_text("x")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["state"]


def test_a_checkpoint_of_another_training_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    one = {"learning_rate": 1000.0, "recipe": {"name": "plain", "gamma": 0.5}, "data": "a" * 64, "seed": 0}
    save_checkpoint(path, {"identity": json.dumps(one), "step": 1})
    other = {**one, "learning_rate": 1e-5, "recipe": {"name": "plain", "gamma": 0.0}, "data": "b" * 64}
    with pytest.raises(ValueError, match="of another model") as refused:
        load_checkpoint(path, json.dumps(other), {"step"}, torch.device("cpu"))
    assert "other data; learning_rate: 1000.0 there, 1e-05 now; recipe.gamma: 0.5 there, 0.0 now" in str(refused.value)
    assert "aaaa" not in str(refused.value)
    assert load_checkpoint(path, json.dumps(one), {"step"}, torch.device("cpu")) == {"step": 1}


def test_an_identity_of_an_earlier_version_is_refused_without_details(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"identity": "0" * 64, "step": 1})
    with pytest.raises(ValueError, match="other data; delete"):
        load_checkpoint(path, json.dumps({"seed": 1}), {"step"}, torch.device("cpu"))
