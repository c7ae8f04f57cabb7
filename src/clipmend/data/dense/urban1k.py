"""Urban-1K (Zhang et al., Long-CLIP, ECCV 2024): ``image/N.jpg`` with ``caption/N.txt``, 1,000 of them, all for testing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clipmend.data.dense.base import DenseRow, caption_text, dense_set
from clipmend.data.images import IMAGE_SUFFIXES, display_path
from clipmend.data.readers.base import Log

__all__ = ["urban1k_rows"]


@dense_set("urban1k", "Urban-1K: a folder with image/ and caption/", default="test", splits=("test",))
def urban1k_rows(path: Path, splits: tuple[str, ...], root: Path | None, log: Log) -> Iterator[DenseRow]:
    """Stream Urban-1K, in the order of the file names, numbers as numbers.

    The caption is the first line of its file that is not blank, as the published evaluation reads it; files with more are noted.

    Args:
        path: the folder with ``image`` and ``caption``.
        splits: ``test``, which is all of it.
        root: folder of the images (default: ``image``).
        log: takes what cannot be used: a caption file without its image, an image without its caption file, an empty file.
    """
    captions, images = path / "caption", root or path / "image"
    for folder in (captions, images):
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder}: no such folder; give the one with image/ and caption/")
    files = {file.stem: file for file in images.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES and file.name[0] != "."}
    texts = {file.stem: file for file in captions.iterdir() if file.suffix.lower() == ".txt" and file.name[0] != "."}
    longer = 0
    for name in sorted(texts.keys() | files.keys(), key=_by_number):
        try:
            if name not in texts:
                raise FileNotFoundError(f"{display_path(files[name])}: has no caption {display_path(captions / name)}.txt")
            where = display_path(texts[name])
            text, more = _first_line(texts[name], where)
        except (ValueError, OSError) as error:
            log.bad(error)
            continue
        longer += more
        image = files.get(name, images / f"{name}.jpg")  # a missing image is found missing by whoever opens it
        yield DenseRow(image.name, text, where, image, name, split="test")
    if longer:
        log.note(f"{longer:,} caption files have more than one line: only the first is read, as the published evaluation does")


def _by_number(name: str) -> tuple[int, str]:
    return (int(name), name) if name.isascii() and name.isdigit() else (1 << 62, name)


def _first_line(file: Path, where: str) -> tuple[str, bool]:
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return caption_text(lines[0] if lines else "", where, "the caption"), len(lines) > 1
