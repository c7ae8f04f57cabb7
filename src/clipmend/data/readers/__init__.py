"""Readers of captioned and annotated images: each file of this package is a kind of source, found by its name.

``read(path)`` recognises what it is given; ``read("coco:PATH", split="val2017")`` says which reader. Every reader streams
:class:`Record` objects, and every complaint names the file and the row. To add a source, add a file with a function under
:func:`register`.
"""

from importlib import import_module
from pkgutil import iter_modules

from clipmend.data.readers.base import READERS, Log, Reader, Record, Source, read, recognise, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["READERS", "Log", "Reader", "Record", "Source", "read", "recognise", "register"]
