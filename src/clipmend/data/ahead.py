"""Read ahead in threads: files are read and decoded while what came before them is in use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["read_ahead"]

T = TypeVar("T")
R = TypeVar("R")


def read_ahead(function: Callable[[T], R], items: Iterable[T], workers: int | None = None, depth: int | None = None) -> Iterator[R]:
    """``map(function, items)`` in threads: results in order, only a few made before they are asked for.

    Args:
        function: called in the threads.
        items: drawn from in the calling thread.
        workers: threads (default: one a core, at most 8).
        depth: most results made before they are asked for (default: two more than there are threads).
    """
    count = workers or min(8, os.cpu_count() or 1)
    most = count + 2 if depth is None else depth
    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(count, thread_name_prefix="clipmend-read")
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
