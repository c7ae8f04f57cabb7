"""The folders of clip-retrieval's ``clip-retrieval inference``: ``img_emb/img_emb_N.npy`` and ``metadata/metadata_N.parquet``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from clipmend.data.images import display_path
from clipmend.search.arrays import ArrayGallery
from clipmend.search.gallery import GalleryError
from clipmend.search.tables import Rows
from clipmend.search.vector_tables import load_array, read_table, rows_of_tables

__all__ = ["is_clip_retrieval", "open_clip_retrieval"]

_PART = re.compile(r"img_emb_(\d+)\.npy")


def is_clip_retrieval(path: Path) -> bool:
    """Whether a folder is one of clip-retrieval's, or the ``img_emb`` within."""
    return _embeddings(path) is not None


def open_clip_retrieval(path: str | os.PathLike[str], **options: Any) -> ArrayGallery:
    """The image embeddings of clip-retrieval, without its faiss index: its parts memory-mapped, its metadata beside.

    Ids are row numbers over all parts, as clip-retrieval's own index counts them. ``image_path`` (a path, or the key of a sample
    of WebDataset) is the path, every other column of text or numbers a field.

    Args:
        path: the folder, or its sub-folder ``img_emb``.
        options: of :class:`ArrayGallery`; ``images`` for the folder that relative paths start from, or absolute ones lie in.

    Raises:
        GalleryError: no embeddings, a part that is missing, metadata of another length.
        ImportError: metadata without pyarrow.
    """
    folder = Path(path)
    embeddings = _embeddings(folder)
    if embeddings is None:
        raise GalleryError(f"{display_path(folder)} has no img_emb/img_emb_N.npy, as 'clip-retrieval inference' writes them")
    numbered = sorted((int(match[1]), match[1]) for file in embeddings.iterdir() if (match := _PART.fullmatch(file.name)))
    missing = sorted(set(range(numbered[-1][0])) - {number for number, _ in numbered})
    if missing:
        raise GalleryError(
            f"{display_path(embeddings)}: part {missing[0]} of {numbered[-1][0] + 1} is missing; without it every later id would "
            "be another's: run the inference again for it"
        )
    parts = [load_array(embeddings / f"img_emb_{text}.npy") for _, text in numbered]
    metadata = embeddings.parent / "metadata"
    tables = []
    if metadata.is_dir():
        for part, (_, text) in zip(parts, numbered, strict=True):
            file = metadata / f"metadata_{text}.parquet"
            table = read_table(file)
            if table.num_rows != len(part):
                raise GalleryError(
                    f"{display_path(file)} has {table.num_rows:,} rows, and img_emb_{text}.npy {len(part):,} vectors: they do not "
                    "belong together"
                )
            tables.append(table)
    rows = rows_of_tables(tables, display_path(metadata)) if tables else Rows(sum(map(len, parts)))
    return ArrayGallery(parts, rows, name=display_path(folder), **options)


def _embeddings(path: Path) -> Path | None:
    for folder in (path / "img_emb", path):
        if folder.is_dir() and any(_PART.fullmatch(file.name) for file in folder.iterdir()):
            return folder
    return None
