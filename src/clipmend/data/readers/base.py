"""What every reader gives: a source that streams records, counts what it leaves out, and is found by name."""

from __future__ import annotations

import inspect
import io
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from clipmend.data.images import DEFAULT_MAX_PIXELS, ImageError, find_image, not_found, open_image
from clipmend.data.tables import EmptyCaption

__all__ = [
    "READERS",
    "Log",
    "OnError",
    "Reader",
    "Record",
    "Source",
    "beside",
    "files_of",
    "missing_extra",
    "read",
    "recognise",
    "register",
]

OnError = Literal["raise", "skip"]

KEPT = 20
"""How many complaints a :class:`Log` keeps in words; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Record:
    """One image (or video) with what a source says about it.

    Args:
        image: its name, as the source writes it; a path, relative to the source's ``image_root`` unless absolute.
        captions: texts that describe it; for a question, the options.
        negated: captions that also say what is absent, where the source keeps them apart.
        present: things the source says are there; ``None`` where it says nothing.
        absent: things the source says are not there; ``None`` where it says nothing. What is in neither set is unknown.
        answer: for a question, the position of the right option within ``captions``; else ``None``.
        template: for a question, the form of the right option (``"affirmative"``, ``"negative"``, ``"hybrid"``), or ``""``.
        forms: for a question of known make, the form of each option.
        media: ``"image"`` or ``"video"``.
        where: file and row it was read from.
        content: the image itself where the source holds it (encoded bytes or a PIL image), else ``None``: it is a file.
    """

    image: str
    captions: tuple[str, ...] = ()
    negated: tuple[str, ...] = ()
    present: frozenset[str] | None = None
    absent: frozenset[str] | None = None
    answer: int | None = None
    template: str = ""
    forms: tuple[str, ...] = ()
    media: Literal["image", "video"] = "image"
    where: str = ""
    content: bytes | Image.Image | None = field(default=None, repr=False, compare=False)

    def path(self, image_root: str | Path | None = None) -> Path | None:
        """The image's file (see :func:`clipmend.data.images.find_image`); ``None`` where there is none."""
        return find_image(self.image, Path(image_root) if image_root is not None else Path()) if self.image else None

    def open(self, image_root: str | Path | None = None, *, max_pixels: int | None = DEFAULT_MAX_PIXELS) -> Image.Image:
        """The image as RGB (see :func:`clipmend.data.images.open_image`).

        Raises:
            ImageError: missing, damaged or too large; names the image and where it was read.
        """
        if isinstance(self.content, Image.Image):
            return open_image(self.content)
        if self.content is not None:
            try:
                return open_image(io.BytesIO(self.content), max_pixels=max_pixels)
            except ImageError as error:
                raise ImageError(f"{self.where}: {self.image}", error.reason) from None
        path = self.path(image_root)
        if path is None:
            raise ImageError(f"{self.where}: {self.image}", not_found(image_root))
        return open_image(path, max_pixels=max_pixels)

    def shuffled(self, rng: random.Random) -> Record:
        """A question with its options in another order: published tables put the right one first, which must teach nothing."""
        if self.answer is None:
            raise ValueError(f"{self.where}: {self.image} is no question, so it has no options to shuffle")
        order = list(range(len(self.captions)))
        rng.shuffle(order)
        return replace(
            self,
            captions=tuple(self.captions[k] for k in order),
            forms=tuple(self.forms[k] for k in order) if self.forms else (),
            answer=order.index(self.answer),
        )


class Log:
    """What was wrong while reading: raised at once, or counted, with the first :data:`KEPT` kept in words.

    Attributes:
        skipped: rows, members, annotations or files left out.
        empty: those of them that were left out for a caption without text.
        problems: the first complaints, but for
        empties: the first about captions without text.
        notes: what was odd but changed nothing.
    """

    def __init__(self, on_error: OnError = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}; it must be 'raise' or 'skip'")
        self.on_error = on_error
        self.skipped = self.empty = 0
        self.problems: list[str] = []
        self.empties: list[str] = []
        self.notes: list[str] = []

    def bad(self, error: Exception) -> None:
        """Raise ``error``, or count it."""
        if self.on_error == "raise":
            raise error
        self.skipped += 1
        self.empty += isinstance(error, EmptyCaption)
        kept = self.empties if isinstance(error, EmptyCaption) else self.problems
        if len(kept) < KEPT:
            kept.append(str(error))

    def note(self, text: str) -> None:
        """Keep a remark, once."""
        if text not in self.notes:
            self.notes.append(text)


class Source(Iterable[Record]):
    """Records, streamed: each ``for`` loop reads from the start and holds a record or two at a time.

    Args:
        name: what to call it in reports.
        records: gives the records, and tells the :class:`Log` what it leaves out.
        image_root: folder that image names start from; ``None`` for the working directory.
        vocabulary: things annotated exhaustively, ``None`` where nothing is.
        reserved: things kept for testing, which no training caption should deny.
        on_error: ``"raise"`` stops at the first bad row; ``"skip"`` leaves it out and counts it in :attr:`log`.

    Attributes:
        log: of the latest loop over it.
    """

    def __init__(
        self,
        name: str,
        records: Callable[[Log], Iterator[Record]],
        *,
        image_root: str | Path | None = None,
        vocabulary: Iterable[str] | None = None,
        reserved: Iterable[str] = (),
        on_error: OnError = "raise",
    ) -> None:
        self.name = name
        self.image_root = Path(image_root) if image_root is not None else None
        self.vocabulary = frozenset(vocabulary) if vocabulary is not None else None
        self.reserved = frozenset(reserved)
        self.on_error: OnError = on_error
        self.log = Log(on_error)
        self._records = records

    def __iter__(self) -> Iterator[Record]:
        return self.loop(Log(self.on_error))

    def loop(self, log: Log) -> Iterator[Record]:
        """Read from the start, with a log of the caller's own."""
        self.log = log
        return self._records(log)

    def __repr__(self) -> str:
        return f"Source({self.name!r})"


@dataclass(frozen=True)
class Reader:
    """A kind of source.

    Args:
        name: what ``read("NAME:...")`` and ``--reader NAME`` call it.
        read: makes the :class:`Source`; its first parameter is the path (or the object), the others are options.
        detects: whether a path looks like this kind.
        order: readers with lower numbers are asked first.
        about: one line for help.
    """

    name: str
    read: Callable[..., Source]
    detects: Callable[[Path], bool]
    order: int
    about: str

    def options(self) -> list[str]:
        """Names of its options."""
        return [p.name for p in list(inspect.signature(self.read).parameters.values())[1:]]


READERS: dict[str, Reader] = {}
"""The readers, by name."""


def register(
    name: str, about: str, detects: Callable[[Path], bool] = lambda path: False, order: int = 50
) -> Callable[[Callable[..., Source]], Callable[..., Source]]:
    """Make a function the reader called ``name``; a new source is a new file in this package that does so."""

    def add(function: Callable[..., Source]) -> Callable[..., Source]:
        if name in READERS and READERS[name].read.__module__ != function.__module__:
            raise ValueError(f"two readers are called {name!r}")
        READERS[name] = Reader(name, function, detects, order, about)
        return function

    return add


def read(source: Any, reader: str | None = None, **options: Any) -> Source:
    """Open any data that a reader knows.

    Args:
        source: a path, ``"NAME:PATH"`` to choose the reader, or an object that a reader takes (a Hugging Face data set).
        reader: name of the reader; by default, the first that recognises the path.
        options: the reader's own (``image_column="file"``, ``split="val2017"``, ``on_error="skip"``, ...).

    Raises:
        ValueError: no such reader, an option it does not take, or a path that no reader recognises.
        FileNotFoundError: no such file or folder.
    """
    if reader is None:
        reader, source = recognise(source)
    if reader not in READERS:
        raise ValueError(f"there is no reader {reader!r}; choose one of {', '.join(sorted(READERS))}")
    chosen = READERS[reader]
    unknown = sorted(set(options) - set(chosen.options()))
    if unknown:
        takes = [name for name in chosen.options() if name != "on_error"]  # no command takes it as an --option
        raise ValueError(f"the reader {reader} takes no {', '.join(unknown)}; it takes {', '.join(takes)}")
    if isinstance(source, str) and not source.strip():
        raise ValueError(f"the reader {reader} needs a path, and it is empty")
    parameters = inspect.signature(chosen.read).parameters
    typed = {name: _typed(f"{reader}: {name}", value, str(parameters[name].annotation)) for name, value in options.items()}
    return chosen.read(source, **typed)


def _typed(what: str, value: Any, kind: str) -> Any:
    """An option as its annotation has it: a command line gives texts, and numbers for what looks like one.

    Raises:
        ValueError: of another type.
    """
    if value is None or not isinstance(value, (str, bool, int)):
        return value
    if "bool" in kind:
        if isinstance(value, bool):
            return value
        raise ValueError(f"{what} is {value!r}; it must be true or false")
    if kind.startswith(("int", "<class 'int'>")):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise ValueError(f"{what} is {value!r}; it must be a whole number")
    if kind.startswith(("Sequence[", "list[", "tuple[")):
        names = [name.strip() for name in str(value).split(",")]
        if not all(names):
            raise ValueError(f"{what} is {value!r}; write names with commas between them")
        return names
    texts = ("str", "Path", "Literal", "Difficult", "OnError")
    return str(value).lower() if isinstance(value, bool) else str(value) if any(text in kind for text in texts) else value


def recognise(source: Any) -> tuple[str, Any]:
    """Name of the reader that :func:`read` takes for ``source``, and ``source`` without such a name before it.

    Raises:
        ValueError, FileNotFoundError: as :func:`read`.
    """
    if isinstance(source, str) and source.partition(":")[0] in READERS and ":" in source:
        name, _, rest = source.partition(":")
        return name, rest
    return _recognise(source), source


def _recognise(source: Any) -> str:
    if not isinstance(source, (str, Path)):
        return "hf"
    if not str(source).strip():
        raise ValueError("the path of the data is empty")
    path = Path(source)
    ordered = sorted(READERS.values(), key=lambda r: (r.order, r.name))
    for candidate in ordered:
        if candidate.detects(path):
            return candidate.name
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    raise ValueError(f"{path}: no reader recognises it; choose one of {', '.join(sorted(READERS))} as READER:{path}")


def missing_extra(module: str, extra: str, what: str) -> ImportError:
    """The error for an optional package that is not installed."""
    return ImportError(f'{what} needs the package {module}: pip install "clipmend[{extra}]"')


def beside(path: str | Path) -> Path:
    """Where the images of a table are looked for unless a folder is named: where the table is (or the folder of tables itself)."""
    path = Path(path)
    return path if path.is_dir() else path.parent


def files_of(path: Path, suffixes: Sequence[str], what: str) -> list[Path]:
    """``path`` itself, or the files of the folder ``path`` that end in one of ``suffixes``, sorted by name.

    Raises:
        FileNotFoundError: no such path, or none in the folder.
    """
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix.lower() in suffixes and p.is_file() and not p.name.startswith("."))
        if not found:
            raise FileNotFoundError(f"{path}: holds no {what} ({', '.join(suffixes)})")
        return found
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    return [path]
