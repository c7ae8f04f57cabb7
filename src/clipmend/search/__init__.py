"""Search images by text: an index on disk (:class:`ImageIndex`), vectors of yours wherever they lie (:func:`open_gallery`), and
queries with or without a patch.
"""

from clipmend.search.arrays import ArrayGallery, UnnormalisedWarning
from clipmend.search.build import UpdateReport, build_index
from clipmend.search.copying import CopyReport, copy_gallery
from clipmend.search.embed import EmbeddedFiles, embed_files
from clipmend.search.gallery import Condition, Gallery, GalleryError, Item, Nearest, WritableGallery
from clipmend.search.grammar import Query, QueryError, Term, parse_query
from clipmend.search.index import ImageIndex
from clipmend.search.info import IndexInfo, index_info
from clipmend.search.opening import create_gallery, open_gallery
from clipmend.search.query import Hit, negation_hint, search
from clipmend.search.searcher import Answer, Found, Searcher
from clipmend.search.store import Entry, ImageIndexError

__all__ = [
    "Answer",
    "ArrayGallery",
    "Condition",
    "CopyReport",
    "EmbeddedFiles",
    "Entry",
    "Found",
    "Gallery",
    "GalleryError",
    "Hit",
    "ImageIndex",
    "ImageIndexError",
    "IndexInfo",
    "Item",
    "Nearest",
    "Query",
    "QueryError",
    "Searcher",
    "Term",
    "UnnormalisedWarning",
    "UpdateReport",
    "WritableGallery",
    "build_index",
    "copy_gallery",
    "create_gallery",
    "embed_files",
    "index_info",
    "negation_hint",
    "open_gallery",
    "parse_query",
    "search",
]
