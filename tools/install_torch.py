"""Make sure that this interpreter has a torch: use the one that is there, else install the pinned version as pip finds it.

    .venv/bin/python tools/install_torch.py torch==2.13.0 [--minimum 2.4] [--index URL]

Run by the Makefile with the virtual environment's own interpreter. pip is asked first what it would install, so that a download of
several gigabytes (the CUDA libraries of a GPU build) is announced before it starts and not noticed afterwards.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HEAVY = ("nvidia-", "cuda-", "triton", "pytorch-triton")


def numbers(text: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as ``(2, 13, 0)``."""
    return tuple(int(part) for part in text.partition("+")[0].split(".") if part.isdigit())


def installed(requirement: str, minimum: str) -> str | None:
    """The version of a package that will do: at least ``minimum``, or exactly the pinned one where there is no minimum."""
    name, _, pinned = requirement.partition("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        return None
    good = numbers(found) >= numbers(minimum) if minimum else numbers(found) == numbers(pinned)
    return found if good else None


def pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", *arguments]


def plan(requirements: list[str], index: list[str]) -> list[dict[str, Any]]:
    """What pip would install, as its own report says; empty where pip cannot say (the installation then says why)."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        command = pip("install", "--dry-run", "--quiet", "--report", str(report), *index, *requirements)
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode or not report.exists():
            return []
        return list(json.loads(report.read_text(encoding="utf-8"))["install"])


def announcement(items: list[dict[str, Any]]) -> str | None:
    """A warning where the plan fetches GPU libraries, ``None`` where it does not."""
    heavy = [item for item in items if item["metadata"]["name"].lower().startswith(HEAVY)]
    if not heavy:
        return None
    fetched = [item for item in items if not item["download_info"]["url"].startswith("file:")]
    where = "downloads" if set(map(id, heavy)) & set(map(id, fetched)) else "unpacks from this disk"
    return (
        f"pip {where} a GPU build of torch with {len(heavy)} CUDA packages: several gigabytes, 5 GB once installed. For a CPU "
        "build stop now (Ctrl-C) and give TORCH_INDEX=<address of an index with CPU builds>, or install a torch yourself first."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requirements", nargs="+", help="pinned requirements, torch first: torch==2.13.0")
    parser.add_argument("--minimum", default="", help="an installed torch of at least this version is used as it is")
    parser.add_argument("--index", default="", help="another package index to look in as well")
    arguments = parser.parse_args()
    found = [installed(requirement, arguments.minimum) for requirement in arguments.requirements]
    if all(found):
        print(f"torch {found[0]} is installed: used as it is")
        return 0
    index = ["--extra-index-url", arguments.index] if arguments.index else []
    items = plan(arguments.requirements, index)
    for item in items:
        if item["metadata"]["name"].lower() == "torch":
            print(f"installing torch {item['metadata']['version']}")
    if message := announcement(items):
        print(f"WARNING: {message}", file=sys.stderr, flush=True)
    return subprocess.run(pip("install", "--disable-pip-version-check", *index, *arguments.requirements)).returncode


if __name__ == "__main__":
    sys.exit(main())
