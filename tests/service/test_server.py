"""The service as a process of its own: what it says when it starts, two clients at once, and how it ends while it is busy."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")

PROGRAM = """
import sys
from pathlib import Path

from clipmend.service import Settings, create_app
from clipmend.service.server import bind, run
from tests.service.fake_service import SlowEncoder, searcher_of

folder, seconds, patience = Path(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
encoder = SlowEncoder()
settings = Settings(max_batch=1, shutdown_timeout=patience)
searcher = searcher_of(folder, encoder, patched=False)
with bind("127.0.0.1", 0, None) as listening:
    def ready() -> None:
        encoder.seconds = seconds
        print("PORT", listening.getsockname()[1], flush=True)

    run(create_app(searcher, settings), listening, settings, ready=ready)
"""

Start = Callable[..., "tuple[subprocess.Popen[str], str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    running: list[subprocess.Popen[str]] = []

    def begin(seconds: float = 0.0, patience: float = 5.0) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "pictures"), str(seconds), str(patience)],
            stdout=subprocess.PIPE,
            stderr=open(tmp_path / "log", "w"),  # noqa: SIM115 (the process's)
            text=True,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("PORT"), (tmp_path / "log").read_text()
        return process, f"http://127.0.0.1:{line.split()[1]}"

    yield begin
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def lines(tmp_path: Path) -> list[dict[str, Any]]:
    """The log; a traceback at the end is Python's own, of the KeyboardInterrupt that uvicorn raises again when it has ended."""
    log = (tmp_path / "log").read_text().partition("Traceback")[0]
    return [json.loads(line) for line in log.splitlines()]


def until_pending(url: str, count: int) -> None:
    """Wait until the service works on so many requests."""
    deadline = time.monotonic() + 20
    while f"clipmend_searches_pending {count}.0" not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def ask(url: str, query: str) -> int:
    try:
        return httpx.post(f"{url}/search", json={"query": query}, timeout=30).status_code
    except httpx.TransportError:
        return 0


def test_what_runs_is_finished_and_the_log_is_json(start: Start, tmp_path: Path) -> None:
    process, url = start(seconds=0.5)
    assert httpx.get(f"{url}/health").json() == {"status": "ready"}
    assert "server" not in httpx.get(f"{url}/health").headers
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(ask, url, f"red {n}") for n in range(2)]
        until_pending(url, 2)
        process.send_signal(signal.SIGTERM)
        assert [answer.result() for answer in asked] == [200, 200]
    assert process.wait(20) == -signal.SIGTERM  # uvicorn ends in order, then by the signal that it was sent
    assert ask(url, "red") == 0
    log = lines(tmp_path)
    assert [line["status"] for line in log if line.get("path") == "/search"] == [200, 200]
    assert not [line for line in log if line["level"] == "error"]


def test_what_takes_too_long_is_told_so(start: Start, tmp_path: Path) -> None:
    process, url = start(seconds=3, patience=4)
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(ask, url, f"red {n}") for n in range(6)]
        until_pending(url, 6)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.wait(30)
        took = time.monotonic() - began
        statuses = [answer.result() for answer in asked]
    assert took < 15  # of the 18 that all six would take: what has begun is finished, what waits is dropped
    assert set(statuses) == {200, 503}
    assert not [line for line in lines(tmp_path) if line["level"] == "error"]


@pytest.mark.slow
def test_who_has_gone_is_not_worked_for(start: Start, tmp_path: Path) -> None:
    """Clients that ask and leave at once: only what had begun is finished, 32 of them, and nobody waits for the others."""
    _, url = start(seconds=0.1)
    port, body = int(url.rpartition(":")[2]), b'{"query": "red"}'
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    for _ in range(150):
        with socket.create_connection(("127.0.0.1", port)) as wire:
            wire.sendall(head + body)
    began = time.monotonic()
    assert ask(url, "red") == 200
    assert time.monotonic() - began < 10  # of the 15 that all of them would take
    until_pending(url, 0)
    told = httpx.get(f"{url}/metrics").text
    gone = int(float(re.search(r'clipmend_refused_total{reason="gone"} (\S+)', told).group(1)))  # type: ignore[union-attr]
    assert gone >= 100
    assert f'clipmend_requests_total{{method="POST",route="/search",status="499"}} {gone}.0' in told
    assert not [line for line in lines(tmp_path) if line["level"] == "error"]


@pytest.mark.parametrize("sent", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_what_never_ends_is_left(start: Start, tmp_path: Path, sent: signal.Signals) -> None:
    """A forward pass of minutes: its client is told, and the process ends in time for whoever supervises it."""
    process, url = start(seconds=300, patience=1)
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask, url, f"red {n}") for n in range(3)]
        until_pending(url, 3)
        began = time.monotonic()
        process.send_signal(sent)
        assert process.wait(30) in (0, -sent)
        assert time.monotonic() - began < 15
        assert [answer.result() for answer in asked] == [503] * 3
    assert not [line for line in lines(tmp_path) if line["level"] == "error"]


@pytest.mark.slow
def test_odd_requests_and_clients_that_leave(start: Start, tmp_path: Path) -> None:
    """Bytes that no client library would send; the service answers or hangs up, and goes on."""
    _, url = start(seconds=0.3)
    port = int(url.rpartition(":")[2])
    odd = [
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET //etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /page/..%2f..%2f__init__.py HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: -1\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999999\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
        bytes(range(256)) * 10,
    ]
    for sent in odd:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as wire:
            try:
                wire.sendall(sent)
                wire.shutdown(socket.SHUT_WR)
                answer = b"".join(iter(lambda: wire.recv(65_536), b""))
            except OSError:  # hung up on while still sending
                answer = b""
        refused = not answer or re.match(rb"HTTP/1\.1 (4\d\d|503) ", answer)
        assert refused or b'{"status": "ready"}' in answer, (sent[:60], answer[:200])
        assert b"root:" not in answer
    assert ask(url, "red") == 200
    for _ in range(5):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{url}/search", json={"query": "red"}, timeout=0.05)
    time.sleep(2)
    assert ask(url, "red") == 200
    assert not [line for line in lines(tmp_path) if line["level"] == "error"]
