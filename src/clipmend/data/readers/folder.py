"""A folder of images with their captions in text files: ``a.jpg`` and ``a.txt``, or ``image/1.jpg`` and ``caption/1.txt``.

A folder in which no image has a text file is one of images alone, and so are its records.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from clipmend.data.images import display_path, find_images
from clipmend.data.readers.base import Log, OnError, Record, Source, register
from clipmend.data.tables import EmptyCaption

__all__ = ["read_folder", "table_inside"]

_TABLES = ("captions", "metadata", "train")
_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")


def table_inside(folder: Path) -> Path | None:
    """The table of captions that stands beside a folder's images (``captions.csv``, ``metadata.jsonl``, ...), or ``None``."""
    named = (folder / f"{name}{suffix}" for name in _TABLES for suffix in _SUFFIXES)
    return next((table for table in named if table.is_file()), None)


def _two_folders(path: Path) -> tuple[Path, Path] | None:
    """Urban-1K's layout: the images in one folder, the captions in another beside it."""
    for image, caption in (("image", "caption"), ("images", "captions")):
        if (path / image).is_dir() and (path / caption).is_dir():
            return path / image, path / caption
    return None


@register("folder", "a folder of images with a .txt of captions beside each", lambda path: path.is_dir(), order=90)
def read_folder(
    path: str | Path,
    *,
    caption_root: str | Path | None = None,
    caption_suffix: str = ".txt",
    captions: Literal["lines", "whole"] = "lines",
    on_error: OnError = "raise",
) -> Source:
    """Stream a folder of images with text files.

    Args:
        path: the folder, walked through; or one that holds ``image`` and ``caption`` (``images`` and ``captions``).
        caption_root: folder of the text files, with the same sub-folders (default: beside the images).
        caption_suffix: what takes the place of the image's suffix.
        captions: ``"lines"``: every line that is not blank is a caption; ``"whole"``: the file is one caption.
        on_error: ``"raise"`` or ``"skip"`` for text files that cannot be used, and for images without one where others have one.

    Raises:
        FileNotFoundError, NotADirectoryError: no such folder.
        ValueError: no images, a ``caption_suffix`` without its dot; (while reading) naming the file: no text file, an empty
            one, one that is not UTF-8.
    """
    path = Path(path)
    if captions not in ("lines", "whole"):
        raise ValueError(f"captions is {captions!r}; it must be 'lines' or 'whole'")
    if not caption_suffix.startswith(".") or len(caption_suffix) < 2 or "/" in caption_suffix:
        raise ValueError(f"caption_suffix is {caption_suffix!r}; it must be a file name's ending, such as '.txt'")
    two = _two_folders(path) if caption_root is None else None
    root, texts = two if two else (path, Path(caption_root) if caption_root is not None else path)
    for folder in (root, texts):
        if not folder.is_dir():
            raise NotADirectoryError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")

    def records(log: Log) -> Iterator[Record]:
        images = find_images(root, on_error=lambda folder, reason: log.note(f"{display_path(folder)}: {reason}"))
        if not images:
            raise ValueError(f"{root}: holds no images")
        used: dict[Path, int] = {}
        sidecars = [texts / image.relative_to(root).with_suffix(caption_suffix) for image in images]
        captioned = texts != root or any(os.path.lexists(sidecar) for sidecar in sidecars)
        if not captioned:
            log.note(f"{display_path(root)}: no image has a {caption_suffix} file: images alone")
        for image, sidecar in zip(images, sidecars, strict=True):
            inside = image.relative_to(root)
            if not captioned:
                yield Record(str(inside), where=display_path(image))
                continue
            used[sidecar] = used.get(sidecar, 0) + 1
            try:
                found = _captions(sidecar, captions, display_path(image))
            except (ValueError, OSError) as error:
                log.bad(error)
                continue
            yield Record(str(inside), found, where=display_path(sidecar))
        orphans = sum(other not in used for other in texts.rglob(f"*{caption_suffix}"))
        if orphans:
            log.note(f"{texts}: {orphans:,} {caption_suffix} files belong to no image")
        shared = sum(count > 1 for count in used.values())
        if shared:
            log.note(f"{root}: {shared:,} {caption_suffix} files belong to several images of one name (a.jpg and a.png)")

    return Source(path.name or str(path), records, image_root=root, on_error=on_error)


def _captions(path: Path, kind: str, image: str) -> tuple[str, ...]:
    name = display_path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{image}: its caption file {name} is not there") from None
    except OSError as error:
        raise OSError(f"{image}: its caption file {name} cannot be read ({error.strerror or error})") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    found = [" ".join(text.split())] if kind == "whole" else [" ".join(line.split()) for line in text.splitlines()]
    found = [caption for caption in found if caption]
    if not found:
        raise EmptyCaption(f"{name}: holds no caption")
    return tuple(found)
