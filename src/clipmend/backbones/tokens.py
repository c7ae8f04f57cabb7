"""Texts to token ids: one adapter a kind of tokenizer, all counting what they truncate."""

from __future__ import annotations

import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clipmend.backbones.base import LongTextsWarning, OnLong
from clipmend.backbones.kinds import kind_of

__all__ = ["HFTokens", "TextTokens", "TokenisedTexts", "check_texts"]

# The tokenizers library keeps truncation and padding as state of the shared tokenizer, so two threads in it at once fail.
_TOKENIZER_LOCK = threading.Lock()


@dataclass(frozen=True)
class TokenisedTexts:
    """Token ids of ``N`` texts, cut at the last valid token and not padded.

    Args:
        ids: the ids of each text; at least one each.
        long: rows that were longer than the context length and have been cut.
    """

    ids: list[list[int]]
    long: list[int]

    def __len__(self) -> int:
        return len(self.ids)


def check_texts(texts: Sequence[str]) -> list[str]:
    """``texts`` as a list of strings.

    Raises:
        TypeError: a single string (its letters are not texts), or an item that is no string (named by row).
        ValueError: an item that cannot be written as UTF-8 (named by row).
    """
    if isinstance(texts, (str, bytes)):
        raise TypeError("expected a list of texts, not one string: write [text]")
    if not isinstance(texts, Iterable):
        raise TypeError(f"expected a list of texts, not {kind_of(texts)}")
    items = list(texts)
    for row, text in enumerate(items):
        if not isinstance(text, str):
            raise TypeError(f"text {row} is {type(text).__name__}, not a string: {text!r}")
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:  # half of a surrogate pair, which tokenizers reject with a puzzle
                raise ValueError(f"text {row} is no valid Unicode ({error.reason}): {text!r}; it was decoded wrongly") from None
    return items


def refuse_blank(texts: Sequence[str]) -> None:
    """Refuse texts without a character but white space: what an encoder makes of nothing is a vector that fits some images best.

    Raises:
        ValueError: there is one; the rows are named.
    """
    blank = [row for row, text in enumerate(texts) if not text.strip()]
    if blank:
        rows = ", ".join(map(str, blank[:3])) + (f", ... ({len(blank)} in all)" if len(blank) > 3 else "")
        raise ValueError(
            f"text {rows} is empty: remove what is empty before encoding (text_states gives what the model makes of nothing)"
        )


class TextTokens(ABC):
    """Turns texts into ids and says how many did not fit.

    Args:
        context_length: most ids a text may have, special tokens included.
        pad_id: the id that fills up a batch.
    """

    context_length: int
    pad_id: int

    @abstractmethod
    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        """Ids of each text (truncated, valid ones only) and the rows that were cut."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Vocabulary and rules, JSON-able and the same on every machine, for the fingerprint."""

    def __call__(self, texts: Sequence[str], on_long: OnLong = "truncate") -> TokenisedTexts:
        """Tokenise.

        Args:
            texts: the texts; empty ones are allowed.
            on_long: what to do with texts over the context length: ``"warn"``, ``"error"`` or ``"truncate"``.

        Raises:
            ValueError: a text is too long and ``on_long="error"``.
        """
        items = check_texts(texts)
        if on_long not in ("warn", "error", "truncate"):
            raise ValueError(f"on_long is {on_long!r}; it must be 'warn', 'error' or 'truncate'")
        if not items:
            return TokenisedTexts([], [])
        with _TOKENIZER_LOCK:
            ids, long = self._ids(items)
        # A text that a tokenizer turns into nothing keeps one padding token, so that no mask is ever empty.
        ids = [row or [self.pad_id] for row in ids]
        if long and on_long != "truncate":
            first = items[long[0]]
            shown = first if len(first) <= 60 else first[:57] + "..."
            report = (
                f"{len(long)} of {len(items)} texts exceed {self.context_length} tokens; the first is text {long[0]} ({shown!r})"
            )
            if on_long == "error":
                raise ValueError(report + "; shorten them, or pass on_long='truncate'")
            warnings.warn(LongTextsWarning(report + "; they were truncated", len(long)), stacklevel=4)
        return TokenisedTexts(ids, long)


class HFTokens(TextTokens):
    """A transformers tokenizer.

    Args:
        tokenizer: the tokenizer.
        context_length: most ids a text may have.
        prepare: applied to every text first (lower-casing).
        prepare_name: what ``prepare`` does, for the fingerprint.
        end: maps the ids of a text to the number of them that count (CLIP: up to and including EOS).
    """

    def __init__(
        self,
        tokenizer: Any,
        context_length: int,
        *,
        prepare: Callable[[str], str] | None = None,
        prepare_name: str = "",
        end: Callable[[list[int]], int] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.context_length = int(context_length)
        self.prepare = prepare
        self.prepare_name = prepare_name
        self.end = end
        self.pad_id = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0)

    def _encode(self, texts: list[str], **kwargs: Any) -> list[list[int]]:
        return self.tokenizer(texts, return_attention_mask=False, padding=False, verbose=False, **kwargs)["input_ids"]

    def _ids(self, texts: list[str]) -> tuple[list[list[int]], list[int]]:
        if self.prepare is not None:
            texts = [self.prepare(text) for text in texts]
        ids = self._encode(texts)
        long = [row for row, text_ids in enumerate(ids) if len(text_ids) > self.context_length]
        if long:  # the tokenizer itself truncates, so that the closing special token is kept
            cut = self._encode([texts[row] for row in long], truncation=True, max_length=self.context_length)
            for row, text_ids in zip(long, cut, strict=True):
                ids[row] = text_ids
        if self.end is not None:
            ids = [text_ids[: self.end(text_ids)] for text_ids in ids]
        return ids, long

    def describe(self) -> dict[str, Any]:
        return {**describe_hf_tokenizer(self.tokenizer), "prepare": self.prepare_name}


def describe_hf_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Rules and vocabulary of a transformers tokenizer, less the state that calls leave in it."""
    import json

    facts: dict[str, Any] = {"special": {key: str(value) for key, value in tokenizer.special_tokens_map.items()}}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        rules = json.loads(backend.to_str())
        rules.pop("truncation", None)
        rules.pop("padding", None)
        facts["rules"] = rules
    else:
        facts["vocabulary"] = {str(token): int(index) for token, index in tokenizer.get_vocab().items()}
        facts["rules"] = type(tokenizer).__name__
        facts["lower"] = bool(getattr(tokenizer, "do_lower_case", False))
        pieces = getattr(tokenizer, "sp_model", None)
        if pieces is not None:
            facts["pieces"] = pieces.serialized_model_proto().hex()
    return facts


def pad_ids(rows: Sequence[list[int]], pad_id: int, *, length: int | None = None, left: bool = False) -> tuple[Tensor, Tensor]:
    """``[B, T]`` ids and bool mask of the valid ones, padded to the longest row or to ``length``."""
    width = max(len(row) for row in rows) if length is None else length
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for b, row in enumerate(rows):
        where = slice(width - len(row), width) if left else slice(0, len(row))
        ids[b, where] = torch.tensor(row, dtype=torch.long)
        mask[b, where] = True
    return ids, mask
