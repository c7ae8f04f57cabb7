"""How a judge agrees with a person: counted by hand, and files that are not as they should be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clipmend.generation.hand_check import agreement

HEADER = "number,form,drawn_from,prompt,seed,thing,probability,judge,person\n"


def written(folder: Path, *rows: str, start: str = HEADER) -> Path:
    path = folder / "check.csv"
    path.write_text(start + "".join(f"{row}\n" for row in rows), encoding="utf-8", newline="")
    return path


def row(number: int, thing: str, judge: str, person: str) -> str:
    return f'{number},hybrid,plain,"a cup, no cat",0,{thing},0.5,{judge},{person}'


def test_shares_are_those_counted_by_hand(tmp_path: Path) -> None:
    path = written(
        tmp_path, row(1, "cup", "yes", "yes"), row(1, "cat", "no", "yes"), row(2, "cup", "yes", "no"), row(2, "cat", "no", "No "),
        row(3, "cup", "yes", ""), row(4, "cup", "yes", "YES"),
    )  # fmt: skip
    found = agreement(path)
    assert (found.answers, found.images) == (5, 3)
    assert found.agreement == pytest.approx(3 / 5)
    assert found.recall == pytest.approx(2 / 3)
    assert found.specificity == pytest.approx(1 / 2)
    assert found.differ == ((1, "cat", "yes"), (2, "cup", "no"))
    assert found.interval[0] <= found.agreement <= found.interval[1]


def test_nothing_seen_leaves_recall_open(tmp_path: Path) -> None:
    found = agreement(written(tmp_path, row(1, "cup", "no", "no"), row(2, "cup", "no", "no")))
    assert found.recall != found.recall
    assert found.specificity == 1


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, row(1, "cup", "yes", "yes"))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert agreement(path).answers == 1


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([row(1, "cup", "yes", "maybe")], "line 2: person is 'maybe'; write yes or no"),
        ([row(1, "cup", "1", "yes")], "line 2: judge is '1'"),
        ([row(1, "cup", "yes", "")], "nobody has filled the column person"),
        ([row(1, "cup", "yes", "yes"), row(1, "cup", "yes", "no")], "line 3: image 1 is asked about cup on line 2"),
        (["one,hybrid,plain,a,0,cup,0.5,yes,yes"], "number is 'one', not an integer"),
        ([], "no rows below the header"),
    ],
)
def test_what_cannot_be_compared_is_named(tmp_path: Path, rows: list[str], told: str) -> None:
    path = written(tmp_path, *rows)
    with pytest.raises(ValueError, match=told) as stop:
        agreement(path)
    assert str(path) in str(stop.value)


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="person is missing"):
        agreement(written(tmp_path, "1,cup,yes", start="number,thing,judge\n"))


def test_the_command_prints_shares_and_refuses_in_one_line(tmp_path: Path) -> None:
    def run(path: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "clipmend.generation.hand_check", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120)

    done = run(written(tmp_path, row(1, "cup", "yes", "no"), row(2, "cup", "yes", "yes")))
    assert done.returncode == 0
    assert "2 answers about 2 images" in done.stdout
    assert "image 1: cup, the person says no" in done.stdout
    gone = run(tmp_path / "none.csv")
    assert gone.returncode == 1
    assert gone.stderr.startswith("error: ")
    assert gone.stderr.count("\n") == 1


def test_the_page_says_what_the_filled_sample_says() -> None:
    docs = Path(__file__).parents[2] / "docs"
    found, page = agreement(docs / "generation-check.csv"), (docs / "generation.md").read_text(encoding="utf-8")
    assert f"{found.answers} questions about {found.images} of these images" in page
    for share, (low, high) in (
        (found.agreement, found.interval), (found.recall, found.recall_interval), (found.specificity, found.specificity_interval)
    ):  # fmt: skip
        assert f"{100 * share:.1f} % ({100 * low:.1f} to {100 * high:.1f})" in page
