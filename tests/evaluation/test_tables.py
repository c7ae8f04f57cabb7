"""Tables for the terminal: readable at 80 columns, and honest about few items."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from clipmend.evaluation.labels import few_items, label_of
from clipmend.evaluation.results import Measure, Result, compare, side_by_side


@dataclass
class Made(Result):
    """A result of measures made to order."""

    made: dict[str, Measure] = field(default_factory=dict)

    task, title = "retrieval", "Retrieval, recall %"

    def measures(self) -> dict[str, Measure]:
        return self.made

    def clusters(self, over: str = "images") -> int:
        return 40

    def resampled(self, weights: NDArray[np.float32], over: str = "images") -> dict[str, NDArray[np.float64]]:
        return {name: m.value + weights[0] / 100 for name, m in self.made.items()}


NAMES = [
    *(f"{way}_retrieval_{rest}" for way in ("image", "text") for rest in ("recall@1", "recall@10", "median_rank")),
    "image_retrieval_oracle_recall@10",
    "text_retrieval_oracle_recall@10",
    "acc_affirmative/reserved_wording",
]


def made(count: int = 160) -> Made:
    measures: dict[str, Measure] = {}
    for name in NAMES:
        ends: dict[str, Any] = {} if "oracle" in name else {"low": 0.9, "high": 1.0}
        measures[name] = Measure(0.975, count, kind="rank" if "rank" in name else "share", **ends)
    return Made("world/negated_retrieval", "openai/clip-vit-base-patch32", made=measures)


def shown(table: Any, width: int = 80) -> str:
    text = io.StringIO()
    Console(file=text, width=width, highlight=False).print(table)
    return text.getvalue()


@pytest.mark.parametrize("kind", ["one", "two", "side"])
def test_no_word_or_number_is_broken_at_80_columns(kind: str) -> None:
    result = made()
    tables = {"one": result.table(), "two": compare(result, made(), samples=50).table(), "side": None}
    table = tables[kind] or side_by_side({"backbone": result, "rule-based projection": made(), "mended": made()})
    text = shown(table)
    assert max(map(len, text.splitlines())) <= 80
    words = {"text to image", "image to text", "median rank", "oracle R@10", "acc_", "affirmative/", "reserved_wording"}
    cells = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    joined = " ".join(cells)
    assert all(word in joined for word in words), joined
    assert "97.5" in text
    assert "oracle: who knows what is true of every image" in " ".join(text.split())
    if kind == "two":
        assert " .. " in text
        assert all(cell.count("..") == 0 or cell.strip()[0] in "+-" for line in text.splitlines() for cell in line.split("│"))


def test_names_in_files_stay() -> None:
    assert set(made().to_dict()["metrics"]) == set(NAMES)
    assert label_of("image_retrieval_recall@5") == "text to image R@5"
    assert label_of("unseen/text_retrieval_median_rank").replace("\n", " ") == "unseen/image to text median rank"
    assert label_of("acc_negative") == "acc_negative"


def test_few_items_are_said_and_many_not() -> None:
    assert "few items (n = 160)" in shown(made().table(), 200)
    assert "few items (n = 160)" in shown(compare(made(), made(), samples=50).table(), 200)
    assert "few items (n = 160)" in shown(side_by_side({"a": made(), "b": made()}), 200)
    assert "few items" not in shown(made(300).table(), 200)
    told = few_items([Measure(0.5, 20, 0.3, 0.7), Measure(0.5, 100, 0.4, 0.6), Measure(0.5, 9), Measure(3, 5, 1, 4, kind="rank")])
    assert told == ["few items (n = 20 to 100): by chance alone a share is off by up to 22 points; smaller differences are noise"]
    assert few_items([]) == []


def test_what_is_exact_has_no_interval_in_its_difference() -> None:
    found = compare(made(), made(), samples=50).differences
    assert np.isnan(found["image_retrieval_oracle_recall@10"].low)
    assert found["image_retrieval_recall@1"].low < 0 < found["image_retrieval_recall@1"].high
