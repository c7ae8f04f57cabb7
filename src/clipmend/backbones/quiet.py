"""Loading without transformers' own progress bars, which go to standard error whether or not it is a terminal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["quiet_loading"]

_Hook = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Depth(threading.local):
    value = 0  # contexts that the running thread is in


_DEPTH = _Depth()
_LOCK = threading.Lock()
_users = 0
_installed: _Hook | None = None
_before: _Hook | None = None


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bar of transformers' in this thread while the context lasts.

    Nothing is switched off: transformers asks a hook for every bar it makes, and ours gives an empty one to the threads that are
    inside and passes all others on. Whatever hook was there before is back when the last thread has left. Bars of downloads are the
    hub's, not transformers', and stay (they are long, and shown on a terminal only). transformers older than the hook keep theirs.
    """
    from transformers.utils import logging

    if not hasattr(logging, "set_tqdm_hook"):
        yield
        return
    _enter(logging)
    _DEPTH.value += 1
    try:
        yield
    finally:
        _DEPTH.value -= 1
        _leave(logging)


def _enter(logging: Any) -> None:
    global _users, _installed, _before
    with _LOCK:
        _users += 1
        if _users == 1:
            previous: list[_Hook | None] = [None]

            # A new function each time: a hook set meanwhile by someone else may still pass on to an earlier one of ours.
            def hook(make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                if _DEPTH.value:
                    return logging.EmptyTqdm(*args, **kwargs)
                return make(*args, **kwargs) if previous[0] is None else previous[0](make, args, kwargs)

            _installed = hook
            previous[0] = _before = logging.set_tqdm_hook(hook)


def _leave(logging: Any) -> None:
    global _users
    with _LOCK:
        _users -= 1
        if _users == 0:
            current = logging.set_tqdm_hook(_before)
            if current is not _installed:  # set by someone else since: theirs stays
                logging.set_tqdm_hook(current)
