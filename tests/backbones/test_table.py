"""The table of docs/backbones.md is what the configs say."""

from __future__ import annotations

from pathlib import Path

import backbone_table

PAGE = Path(__file__).parents[2] / "docs" / "backbones.md"


def test_every_row_is_on_the_page() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    rows = backbone_table.rows()
    start = lines.index(backbone_table.HEADER[0])
    assert lines[start + 1] == backbone_table.HEADER[1]
    assert lines[start + 2 : start + 2 + len(rows)] == [row.markdown() for row in rows]
    last = lines[start + 2 + len(rows)]
    assert last.startswith("| RN50 (open_clip) | 512 / 1024 | 12 | 102,007,137 | 5,253,633 | 887,041 |")
    assert not lines[start + 3 + len(rows)]


def test_shares_of_the_published_backbone() -> None:
    row = backbone_table.rows()[0]
    assert (row.parameters, row.ecn, row.scn) == (151_277_313, 4_728_833, 493_825)
    assert round(row.share, 1) == 3.5
