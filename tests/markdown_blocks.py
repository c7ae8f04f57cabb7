"""Read the fenced code blocks of a Markdown page."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,})(?P<language>[\w+-]*)[^`]*$")
MARKER = re.compile(r"<!--\s*not run:\s*(?P<reason>.+?)\s*-->")


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Args:
        page: the page it stands on.
        line: 1-based line of its first line of code.
        language: the word after the fence, ``""`` for none.
        code: the text, dedented by the fence's own indent.
        not_run: the reason given in a ``<!-- not run: REASON -->`` comment on the line before, ``""`` for none.
    """

    page: Path
    line: int
    language: str
    code: str
    not_run: str = ""

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def read_blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order.

    Raises:
        ValueError: a fence that is never closed.
    """
    blocks: list[Block] = []
    opening: re.Match[str] | None = None
    start, code, before, reason = 0, [], "", ""
    for number, text in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = FENCE.match(text)
        if opening is None:
            if match:
                opening, start, code = match, number + 1, []
                marked = MARKER.fullmatch(before.strip())
                reason = marked["reason"] if marked else ""
            elif text.strip():
                before = text
        elif text.strip() == opening["marks"]:
            blocks.append(Block(page, start, opening["language"], "".join(f"{line}\n" for line in code), reason))
            opening, before = None, ""
        else:
            code.append(text.removeprefix(opening["indent"]))
    if opening is not None:
        raise ValueError(f"{page}: the code block that opens on line {start - 1} is never closed")
    return blocks
