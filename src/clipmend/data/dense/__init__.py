"""Dense captions: images with paragraphs, one file a data set, found by name.

``read_dense("docci", DIR, split="test")`` gives a :class:`DenseData`; ``dense_rows`` streams the same rows. Data are read where
they are; nothing is downloaded. A new set is a new file of this package with a function under :func:`dense_set`.
"""

from importlib import import_module
from pkgutil import iter_modules

from clipmend.data.dense.base import DENSE_SETS, DenseRow, DenseSet, dense_rows, dense_set, read_dense
from clipmend.data.dense.collection import DenseData, Segment

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["DENSE_SETS", "DenseData", "DenseRow", "DenseSet", "Segment", "dense_rows", "dense_set", "read_dense"]
