"""A working folder belongs to one training at a time."""

from __future__ import annotations

import multiprocessing as mp
from pathlib import Path
from typing import Any

import pytest

from clipmend.checkpoint import exclusive


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
