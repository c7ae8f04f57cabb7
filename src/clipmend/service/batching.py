"""Micro-batching: texts of concurrent requests share a forward pass.

There is no waiting for company: whatever has queued up while the encoder was busy goes together the next time. A request that is
alone is embedded at once.
"""

from __future__ import annotations

import math
import threading
import time
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
    until: float
    answer: Future[np.ndarray] = field(default_factory=Future)


class TextBatcher:
    """Embeds texts for many threads with one thread of its own.

    Args:
        embed: the encoder; called by one thread at a time.
        max_batch: most texts a call; a single request may bring more, which go in calls of this size, those of others between.
        patience: seconds after which nobody waits for an answer any more, so that it is not worked out; ``None``: for ever.
        observe: told the number of texts of every call.
    """

    def __init__(
        self,
        embed: Embed,
        max_batch: int = 32,
        observe: Callable[[int], None] = lambda count: None,
        patience: float | None = None,
    ) -> None:
        self._embed, self._max_batch, self._observe, self._patience = embed, max_batch, observe, patience
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
            TimeoutError: its time was over before it had begun.
            Exception: whatever the encoder raises at these texts; other requests of the same batch are not concerned.
        """
        until = math.inf if self._patience is None else time.monotonic() + self._patience
        parts = []
        for start in range(0, len(texts), self._max_batch):
            asked = _Asked(list(texts[start : start + self._max_batch]), (strength, gate), until)
            with self._changed:
                if self._closed:
                    raise RuntimeError("the service is ending")
                self._queue.append(asked)  # at the end: who has many texts waits for those that have few
                self._changed.notify()
            parts.append(asked.answer.result())
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def drop(self) -> None:
        """Refuse what waits and has not begun."""
        with self._changed:
            waiting = list(self._queue)
            self._queue.clear()
        for asked in waiting:
            asked.answer.set_exception(RuntimeError("the service is ending"))

    def close(self, patience: float | None = None) -> None:
        """Finish what was asked, then take nothing more; ``patience``: seconds to wait for the former (``None``: as it takes)."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(patience)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                self._pass_over_late_ones()
                if not self._queue:
                    if self._closed:
                        return
                    continue
                batch = self._take()
            self._answer(batch)

    def _pass_over_late_ones(self) -> None:
        now = time.monotonic()
        late = [asked for asked in self._queue if asked.until < now]
        if late:
            self._queue = deque(asked for asked in self._queue if asked.until >= now)
        for asked in late:
            asked.answer.set_exception(TimeoutError("nobody waits for it any more"))

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

    def _answer(self, batch: list[_Asked]) -> None:
        texts = [text for asked in batch for text in asked.texts]
        try:
            self._observe(len(texts))
            vectors = np.asarray(self._embed(texts, *batch[0].key), np.float32)
            if len(vectors) != len(texts):
                raise RuntimeError(f"the encoder gave {len(vectors)} vectors for {len(texts)} texts")
        except BaseException as error:  # whatever it is: the others wait for this thread
            if len(batch) == 1:
                known = isinstance(error, Exception)
                batch[0].answer.set_exception(error if known else RuntimeError(f"the encoder ended: {error!r}"))
            else:  # some of them are to blame: by halves, so that the others get their answer soon
                self._answer(batch[: len(batch) // 2])
                self._answer(batch[len(batch) // 2 :])
            return
        start = 0
        for asked in batch:
            asked.answer.set_result(vectors[start : start + len(asked.texts)])
            start += len(asked.texts)
