"""Names of files as text that can be shown, and back: some have bytes that are not UTF-8, or characters that are not seen."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["plain", "shown_as"]

_BYTE = re.compile(r"\\x([89a-f][0-9a-f])")
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8})|([ntr]))")


def plain(text: str) -> str:
    r"""Text as UTF-8 can hold it: bytes of a file name that are not UTF-8 become ``\xff``, as tables show them."""
    try:
        raw = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no name that a file can have, but a query can spell it
        raw = text.encode("utf-8", "surrogatepass")
    return raw.decode("utf-8", "backslashreplace")


def shown_as(text: str) -> list[str]:
    r"""The names that :func:`clipmend.data.images.display_path` and :func:`plain` may have shown as ``text``, likeliest first.

    ``\xff`` stands for a byte, ``\x1b`` and ``\u2028`` for characters that are not seen; of ``\x85`` it cannot be told which. A
    name that has a backslash of its own is ``text`` itself, which is not among them.
    """

    def read(byte: Callable[[int], str]) -> Callable[[re.Match[str]], str]:
        def character(match: re.Match[str]) -> str:
            if match[4]:
                return {"n": "\n", "t": "\t", "r": "\r"}[match[4]]
            code = int(match[1] or match[2] or match[3], 16)
            if match[1] and code >= 0x80:
                return byte(code)
            return chr(code) if code <= 0x10FFFF else match[0]

        return character

    def as_byte(code: int) -> str:
        return chr(0xDC00 + code)

    found = [
        _BYTE.sub(lambda match: as_byte(int(match[1], 16)), text),
        _ESCAPE.sub(read(as_byte), text),
        _ESCAPE.sub(read(chr), text),
    ]
    return [name for name in dict.fromkeys(found) if name != text]
