"""Open whatever holds image vectors, by one name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.data.images import display_path
from clipmend.search.gallery import FieldType, Gallery, GalleryError, WritableGallery

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["create_gallery", "is_there", "open_gallery"]

QDRANT = "qdrant:"
_KINDS = (
    "These do: an index of 'clipmend index', a folder of clip-retrieval or of 'clipmend features', NAME.npy, NAME.parquet, "
    "qdrant:http://HOST:6333/COLLECTION or qdrant:FOLDER/COLLECTION."
)


def open_gallery(
    spec: str | os.PathLike[str] | np.ndarray | Gallery, *, model: str | DualEncoder | None = None, **options: Any
) -> Gallery:
    """Open image vectors for searching, wherever they lie.

    ===============================================  ============================================================================
    ``"pictures.index"``                             an index (``clipmend index``)
    ``"embeddings/"``                                a folder of ``clip-retrieval inference`` (``img_emb``, ``metadata``)
    ``"work/"``                                      a folder of ``clipmend features``
    ``"pictures.npy"``                               an array, with ``pictures.ids.jsonl`` or ``pictures.parquet`` beside it
    ``"pictures.parquet"``                           a table with a column of vectors
    ``"qdrant:http://host:6333/pictures"``           a collection of a Qdrant server or cluster; key in ``QDRANT_API_KEY``
    ``"qdrant:folder/pictures"``                     one of Qdrant's local mode
    an array ``[N, D]``                              rows are images
    ===============================================  ============================================================================

    Args:
        spec: what to open; a gallery is given back as it is.
        model: the encoder that made the vectors, or its name, where the gallery does not say. An encoder is compared with what the
            gallery says (:meth:`Gallery.check`), a name only where the gallery has one.
        options: of the kind: ``images`` (folder of the images; of an index: in place of the folders that it knows), ``skip_bad``
            (arrays), ``vector_column`` (Parquet), ``vector``, ``path_key``, ``hnsw_ef``, ``exact``, ``timeout`` (Qdrant).

    Raises:
        GalleryError: nothing of the kind, damage, another encoder than ``model``.
        OSError: no such file.
        ImportError: an extra is missing.
        TypeError: an option that this kind does not have.
    """
    gallery = spec if isinstance(spec, Gallery) else _open(spec, options)
    try:
        if model is not None:
            _tell(gallery, model)
    except BaseException:
        if gallery is not spec:
            gallery.close()
        raise
    return gallery


def create_gallery(
    spec: str | os.PathLike[str],
    *,
    embed_dim: int,
    backbone: str = "",
    image_digest: str = "",
    fields: Mapping[str, FieldType] | None = None,
    **options: Any,
) -> WritableGallery:
    """Make an empty gallery that can be added to.

    Args:
        spec: a folder for an index, or ``qdrant:...``.
        embed_dim: width of the vectors.
        backbone: name of the encoder that makes them; empty where unknown.
        image_digest: digest of its image side.
        fields: the fields that the images will have.
        options: of :meth:`QdrantGallery.create` or :meth:`ImageIndex.create`.

    Raises:
        GalleryError: something is there already, or this kind cannot be written to.
    """
    name = os.fspath(spec)
    about: dict[str, Any] = {"embed_dim": embed_dim, "backbone": backbone, "image_digest": image_digest, "fields": fields}
    if name.startswith(QDRANT):
        from clipmend.search.qdrant import QdrantGallery

        return QdrantGallery.create(name, **about, **options)
    path = Path(name)
    if path.suffix.lower() in (".npy", ".parquet"):
        raise GalleryError(
            f"{display_path(path)}: copies go into an index (a folder) or into Qdrant; 'clipmend encode' writes files"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise GalleryError(f"{display_path(path)} is there already and is no index; give another folder")
    from clipmend.search.index import ImageIndex

    made: WritableGallery = ImageIndex.create(path, **about, **options)
    return made


def is_there(spec: str | os.PathLike[str]) -> bool:
    """Whether there is a gallery that can be added to.

    Raises:
        GalleryError: no answer from a server.
    """
    name = os.fspath(spec)
    if not name.startswith(QDRANT):
        return (Path(name) / "manifest.json").is_file()
    from clipmend.search.qdrant_points import has_collection

    return has_collection(name)


def _open(spec: str | os.PathLike[str] | np.ndarray, options: dict[str, Any]) -> Gallery:
    from clipmend.search.arrays import ArrayGallery

    if not isinstance(spec, str | os.PathLike):
        return ArrayGallery(np.asarray(spec), **options)  # also a tensor of torch
    name = os.fspath(spec)
    if name.startswith(QDRANT):
        from clipmend.search.qdrant import QdrantGallery

        return QdrantGallery.open(name, **options)
    path = Path(name)
    if path.is_dir():
        return _open_folder(path, options)
    from clipmend.search import vector_tables

    if path.suffix.lower() == ".npy":
        return vector_tables.open_npy(path, **options)
    if path.suffix.lower() in (".parquet", ".pq"):
        return vector_tables.open_parquet(path, **options)
    if not path.exists():
        raise FileNotFoundError(f"{display_path(path)}: no such index, folder or file")
    raise GalleryError(f"{display_path(path)} holds no vectors that clipmend can search. {_KINDS}")


def _open_folder(path: Path, options: dict[str, Any]) -> Gallery:
    from clipmend.search.clip_retrieval import is_clip_retrieval, open_clip_retrieval

    if (path / "images" / "manifest.json").is_file() or (path / "features" / "images" / "manifest.json").is_file():
        from clipmend.search.vector_tables import open_features

        return open_features(path, **options)
    if is_clip_retrieval(path):
        return open_clip_retrieval(path, **options)
    if (path / "image.index").exists() or (path / "image_index").exists():
        raise GalleryError(
            f"{display_path(path)} is an index of clip-retrieval (faiss); give the folder of embeddings that it was made of "
            "(with img_emb and metadata): clipmend searches that"
        )
    from clipmend.search.index import ImageIndex

    images = options.pop("images", None)
    if options:
        raise TypeError(f"an index takes no option {next(iter(options))!r}")
    index = ImageIndex.open(path)
    if images is not None:
        index.images = Path(images)
    return index


def _tell(gallery: Gallery, model: str | DualEncoder) -> None:
    """Compare with the encoder, and note its name where the gallery has none."""
    if isinstance(model, str):
        if gallery.backbone and gallery.backbone != model:
            raise GalleryError(f"{gallery.name} was made by {gallery.backbone!r}, not by {model!r}; leave the model out")
        if not gallery.backbone:
            gallery.backbone = model
        return
    gallery.check(model)
    if not gallery.backbone:
        gallery.backbone, gallery.image_digest = model.name, model.fingerprint.image
