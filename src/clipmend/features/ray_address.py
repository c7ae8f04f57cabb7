"""Whether a Ray cluster answers at an address: asked before any work, since Ray itself would try for minutes, after the survey."""

from __future__ import annotations

import os
import re
import socket
import time
from pathlib import Path

__all__ = ["check_ray_address"]

TIMEOUT = 5.0
"""Seconds that all attempts together may take."""
_FORM = re.compile(r"(?:(?P<client>ray)://)?(?P<host>\[[^\]]+\]|[^:/\s]+):(?P<port>\d{1,5})")
# Ray speaks gRPC, which is HTTP/2: whoever speaks that answers this greeting with a frame of settings (RFC 9113, 3.4 and 4.1).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_HEADER, _SETTINGS = 9, 4


def check_ray_address(address: str, timeout: float = TIMEOUT) -> None:
    """Pass if something that can be Ray answers at ``address``.

    Args:
        address: ``"HOST:PORT"`` or ``"ray://HOST:PORT"``, or ``"auto"``: then what the environment variable ``RAY_ADDRESS`` names,
            or Ray's note of the cluster that runs on this machine. ``"local"`` and other forms with ``://`` are left to Ray.
        timeout: seconds for all attempts together.

    Raises:
        ValueError: ``address`` has another form.
        ConnectionError: nobody answers in time, or somebody who is not Ray.
    """
    told = address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or _noted() or "local"
    found = _FORM.fullmatch(address)
    if found is None:
        if address == "local" or ("://" in address and not address.startswith("ray://")):
            return
        raise ValueError(f"{address!r} is no address of a Ray cluster: HOST:PORT, ray://HOST:PORT, or auto")
    port = int(found["port"])
    if not 0 < port < 65536:
        raise ValueError(f"{address!r} is no address of a Ray cluster: ports go from 1 to 65535")
    reason = _tried(found["host"].strip("[]"), port, time.monotonic() + timeout)
    if reason:
        which = address if told == address else f"{address} (which {told} stands for here)"
        raise ConnectionError(
            f"no Ray cluster answers at {which}: {reason}; is it running ('ray start --head' there), and reachable "
            "from this machine? HOST:PORT wants the port of its head node (6379 unless given), ray://HOST:PORT that of its client "
            "server (10001)"
        )


def _tried(host: str, port: int, deadline: float) -> str:
    """Why nobody there is Ray; ``""`` if one may be."""
    reason = ""
    for name in [host, *_own_names(host)]:
        try:
            with socket.create_connection((name, port), timeout=max(0.1, deadline - time.monotonic())) as line:
                if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):  # encrypted: it cannot be greeted in the clear
                    return ""
                line.sendall(_GREETING)
                said = b""
                while len(said) < _HEADER:
                    line.settimeout(max(0.1, deadline - time.monotonic()))
                    part = line.recv(_HEADER - len(said))
                    if not part:
                        break
                    said += part
            if len(said) == _HEADER and said[3] == _SETTINGS:
                return ""
            reason = "something else listens on that port"
        except TimeoutError:
            reason = reason or "no answer in time"
        except (OSError, UnicodeError) as error:  # a name of no host, a refusal; UnicodeError of names that cannot be one
            reason = reason or (getattr(error, "strerror", None) or str(error)).lower()
    return reason


def _own_names(host: str) -> list[str]:
    """Other addresses of this machine: Ray's head may listen on one of them where it was given as localhost."""
    if host not in ("localhost", "127.0.0.1", "::1"):
        return []
    from ray.util import get_node_ip_address

    own: str = get_node_ip_address()
    return [] if own == host else [own]


def _noted() -> str | None:
    """The address in the file that ``ray start`` leaves behind, if there is one; it may be of a cluster that is gone."""
    for folder in (os.environ.get("RAY_TMPDIR"), "/tmp"):
        if folder:
            try:
                return (Path(folder) / "ray" / "ray_current_cluster").read_text(encoding="utf-8").strip() or None
            except (OSError, UnicodeDecodeError):
                continue
    return None
