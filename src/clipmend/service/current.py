"""The gallery in use: noticed when it has changed, opened again beside, and exchanged while requests run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

import numpy as np

from clipmend.search.gallery import Gallery
from clipmend.search.searcher import Searcher
from clipmend.service.metrics import Metrics

__all__ = ["Current", "Opened", "knows_files"]

log = logging.getLogger("clipmend.service")
Result = TypeVar("Result")

_SAMPLE = 20
_TRIES = 4
"""So often a request is answered anew because the gallery changed under it."""
_LONGEST_PAUSE = 8.0
"""Seconds between tries to open what cannot be opened."""


class Opened:
    """A searcher of the gallery as it was at one time, with what was found out of it.

    Attributes:
        searcher: of it.
        gallery: the searcher's.
        files: whether it is known where the images are.
        counted: values of fields with their counts, and when they were counted.
        owned: whether it is closed when it is over.
    """

    def __init__(self, searcher: Searcher, owned: bool) -> None:
        self.searcher, self.gallery = searcher, searcher.gallery
        self.files = knows_files(self.gallery)
        self.counted: dict[str, tuple[float, list[tuple[str, int]]]] = {}
        self.owned, self._users, self._over = owned, 0, False
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Begin to use it; False where it is over."""
        with self._lock:
            if self._over:
                return False
            self._users += 1
            return True

    def give_back(self) -> None:
        """The last one out closes what is over."""
        with self._lock:
            self._users -= 1
            last = self._over and not self._users
        if last:
            self._close()

    def end(self) -> None:
        """Nobody begins to use it any more; it is closed once nobody does."""
        with self._lock:
            already, self._over = self._over, True
            unused = not already and not self._users
        if unused:
            self._close()

    def _close(self) -> None:
        if self.owned:
            with suppress(Exception):  # it has been replaced: what it says now concerns nobody
                self.gallery.close()


class Current:
    """Lends the gallery that is there now to requests.

    A gallery says itself whether it has changed (:meth:`Gallery.changed`). It is asked every so many seconds, and around each
    request, so that an answer is never made of two states. The new one is opened and tried beside the old one, which is used by
    others meanwhile, closed when the last request that began with it is over, and kept where the new one cannot be used.

    Args:
        searcher: what is searched to begin with.
        every: seconds between looks; ``None``: never.
        owned: whether the first gallery is closed once it has been replaced, and at the end; the others always are.
        metrics: told of every exchange.
    """

    def __init__(self, searcher: Searcher, every: float | None, owned: bool, metrics: Metrics) -> None:
        self._every, self._metrics = every, metrics
        self._opened = Opened(searcher, owned)
        self._exchanging, self._lock = threading.Lock(), threading.Lock()
        self._ending: threading.Event | None = None
        self._problem, self._failures, self._not_before = "", 0, 0.0
        metrics.gauge("gallery_images", "Images that can be found", self._count)
        metrics.gauge(
            "gallery_outdated", "1 where the gallery has changed and cannot be opened again", lambda: float(self.outdated)
        )

    @property
    def searcher(self) -> Searcher:
        """The one in use; :meth:`use` keeps it from being closed meanwhile."""
        return self._opened.searcher

    @property
    def outdated(self) -> bool:
        """Whether what lies there now cannot be used, so that the state before it is served still."""
        return bool(self._problem)

    def open(self) -> None:
        """Begin to look; also again, after :meth:`close`."""
        if not self._opened.take():  # closed with its application, which starts again
            self._opened = self._made(self._opened)
        else:
            self._opened.give_back()
        if self._every is not None and self._ending is None:
            self._ending = threading.Event()
            watch = threading.Thread(target=self._watch, args=(self._ending, self._every), name="clipmend-watch", daemon=True)
            watch.start()  # a daemon: a file system that hangs must not hold up the end

    def close(self) -> None:
        """Look no more, and let go of the gallery once nobody uses it, unless it is somebody else's."""
        with self._lock:
            if self._ending is not None:
                self._ending.set()
            self._ending = None
            opened = self._opened
        if opened.owned:
            opened.end()

    @contextmanager
    def use(self) -> Iterator[Opened]:
        """Lend it; it is not closed as long as anybody uses it."""
        while not (opened := self._opened).take():
            if self._opened is opened:  # else it was exchanged just now
                raise RuntimeError("the gallery was closed with its application")
        try:
            yield opened
        finally:
            opened.give_back()

    def answer(self, work: Callable[[Opened], Result], *, whole: bool = True) -> Result:
        """Do some work with the gallery in one state: where it changes meanwhile, again with what is there then.

        Args:
            work: may raise; is begun anew where that comes of a change.
            whole: False: work that looks up one thing, whose result is right if it has one.
        """
        for _ in range(_TRIES - 1):
            with self.use() as opened:
                if self._newer(opened):
                    continue
                try:
                    result = work(opened)
                except Exception:
                    if not self._newer(opened):
                        raise
                    continue
                if not whole or not self._newer(opened):
                    return result
        with self.use() as opened:
            return work(opened)

    def _count(self) -> int:
        with self.use() as opened:
            return len(opened.gallery)

    def look(self) -> None:
        """See whether the gallery has changed, and if so exchange it."""
        with self.use() as opened:
            self._newer(opened)

    def _watch(self, ending: threading.Event, every: float) -> None:
        while not ending.wait(every):
            try:
                self.look()
            except Exception:
                log.exception("whether the gallery has changed could not be seen")

    def _newer(self, opened: Opened) -> bool:
        """Whether another one is in use than ``opened``, which is exchanged here if need be and if it can be."""
        if self._opened is not opened:
            return True
        if self._ending is None:
            return False
        if not opened.gallery.changed():
            if self._problem:
                self._whole_again(opened)
            return False
        # One thread exchanges it and others wait, for answers of the new state; but nobody waits for what failed before.
        if not self._exchanging.acquire(blocking=not self._problem):
            return False
        try:
            if self._opened is not opened:
                return True
            if time.monotonic() < self._not_before:
                return False
            return self._exchange(opened)
        finally:
            self._exchanging.release()

    def _exchange(self, opened: Opened) -> bool:
        began = time.monotonic()
        try:
            made = self._made(opened)
        except Exception as error:  # whatever it is: what there is goes on
            self._failures += 1
            self._not_before = time.monotonic() + min(_LONGEST_PAUSE, 2.0 ** (self._failures - 1))
            self._metrics.reloads.labels("failed").inc()
            problem = f"{type(error).__name__}: {error}"
            if problem != self._problem:  # said once, not with every try
                log.error(
                    "the gallery has changed and cannot be used as it is now; the state before is served on",
                    extra={"data": {"reason": problem}},
                )
            self._problem = problem
            return False
        before = len(opened.gallery)
        with self._lock:
            if self._ending is None:  # the application has ended meanwhile
                made.end()
                return False
            self._opened = made
        opened.end()
        self._problem, self._failures, self._not_before = "", 0, 0.0
        self._metrics.reloads.labels("done").inc()
        data = {"images": len(made.gallery), "images_before": before, "seconds": round(time.monotonic() - began, 3)}
        log.info("the gallery has changed and was opened again", extra={"data": data})
        return True

    def _made(self, opened: Opened) -> Opened:
        """What lies there now, opened, compared with the encoders, and tried: also a damaged vector is found out here."""
        gallery = opened.gallery.reopened()
        try:
            known = opened.searcher
            made = Opened(Searcher(gallery, known.encoder, known.mended, files=known.files), True)
            if len(gallery):
                found = gallery.nearest(np.eye(1, gallery.embed_dim, dtype=np.float32)[0], 1)
                gallery.items(found.ids[0])
            return made
        except BaseException:
            gallery.close()
            raise

    def _whole_again(self, opened: Opened) -> None:
        if self._exchanging.acquire(blocking=False):
            try:
                if self._problem and self._opened is opened:
                    self._problem, self._failures, self._not_before = "", 0, 0.0
                    log.info("the gallery is as it was again")
            finally:
                self._exchanging.release()


def knows_files(gallery: Gallery) -> bool:
    """Whether a gallery knows where its images are, by the first few of them; of an empty one nothing is to be said."""
    first = next((block for block in gallery.ids(()) if len(block)), None)
    return first is None or any(gallery.file(item) is not None for item in gallery.items(first[:_SAMPLE]))
