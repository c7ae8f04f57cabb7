"""Running the application: a socket that is checked before anything is loaded, and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from clipmend.data.images import display_path
from clipmend.service.logs import json_log
from clipmend.service.security import check_bind, is_loopback
from clipmend.service.settings import Settings

__all__ = ["bind", "read_token", "run"]

log = logging.getLogger("clipmend.service")
_CONNECTIONS = 1_000
"""Open connections, beyond which uvicorn answers 503 by itself."""


def read_token(path: Path) -> str:
    """The token in a file: its one line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is empty or holds several lines.
    """
    lines = path.read_text(encoding="utf-8-sig").split()
    if len(lines) != 1:
        raise ValueError(f"{display_path(path)} must hold one line with the token (it has {len(lines)} words)")
    if path.stat().st_mode & stat.S_IROTH:
        logging.getLogger("clipmend.service").warning("every user of this machine can read the token's file (chmod 600 mends that)")
    return lines[0]


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """A listening socket; done before the model is loaded, so that a port in use is told at once.

    Raises:
        ValueError: other machines could reach it, and there is no token.
        OSError: the port is taken or may not be used, or there is no such host.
    """
    check_bind(host, token)
    plain = host.strip("[]")
    try:
        family, *_, address = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.create_server(address[:2], family=family, backlog=512)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            f"cannot listen at {host} port {port}: {reason}; another port is chosen with --port (0: any free one)"
        ) from None
    if token is None and not is_loopback(made.getsockname()[0]):  # a "localhost" that is not
        made.close()
        check_bind(made.getsockname()[0], token)
    return made


def run(
    app: FastAPI, listening: socket.socket, settings: Settings, *, level: int = logging.INFO, ready: Callable[[], None]
) -> None:
    """Serve until told to end (SIGINT, SIGTERM): then running requests are finished within ``settings.shutdown_timeout``.

    Args:
        app: out of :func:`clipmend.service.create_app`.
        listening: out of :func:`bind`.
        settings: the application's.
        level: of the log.
        ready: called once requests are taken.

    Work that has begun and outlives that time is answered with 503, and the process ends without it.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout) + 2,  # uvicorn's own, which breaks off without an answer
    )
    server = _Server(config, ready, settings.shutdown_timeout, app.state.expire)
    with json_log(level):
        try:
            server.run(sockets=[listening])
        finally:
            if app.state.busy():
                # A thread cannot be stopped, and Python would wait for it: as long as a forward pass or a damaged disk takes.
                log.warning("ended without waiting for %d that go on", app.state.busy())
                logging.shutdown()
                os._exit(0)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], patience: float, expire: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._patience, self._expire = ready, patience, expire

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        expiry = asyncio.get_running_loop().call_later(self._patience, self._expire)
        await super().shutdown(sockets)
        expiry.cancel()
