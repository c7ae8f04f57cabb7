"""What a newcomer meets first agrees with itself: versions, commands, pages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import COMMANDS, app

ROOT = Path(__file__).parents[2]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_one_version_everywhere() -> None:
    assert re.search(r'^version = "(.+)"$', read("pyproject.toml"), re.MULTILINE)[1] == clipmend.__version__
    assert re.search(r"^version: (.+)$", read("CITATION.cff"), re.MULTILINE)[1] == clipmend.__version__


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w./-]+\.md", read("mkdocs.yml")))
    assert listed == {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_within_the_repository_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", read(page)):
        if "://" not in target:
            assert (ROOT / target).exists(), f"{page} links to {target}, which is not there"


def test_makefile_help_lists_every_phony_target() -> None:
    makefile = read("Makefile")
    phony = set(re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE))
    assert phony == set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, [command, "--help"])
    assert shown.exit_code == 0, shown.output
    assert re.search(rf"Examples?:?\s.*clipmend {command} ", shown.output, re.DOTALL), f"no example:\n{shown.output}"


def test_the_commands_are_exactly_those_announced() -> None:
    assert set(typer.main.get_command(app).commands) == set(COMMANDS)  # type: ignore[attr-defined]


def test_help_and_import_stay_quick() -> None:
    program = (
        "import sys, clipmend, clipmend.cli.app as cli\n"
        "from typer.testing import CliRunner\n"
        "assert CliRunner().invoke(cli.app, ['--help']).exit_code == 0\n"
        "heavy = {'torch', 'transformers', 'sklearn', 'matplotlib', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
