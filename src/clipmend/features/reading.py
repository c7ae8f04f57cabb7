"""Read features that were made."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from clipmend.features.make import FOLDER
from clipmend.features.survey import read_captions, read_places
from clipmend.features.work import CAPTIONS, IMAGES
from clipmend.negation.features import TextFeatures
from clipmend.negation.units import read_manifest, read_units

__all__ = ["Features"]


@dataclass(frozen=True)
class Features:
    """Finished features, read from their folder when asked for; nothing is loaded twice.

    Args:
        directory: what :func:`clipmend.features.make_features` was given.
    """

    directory: Path

    @classmethod
    def open(cls, directory: str | os.PathLike[str]) -> Features:
        """Open a folder.

        Raises:
            ValueError: it holds no features.
        """
        folder = Path(directory)
        if not (folder / FOLDER / f"{IMAGES}.jsonl").is_file():
            raise ValueError(f"{folder} holds no features; make them: clipmend features MODEL --data DATA -o {folder}")
        return cls(folder)

    @cached_property
    def names(self) -> list[str]:
        """Names of all ``N`` images, as the source writes them, those included that have no embedding."""
        return [place.image for place in read_places(self.directory / FOLDER / f"{IMAGES}.jsonl")]

    @cached_property
    def images(self) -> np.ndarray:
        """float32 ``[N, D]``: L2-normalised embeddings; rows of images that were skipped are NaN.

        Raises:
            ValueError: no image features, or a missing or damaged unit.
        """
        path = self.directory / FOLDER / IMAGES
        manifest = read_manifest(path, "image features")
        if manifest is None:
            raise ValueError(f"{path} holds no image features")
        units = read_units(path, manifest, "image features")
        empty = np.zeros((0, manifest["identity"]["embed_dim"]), np.float32)
        return np.concatenate([empty, *(unit["embedding"] for unit in units)])

    @cached_property
    def kept(self) -> np.ndarray:
        """int64: rows of the images that have an embedding."""
        return np.flatnonzero(np.isfinite(self.images).all(1))

    @cached_property
    def _captions(self) -> tuple[list[str], np.ndarray, np.ndarray]:
        texts, owners, negated = read_captions(self.directory / FOLDER / f"{CAPTIONS}.jsonl")
        return texts, np.asarray(owners, np.int64), np.asarray(negated, bool)

    @property
    def captions(self) -> list[str]:
        """All ``M`` captions."""
        return self._captions[0]

    @property
    def owners(self) -> np.ndarray:
        """int64 ``[M]``: row of each caption's image; -1 for none."""
        return self._captions[1]

    @property
    def negated(self) -> np.ndarray:
        """bool ``[M]``: whether the source keeps the caption as one that says what is absent."""
        return self._captions[2]

    @cached_property
    def texts(self) -> TextFeatures:
        """Features of the captions, in their order, memory-mapped.

        Raises:
            ValueError: no text features, or a missing or damaged unit.
        """
        return TextFeatures.open(self.directory / FOLDER / CAPTIONS, self.captions)
