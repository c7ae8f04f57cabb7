"""A folder that must not be trained on is refused, with the reason; one that may be is let through."""

from __future__ import annotations

from pathlib import Path

import pytest

from clipmend.data.negate import negate
from clipmend.data.purpose import check_for_fit
from clipmend.data.readers import read
from clipmend.data.scenes import write_scenes
from data.miniatures import voc


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("purpose")
    source = read(voc(home / "voc", 30))
    folders = {}
    for name, options in (
        ("truthful", {}),
        ("released", {"reading": "released"}),
        ("reserved", {"wordings": "reserved"}),
        ("all", {"wordings": "all"}),
    ):
        folders[name] = negate(source, home / name, seed=1, **options).folder
    for split in ("train", "test"):
        folders[split] = write_scenes(home / split, 3, 16, 1, split).folder
    return folders


@pytest.mark.parametrize("name", ["reserved", "all"])
def test_reserved_wordings_are_refused_unless_insisted(made: dict[str, Path], name: str) -> None:
    with pytest.raises(ValueError, match=r"captions with reserved wordings .*--allow-reserved"):
        check_for_fit(made[name], "truthful")
    (note,) = check_for_fit(made[name], "truthful", allow_reserved=True)
    assert "tests with reserved wordings say nothing" in note


def test_released_questions_are_no_data_for_the_truthful_objective(made: dict[str, Path]) -> None:
    with pytest.raises(ValueError, match=r"a true caption is wrong.*--objective released"):
        check_for_fit(made["released"], "truthful")
    assert check_for_fit(made["released"], "released") == []


def test_what_may_be_trained_on_is_let_through(made: dict[str, Path], tmp_path: Path) -> None:
    assert check_for_fit(made["truthful"], "truthful") == []
    assert check_for_fit(made["train"], "truthful") == []
    (note,) = check_for_fit(made["truthful"], "released")
    assert "--reading released" in note
    (note,) = check_for_fit(made["test"], "truthful")
    assert "test split" in note
    assert check_for_fit(tmp_path, "truthful") == []  # what is missing there the reader of the folder says


@pytest.mark.parametrize("content", ["{", "[]", "[" * 100_000])
def test_a_broken_data_json_is_named(made: dict[str, Path], tmp_path: Path, content: str) -> None:
    (tmp_path / "data.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"data\.json"):
        check_for_fit(tmp_path, "truthful")
