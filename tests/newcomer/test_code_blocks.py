"""Every code block that a newcomer reads in README.md and docs/ is run as it stands.

The blocks of a page share a fresh folder and, for Python, one namespace, so a page reads as one session. ``bash`` blocks run under
``bash -eu``, except that lines which set the machine up (``make``, ``pip install``, ``git clone``, ``cd``) are checked and not run.
A block that cannot run here carries ``<!-- not run: REASON -->`` on the line before; it is compiled, and reported as skipped with
its reason. ``text``, ``console``, ``json``, ``csv`` and the like are shown, not run.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from markdown_blocks import Block, read_blocks

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
RUN = ("python", "bash")
SHOWN = ("text", "console", "json", "csv", "toml", "yaml", "bibtex", "html")
SET_UP = ("make", "pip", "git", "cd")
BLOCKS = [block for page in PAGES for block in read_blocks(page)]
RUNNABLE = [page for page in PAGES if any(b.page == page and b.language in RUN and not b.not_run for b in BLOCKS)]


def name(item: Any) -> str:
    return str(item.relative_to(ROOT)) if isinstance(item, Path) else str(item)


def targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def extras() -> set[str]:
    section = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    )
    return set(re.findall(r"^([a-z-]+) = \[", section, re.MULTILINE))


def check_set_up(line: str) -> None:
    """A set-up line must be one that would work: the make target, the extra, exist."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        asked = [word for word in words[1:] if "=" not in word]
        assert set(asked) <= targets(), f"make has no target {sorted(set(asked) - targets())}"
    elif words[0] == "pip":
        assert words[1] == "install", f"only pip install is expected on a page, not {line!r}"
        asked = [extra for group in re.findall(r"(?:clipmend|\.)\[([\w,-]+)\]", line) for extra in group.split(",")]
        assert set(asked) <= extras(), f"clipmend has no extra {sorted(set(asked) - extras())}"


def run_bash(block: Block, folder: Path) -> None:
    kept = []
    for line in block.code.splitlines():
        if line.split(maxsplit=1)[:1] and line.split(maxsplit=1)[0] in SET_UP:
            check_set_up(line)
        else:
            kept.append(line)
    script = "\n".join(kept)
    if not script.strip():
        return
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "120"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, f"{block} left with {done.returncode}:\n{script}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


# Pages whose commands each start a Python of their own, half a minute or more together; CI runs them with the slow tests.
LONG = (
    "benchmark.md",
    "data-formats.md",
    "dense-evaluation.md",
    "drop-in.md",
    "features.md",
    "filter.md",
    "indexing.md",
    "quickstart.md",
    "reproduce.md",
    "searching.md",
    "service.md",
    "your-index.md",
)


@pytest.mark.parametrize("page", [pytest.param(p, marks=pytest.mark.slow) if p.name in LONG else p for p in RUNNABLE], ids=name)
def test_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("MPLBACKEND", "Agg")
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in BLOCKS:
        if block.page != page or block.not_run:
            continue
        if block.language == "python":
            # The line offset makes a traceback name the line of the page.
            # Without this file's own __future__ import, which a reader does not have.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True), namespace)
        elif block.language == "bash":
            run_bash(block, tmp_path)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.not_run], ids=name)
def test_block_that_cannot_run_here_is_at_least_well_formed(block: Block) -> None:
    assert len(block.not_run) > 10, "say why it is not run"
    if block.language == "python":
        compile(block.code, str(block.page), "exec")
    elif block.language == "bash":
        done = subprocess.run(["bash", "-n", "-c", block.code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    pytest.skip(f"{block}: {block.not_run}")


@pytest.mark.parametrize("block", BLOCKS, ids=name)
def test_block_says_what_it_is(block: Block) -> None:
    assert block.language in (*RUN, *SHOWN), f"{block} opens with ```{block.language}: give one of {RUN} (run) or {SHOWN} (shown)"
    if block.not_run:
        assert block.language in RUN, f"{block} is not run anyway: drop the comment"


def test_readme_opens_with_the_two_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert "make demo" in first_screen
    assert "make test" in first_screen


# The reader of blocks itself


def test_reader(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "text\n```python\na = 1\n\nb = 2\n```\n\n<!-- not run: needs a hub -->\n\n```bash\nclipmend x\n```\n\n"
        "1. item\n\n   ```text\n   shown\n     more\n   ```\n\n````text\n```python\nnested\n```\n````\n```\nbare\n```\n",
        encoding="utf-8",
    )
    assert [(b.language, b.line, b.code, b.not_run) for b in read_blocks(page)] == [
        ("python", 3, "a = 1\n\nb = 2\n", ""),
        ("bash", 11, "clipmend x\n", "needs a hub"),
        ("text", 17, "shown\n  more\n", ""),
        ("text", 22, "```python\nnested\n```\n", ""),
        ("", 27, "bare\n", ""),
    ]
    page.write_text("```python\nx\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1 is never closed"):
        read_blocks(page)


def test_a_failing_block_fails(tmp_path: Path) -> None:
    block = Block(tmp_path / "page.md", 1, "bash", "false\necho reached\n")
    with pytest.raises(AssertionError, match="left with 1"):
        run_bash(block, tmp_path)
    with pytest.raises(AssertionError, match="no target"):
        run_bash(Block(tmp_path / "page.md", 1, "bash", "make nonsense\n"), tmp_path)
    with pytest.raises(AssertionError, match="no extra"):
        run_bash(Block(tmp_path / "page.md", 1, "bash", 'pip install "clipmend[nonsense]"\n'), tmp_path)
    run_bash(
        Block(tmp_path / "page.md", 1, "bash", 'make demo VENV=x\npip install -e ".[demo,test]"\ncd x\necho a > here\n'), tmp_path
    )
    assert (tmp_path / "here").read_text() == "a\n"
