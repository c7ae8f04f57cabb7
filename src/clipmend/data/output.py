"""Folders that are written beside their place and moved there when they are whole."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["new_folder"]


@contextmanager
def new_folder(folder: str | os.PathLike[str], overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that takes the place of ``folder`` when the block ends; an exception leaves everything as it was.

    Raises:
        FileExistsError: ``folder`` is a file, or is not empty and ``overwrite`` is false.
    """
    target = Path(folder).absolute()
    if target.exists() and not target.is_dir():
        raise FileExistsError(f"{target} is a file: choose another folder")
    if target.is_dir() and any(target.iterdir()) and not overwrite:
        raise FileExistsError(f"{target} is not empty: choose another folder, or replace it with --overwrite")
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        work.chmod(0o755)  # temporary folders are private
        yield work
        _put_in_place(work, target)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise


def _put_in_place(work: Path, target: Path) -> None:
    if not target.exists():
        work.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
    target.rename(old / "old")
    try:
        work.rename(target)
    except OSError:
        (old / "old").rename(target)  # nothing is lost
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
