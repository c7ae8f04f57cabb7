"""The reference holds every public name, and every name that the pages import; each page is reachable."""

from __future__ import annotations

import ast
import contextlib
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import clipmend
from markdown_blocks import read_blocks

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = [DOCS / "reference.md", *sorted((DOCS / "reference").glob("*.md"))]
LISTED = [name for page in REFERENCE for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)]
# The commands and the demo are used from the shell.
PACKAGES = [
    "clipmend",
    *(
        found.name
        for found in pkgutil.walk_packages(clipmend.__path__, "clipmend.")
        if found.ispkg and not found.name.startswith(("clipmend.cli", "clipmend.demo"))
    ),
]


def resolve(path: str) -> Any:
    """The module, or the object of a module, that a dotted path names."""
    try:
        return import_module(path)
    except ModuleNotFoundError as problem:
        if problem.name != path:
            raise
        module, _, name = path.rpartition(".")
        return getattr(import_module(module), name)


class Documented:
    """What the reference lists: paths, and the objects at them.

    Args:
        paths: the paths listed.
    """

    def __init__(self, paths: list[str]) -> None:
        self.paths = set(paths)
        self.objects: list[Any] = []
        for path in paths:
            with contextlib.suppress(ImportError):  # an extra that is not installed
                self.objects.append(resolve(path))

    def has(self, module: str, name: str) -> bool:
        """Whether ``module.name`` is listed, under this path or another, or the module that it comes from."""
        if {module, f"{module}.{name}"} & self.paths:
            return True
        found = getattr(import_module(module), name)
        if getattr(found, "__module__", None) in self.paths:
            return True
        return not isinstance(found, int | str) and any(found is other for other in self.objects)


@pytest.fixture(scope="module")
def documented() -> Documented:
    return Documented(LISTED)


def test_nothing_is_listed_twice() -> None:
    assert len(LISTED) == len(set(LISTED)), sorted({name for name in LISTED if LISTED.count(name) > 1})


@pytest.mark.parametrize("path", LISTED)
def test_what_is_listed_exists(path: str) -> None:
    try:
        resolve(path)
    except ImportError as problem:
        if "pip install" not in str(problem):
            raise
        pytest.skip(str(problem))


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_listed(package: str, documented: Documented) -> None:
    names = getattr(import_module(package), "__all__", [])
    missing = [name for name in names if not name.startswith("__") and not documented.has(package, name)]
    assert not missing, f"the reference lacks {', '.join(f'{package}.{name}' for name in missing)}"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_every_name_that_a_page_imports_is_listed(page: Path, documented: Documented) -> None:
    missing = []
    for block in read_blocks(page):
        for node in ast.walk(ast.parse(block.code)) if block.language == "python" else []:
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "clipmend":
                missing += [f"{node.module}.{a.name}" for a in node.names if not documented.has(node.module, a.name)]
    assert not missing, f"{page.name} imports what the reference lacks: {', '.join(missing)}"


def links(page: Path) -> set[Path]:
    """Pages of the documentation that a page links to."""
    targets = re.findall(r"\]\(([^)#:\s]+\.md)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


def test_the_index_leads_to_every_page() -> None:
    """Each page of the guide at once, the reference's and the decisions' by their own first page."""
    start = links(DOCS / "index.md")
    here = {page.resolve() for page in DOCS.glob("*.md")} - {(DOCS / "index.md").resolve()}
    assert here <= start, f"docs/index.md does not link to {sorted(page.name for page in here - start)}"
    reached, new = set(), start
    while new:
        reached |= new
        new = {target for page in new for target in links(page) if target.is_relative_to(DOCS)} - reached
    missing = {page.resolve() for page in DOCS.rglob("*.md")} - reached - {(DOCS / "index.md").resolve()}
    assert not missing, f"no way leads from docs/index.md to {sorted(str(page) for page in missing)}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.relative_to(DOCS).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"!?\[[^\]]*\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
