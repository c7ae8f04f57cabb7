"""``Gallery``: image vectors that can be searched, with ids and what is known of each image, wherever they lie.

An index on disk, a NumPy array, a clip-retrieval folder and a vector database are all galleries. Whatever asks in words
(:mod:`clipmend.search.searcher`, the service, the page) needs nothing but this interface.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["BASE_FIELDS", "Condition", "FieldType", "Gallery", "GalleryError", "Item", "Nearest", "Operator", "WritableGallery"]

FieldType = Literal["text", "number", "size", "time", "folder"]
"""``number``: float. ``size``: bytes. ``time``: seconds since 1970 (UTC). ``folder``: a path with forward slashes."""

Operator = Literal["=", "!=", "<", "<=", ">", ">=", "under", "like"]
"""``under``: the folder itself or one inside it. ``like``: a text with ``*`` and ``?``, letter case ignored."""

BASE_FIELDS: Mapping[str, FieldType] = {
    "folder": "folder",
    "name": "text",
    "date": "time",
    "size": "size",
    "width": "number",
    "height": "number",
}
"""Fields of every image that lies in a file: ``date`` is when it was taken (EXIF), else when the file was last changed."""


class GalleryError(ValueError):
    """A gallery that cannot be used: missing, damaged, busy, of another encoder, or lacking what is asked of it."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter on what is known of an image; several hold together (and).

    An image that does not have the field fulfils no condition on it, ``!=`` included.

    Attributes:
        field: one of the gallery's ``fields``.
        op: how it is compared.
        value: ``str`` for text and folders, ``float`` for numbers, sizes (bytes) and times (seconds since 1970).
    """

    field: str
    op: Operator
    value: str | float


@dataclass(frozen=True, slots=True)
class Item:
    """What is known of one image.

    Attributes:
        id: stable: kept when other images come and go, and when a gallery is copied to another store. 0 or more, below 2^63.
        path: where it lies, as the gallery says it: relative to the gallery's root with forward slashes, or a URL, or any name.
        fields: value by field name (see :attr:`Gallery.fields`); what is not known is missing.
        sha256: of the file's content, hexadecimal; empty where unknown.
    """

    id: int
    path: str
    fields: Mapping[str, str | float] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True)
class Nearest:
    """The images nearest to some queries.

    Attributes:
        scores: float32 ``[Q, n]`` cosines, best first.
        ids: int64 ``[Q, n]``.
        exact: whether every image was compared; False: an approximate search, which may miss some.
    """

    scores: np.ndarray
    ids: np.ndarray
    exact: bool


def int64_ids(ids: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    """Ids as int64 ``[n]``.

    Args:
        ids: whole numbers of any size.
        name: the gallery, for the message.

    Raises:
        GalleryError: one that no image can have.
    """
    try:
        return np.asarray(ids if isinstance(ids, np.ndarray) else [int(id_) for id_ in ids], np.int64).reshape(-1)
    except OverflowError:
        wrong = next(int(id_) for id_ in ids if not -(1 << 63) <= int(id_) < 1 << 63)
        raise GalleryError(f"{name} has no image of the id {wrong}: ids are below 2^63") from None


class Gallery(ABC):
    """Image vectors that can be searched.

    Attributes:
        error: what it raises of itself.
        name: for messages: a path or a URL.
        backbone: the name of the encoder that made the vectors, fit for :func:`clipmend.load`; empty where unknown.
        image_digest: the digest of its image side (:attr:`Fingerprint.image`); empty where unknown.
        embed_dim: width ``D`` of the vectors.
        fields: the fields that conditions may name, with their types.
    """

    error: ClassVar[type[GalleryError]] = GalleryError
    name: str
    backbone: str
    image_digest: str
    embed_dim: int
    fields: Mapping[str, FieldType]

    @abstractmethod
    def __len__(self) -> int:
        """How many images."""

    @abstractmethod
    def count(self, where: Sequence[Condition] = ()) -> int:
        """How many images fulfil all conditions.

        Raises:
            GalleryError: a field that is not there, an operator or value that does not fit its type.
        """

    @abstractmethod
    def nearest(self, queries: Any, k: int, *, where: Sequence[Condition] = (), exact: bool | None = None) -> Nearest:
        """The ``k`` images of the highest cosine with each query among those that fulfil all conditions.

        Equal scores are ordered by the gallery's own order (an index: by path; others: by id).

        Args:
            queries: ``[D]`` or ``[Q, D]`` array or CPU tensor; normalised here.
            k: how many; more than there are gives all.
            where: conditions, all of which must hold.
            exact: True: compare with every image; False: approximate where the gallery can; ``None``: as it thinks best.

        Raises:
            ValueError: ``k`` below 1; a query of another width, with NaN or infinity, or zero.
            GalleryError: as :meth:`count`; damage.
        """

    @abstractmethod
    def vectors(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """float32 ``[n, D]``, L2-normalised, in the order of ``ids``.

        Raises:
            GalleryError: an id that is not there.
        """

    @abstractmethod
    def items(self, ids: Sequence[int] | np.ndarray) -> list[Item]:
        """What is known of images, in the order of ``ids``.

        Raises:
            GalleryError: an id that is not there.
        """

    @abstractmethod
    def ids(self, where: Sequence[Condition] = (), *, block: int = 4096) -> Iterator[np.ndarray]:
        """All ids that fulfil the conditions, ascending, as int64 arrays of at most ``block``."""

    @abstractmethod
    def file(self, item: Item) -> Path | None:
        """The image's file on this machine, if the gallery knows one (it need not exist any more); never outside its roots."""

    @abstractmethod
    def find(self, path: str) -> int | None:
        """The id of the image of that path (as :attr:`Item.path` spells it, or its file), if there is one."""

    @abstractmethod
    def values(self, name: str, limit: int = 100) -> list[tuple[str, int]]:
        """The most frequent values of a ``text`` or ``folder`` field with their counts, most frequent first.

        Raises:
            GalleryError: no such field, or one of another type.
        """

    def check(self, encoder: DualEncoder) -> None:
        """Refuse an encoder whose image side did not make these vectors; a patch over the same backbone is welcome.

        Where the gallery does not know its encoder, only the width is compared.

        Raises:
            GalleryError: another digest of the image side, or another width.
        """
        if self.image_digest:
            check_image_side(self.name, self.backbone, self.image_digest, encoder, self.error)
        if encoder.embed_dim != self.embed_dim:
            raise self.error(
                f"{self.name} holds vectors of {self.embed_dim} dimensions, {encoder.name!r} makes {encoder.embed_dim}: they "
                "cannot be compared. Use the encoder that made it"
            )

    @property
    def edition(self) -> str:
        """What is answered from: a name of the gallery and, after a point, a mark that every change of it alters.

        Empty where nothing tells.
        """
        return ""

    def changed(self) -> bool:
        """Whether something else lies there now than what was opened; :meth:`reopened` shows it.

        Never so of a database, which answers of what it holds at the time, and of arrays and tables, which are read once.
        """
        return False

    def reopened(self) -> Gallery:
        """The same gallery as it is now, opened beside this one, which goes on; where nothing ever changes, this one.

        Raises:
            GalleryError: what lies there now cannot be used.
        """
        return self

    def close(self) -> None:  # noqa: B027 (nothing to do where nothing is held)
        """Let go of files and connections; a closed gallery answers nothing."""

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_image_side(name: str, backbone: str, image_digest: str, encoder: DualEncoder, error: type[GalleryError]) -> None:
    """Refuse an encoder whose image side did not make the vectors of ``name``, by the digests of the two.

    Raises:
        GalleryError: they differ; of the given class.
    """
    if encoder.fingerprint.image != image_digest:
        raise error(
            f"{name} was made by {backbone!r} (image side {image_digest[:12]}), not by {encoder.name!r} "
            f"({encoder.fingerprint.image[:12] or 'no image side'}): their vectors cannot be compared. Use the encoder that "
            "made it, or make another index"
        )


class WritableGallery(Gallery):
    """A gallery that can be added to, by :func:`clipmend.search.copying.copy_gallery` for one."""

    @abstractmethod
    def add(self, items: Sequence[Item], vectors: np.ndarray) -> None:
        """Add images with the ids they have; an id that is there is replaced. Durable once this returns.

        Args:
            items: what is known of each; their fields as far as the gallery has them.
            vectors: float32 ``[n, D]``; normalised here.

        Raises:
            ValueError: another width, NaN or infinity, a zero vector, an id twice; nothing is added then.
        """

    @abstractmethod
    def remove(self, ids: Sequence[int] | np.ndarray) -> int:
        """Remove images; ids that are not there are passed over. Gives how many were removed."""
