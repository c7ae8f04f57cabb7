"""Stream the arrays of a large JSON object, or one large array, entry by entry, with the standard library alone.

COCO's ``instances_train2017.json`` is 0.45 GB of text and several times that as Python objects; read here, one annotation at a time
is in memory. A streaming parser in C would be faster, but is one more dependency for files that are read once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

__all__ = ["MAX_ENTRY", "stream_arrays", "stream_list"]

MAX_ENTRY = 64_000_000
"""Most characters of one entry: more means that a bracket or a quote is missing."""

_CHUNK = 1 << 16
_SPACE = " \t\r\n"


def stream_arrays(path: str | Path, *, chunk: int = _CHUNK) -> Iterator[tuple[str, int, Any]]:
    """Entries of the arrays in the object that a JSON file holds.

    Args:
        path: the file, UTF-8, with or without a byte-order mark.
        chunk: characters read at once.

    Yields:
        ``(key, index, entry)`` for each entry of each array, ``(key, -1, value)`` for a value that is no array.

    Raises:
        ValueError: naming the file and the entry: not JSON, cut short, not an object, not UTF-8.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _Cursor(path, file, chunk).object()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from error


def stream_list(path: str | Path, *, chunk: int = _CHUNK) -> Iterator[tuple[int, Any]]:
    """Entries of the array that a JSON file holds (ShareGPT4V's captions are 1.5 GB of one).

    Args:
        path: the file, UTF-8, with or without a byte-order mark.
        chunk: characters read at once.

    Yields:
        ``(index, entry)``.

    Raises:
        ValueError: naming the file and the entry: not JSON, cut short, not an array, not UTF-8.
        OSError: the file cannot be read.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig") as file:
            for _, index, entry in _Cursor(path, file, chunk).list():
                yield index, entry
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error.reason})") from error


class _Cursor:
    """A window on the text: ``buffer[at:]`` is what has been read and not yet understood."""

    def __init__(self, path: Path, file: TextIO, chunk: int) -> None:
        self.path, self.file, self.chunk = path, file, chunk
        self.buffer, self.at, self.passed, self.ended = "", 0, 0, False
        self.decoder = json.JSONDecoder()

    def object(self) -> Iterator[tuple[str, int, Any]]:
        if not self.peek():
            raise ValueError(f"{self.path}: the file is empty")
        self.expect("{", "the file")
        if self.peek() == "}":
            self.at += 1
            return self.finish()
        while True:
            key = self.value("a key of the file")
            if not isinstance(key, str):
                raise self.wrong(f"{key!r} stands where a key belongs")
            self.expect(":", key)
            if self.peek() == "[":
                self.at += 1
                yield from self.array(key)
            else:
                yield key, -1, self.value(key)
            if self.peek() == ",":
                self.at += 1
                continue
            self.expect("}", f"the end of the file, after {key}")
            return self.finish()

    def list(self) -> Iterator[tuple[str, int, Any]]:
        if not self.peek():
            raise ValueError(f"{self.path}: the file is empty")
        self.expect("[", "the file, which must be a list")
        yield from self.array("")
        self.finish()

    def array(self, key: str) -> Iterator[tuple[str, int, Any]]:
        if self.peek() == "]":
            self.at += 1
            return
        index = 0
        while True:
            yield key, index, self.value(f"{key}[{index}]")
            index += 1
            if self.peek() == ",":
                self.at += 1
                continue
            self.expect("]", f"{key}, after entry {index - 1}")
            return

    def value(self, what: str) -> Any:
        """The next value, whole."""
        self.peek()
        want = self.chunk
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                if self.ended:
                    cut = error.pos >= len(self.buffer.rstrip()) or "Unterminated" in error.msg
                    reason = "is cut short: the file ends within it" if cut else f"is not JSON: {error.msg}"
                    raise self.wrong(f"{what} {reason}") from None
                if len(self.buffer) - self.at > MAX_ENTRY:
                    reason = f"is not JSON, or over {MAX_ENTRY:,} characters long: {error.msg}"
                    raise self.wrong(f"{what} {reason}") from None
            except ValueError as error:  # a number of thousands of digits
                raise self.wrong(f"{what} cannot be read: {error}") from None
            except RecursionError:
                raise self.wrong(f"{what} is nested too deeply") from None
            else:
                # A number at the end of the window may go on in the next: "1" of "12", "1" of "1.5", "1.5" of "1.5e3".
                if self.ended or (end < len(self.buffer) and self.buffer[end] not in "0123456789.eE+-"):
                    self.at = end
                    return value
            self.more(want)
            want *= 2  # so that a long value is tried a few times, not once a chunk

    def peek(self) -> str:
        """The next character that is no space, ``""`` at the end."""
        while True:
            while self.at < len(self.buffer) and self.buffer[self.at] in _SPACE:
                self.at += 1
            if self.at < len(self.buffer):
                return self.buffer[self.at]
            if self.ended:
                return ""
            self.more(self.chunk)

    def more(self, count: int) -> None:
        text = self.file.read(count)
        self.ended = not text
        self.passed += self.at
        self.buffer, self.at = self.buffer[self.at :] + text, 0

    def expect(self, mark: str, what: str) -> None:
        found = self.peek()
        if found != mark:
            seen = f"{found!r} stands" if found else "the file ends"
            raise self.wrong(f"{seen} where {mark!r} belongs, in {what}")
        self.at += 1

    def finish(self) -> None:
        if self.peek():
            raise self.wrong("more text follows after the end of the data")

    def wrong(self, message: str) -> ValueError:
        return ValueError(f"{self.path}: character {self.passed + self.at:,}: {message}")
