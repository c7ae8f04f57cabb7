"""Is the hub there? Asked once and quickly, before a load that would find out by half a minute of retries."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

__all__ = ["hub_problem", "in_cache", "known_absent"]

_SECONDS = 5.0
_PAUSE = 0.5  # before the second try: a name server or a router that stumbled once should not fail a load
# Failures to get through to the server at all, by name, since the hub's client has had two HTTP libraries. Any other failure, such
# as a slow or broken answer, comes from a hub that is there: the client's own retries are for those.
_UNREACHABLE = ("ConnectError", "ConnectTimeout", "ProxyError", "OfflineModeIsEnabled", "UnsupportedProtocol", "InvalidURL")


def hub_problem(name: str | Path | None = None) -> str:
    """Why the hub cannot be reached, or ``""``.

    Args:
        name: what is to be loaded; for something that exists on this machine, or is no hub id, the hub is not asked.

    Takes at most about five seconds, or as long as ``HF_HUB_ETAG_TIMEOUT`` says where that is set. In offline mode
    (``HF_HUB_OFFLINE``) nothing is sent.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import validate_repo_id

    if name is not None:
        if os.path.exists(name):
            return ""
        try:
            validate_repo_id(str(name))
        except ValueError:  # no hub id: what reads it will say so, whether or not there is a network
            return ""
    if constants.HF_HUB_OFFLINE:
        return "offline mode is on (HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE)"
    limit = float(constants.HF_HUB_ETAG_TIMEOUT) if os.environ.get("HF_HUB_ETAG_TIMEOUT") else _SECONDS
    answer: list[str] = []
    # In a thread of its own: looking up a host's name has no timeout.
    thread = threading.Thread(target=lambda: answer.append(_ask(constants.ENDPOINT, limit)), daemon=True)
    thread.start()
    thread.join(limit + 0.5)
    return answer[0] if answer else f"{constants.ENDPOINT} gave no answer within {limit:g} s"


def in_cache(repository: str, *files: str) -> bool:
    """Whether the hub's local cache holds one of ``files`` of ``repository``."""
    from huggingface_hub import try_to_load_from_cache

    return any(isinstance(try_to_load_from_cache(repository, file), str) for file in files)


def known_absent(repository: str, file: str) -> bool:
    """Whether the hub's local cache remembers that ``repository`` has no such file."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    return try_to_load_from_cache(repository, file) is _CACHED_NO_EXIST


def _ask(endpoint: str, limit: float) -> str:
    from huggingface_hub import get_session

    deadline = time.monotonic() + limit
    problem = ""
    for pause in (0.0, _PAUSE):
        left = deadline - time.monotonic() - pause
        if problem and left < 0.5:
            break
        time.sleep(pause)
        try:
            # Half of what is left, because connecting and answering are timed one after the other.
            get_session().head(endpoint, timeout=left / 2, follow_redirects=False)
        except Exception as error:
            if not any(kind.__name__ in _UNREACHABLE for kind in type(error).__mro__):
                return ""
            problem = f"{endpoint} cannot be reached: {' '.join(str(error).split()) or type(error).__name__}"
        else:
            return ""
    return problem
