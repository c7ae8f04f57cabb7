"""Search images by text: an index on disk (:class:`ImageIndex`), and queries with or without a patch (:func:`search`)."""

from clipmend.search.build import UpdateReport, build_index
from clipmend.search.embed import EmbeddedFiles, embed_files
from clipmend.search.index import ImageIndex
from clipmend.search.query import Change, Comparison, Hit, compare, negation_hint, search
from clipmend.search.store import Entry, ImageIndexError

__all__ = [
    "Change",
    "Comparison",
    "EmbeddedFiles",
    "Entry",
    "Hit",
    "ImageIndex",
    "ImageIndexError",
    "UpdateReport",
    "build_index",
    "compare",
    "embed_files",
    "negation_hint",
    "search",
]
