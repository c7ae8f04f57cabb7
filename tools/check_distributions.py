"""Install each built distribution into a throwaway environment of its own and use it there.

    .venv/bin/python tools/check_distributions.py dist

The dependencies are borrowed from the calling environment through a path file, so that nothing large is downloaded again; clipmend
itself must come from the distribution (checked). A wheel that lacks a module, a data file, the type marker or the licence fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

CHECK = """
import importlib.metadata, importlib.resources, pathlib, pkgutil, sys
import clipmend
home = pathlib.Path(clipmend.__file__).parent
assert pathlib.Path(sys.prefix) in home.parents, f"clipmend came from {home}, not from the distribution"
assert importlib.metadata.version("clipmend") == clipmend.__version__
assert (home / "py.typed").is_file(), "py.typed is missing: type checkers would ignore the annotations"
files = [str(f) for f in importlib.metadata.files("clipmend") or ()]
for name in ("LICENSE", "NOTICE"):
    assert any(f.endswith("licenses/" + name) for f in files), f"{name} is missing"
for module in pkgutil.walk_packages(clipmend.__path__, "clipmend."):
    try:
        __import__(module.name)
    except ImportError as error:
        # A module of an extra that is not installed has to say which extra that is; any other failure is ours.
        if "pip install 'clipmend[" not in str(error):
            raise
vectors = clipmend.load("scenes").encode_texts(["a red cat", "no cat"])
assert vectors.shape[0] == 2 and bool(vectors.isfinite().all())
"""


def python_of(folder: Path) -> Path:
    return folder / ("Scripts" if os.name == "nt" else "bin") / "python"


def check(distribution: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder, with_pip=True)
        python = str(python_of(folder))
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", str(distribution)], check=True)
        where = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"], check=True, capture_output=True, text=True
        ).stdout.strip()
        Path(where, "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
        # Away from the repository, whose src/ must not be what is imported.
        subprocess.run([python, "-c", CHECK], check=True, cwd=folder)
        shown = subprocess.run(
            [str(python_of(folder).with_name("clipmend")), "--version"], check=True, cwd=folder, capture_output=True, text=True
        ).stdout.strip()
        print(f"{distribution.name}: {distribution.stat().st_size / 1e6:.1f} MB, installed, imported, answers {shown!r}")


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    found = sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])
    if len(found) != 2:
        print(f"{folder} should hold one wheel and one sdist, and holds {[f.name for f in found]}", file=sys.stderr)
        return 1
    for distribution in found:
        check(distribution.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
