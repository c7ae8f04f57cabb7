"""Micro-batching: texts of concurrent requests share a forward pass.

There is no waiting for company: whatever has queued up while the encoder was busy goes together the next time. A request that is
alone is embedded at once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Embed", "TextBatcher"]

Embed = Callable[[list[str], float | None, bool | None], np.ndarray]
"""``(texts, strength, gate)`` to float32 ``[n, D]``."""


@dataclass
class _Asked:
    texts: list[str]
    key: tuple[float | None, bool | None]
    answer: Future[np.ndarray] = field(default_factory=Future)


class TextBatcher:
    """Embeds texts for many threads with one thread of its own.

    Args:
        embed: the encoder; called by one thread at a time.
        max_batch: most texts a call; a single request may bring more, which go in calls of this size.
        observe: told the number of texts of every call.
    """

    def __init__(self, embed: Embed, max_batch: int = 32, observe: Callable[[int], None] = lambda count: None) -> None:
        self._embed, self._max_batch, self._observe = embed, max_batch, observe
        self._queue: deque[_Asked] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = True
        self.open()

    def open(self) -> None:
        """Start; also again, after :meth:`close`."""
        if self._closed:
            self._closed = False
            self._thread = threading.Thread(target=self._work, name="clipmend-embed", daemon=True)
            self._thread.start()

    def __call__(self, texts: Sequence[str], strength: float | None = None, gate: bool | None = None) -> np.ndarray:
        """Embed texts; blocks until they are.

        Args:
            texts: at least one.
            strength: of the patch; ``None``: its own.
            gate: as for the encoder.

        Returns:
            float32 ``[n, D]``.

        Raises:
            RuntimeError: closed.
            Exception: whatever the encoder raises at these texts; other requests of the same batch are not concerned.
        """
        asked = _Asked(list(texts), (strength, gate))
        with self._changed:
            if self._closed:
                raise RuntimeError("the service is ending")
            self._queue.append(asked)
            self._changed.notify()
        return asked.answer.result()

    def drop(self) -> None:
        """Refuse what waits and has not begun."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
        for asked in waiting:
            asked.answer.set_exception(RuntimeError("the service is ending"))

    def close(self) -> None:
        """Finish what was asked, then take nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                batch = self._take()
            try:
                vectors = self._run([text for asked in batch for text in asked.texts], *batch[0].key)
            except Exception as error:
                if len(batch) == 1:
                    batch[0].answer.set_exception(error)
                else:  # one of them is to blame: each by itself, so that the others get their answer
                    self._one_by_one(batch)
                continue
            start = 0
            for asked in batch:
                asked.answer.set_result(vectors[start : start + len(asked.texts)])
                start += len(asked.texts)

    def _take(self) -> list[_Asked]:
        """The request that has waited longest, with those that can share its call; the others keep their places."""
        batch = [self._queue.popleft()]
        count = len(batch[0].texts)
        others: list[_Asked] = []
        while self._queue and count < self._max_batch:
            asked = self._queue.popleft()
            if asked.key == batch[0].key and count + len(asked.texts) <= self._max_batch:
                batch.append(asked)
                count += len(asked.texts)
            else:
                others.append(asked)
        self._queue.extendleft(reversed(others))
        return batch

    def _one_by_one(self, batch: list[_Asked]) -> None:
        for asked in batch:
            try:
                asked.answer.set_result(self._run(asked.texts, *asked.key))
            except Exception as error:
                asked.answer.set_exception(error)

    def _run(self, texts: list[str], strength: float | None, gate: bool | None) -> np.ndarray:
        parts = []
        for start in range(0, len(texts), self._max_batch):
            part = texts[start : start + self._max_batch]
            self._observe(len(part))
            parts.append(np.asarray(self._embed(part, strength, gate), np.float32))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
