"""An address where no Ray cluster answers is told at once, before any work and without starting anything."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from PIL import Image

from clipmend.features import ray_address
from clipmend.features.ray_address import check_ray_address

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


@contextmanager
def server(answer: bytes | None) -> Iterator[int]:
    """A port where every caller is told ``answer``; ``None``: nothing, and is kept waiting."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(4)
        held: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                held.append(line)
                if answer is not None:
                    line.recv(64)
                    line.sendall(answer)
                    line.close()

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield listening.getsockname()[1]
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for line in held:
                line.close()


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the environment nor a cluster of this machine has a say; and no need of Ray to find the machine's own address."""
    for name in ("RAY_ADDRESS", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ray_address, "_own_names", lambda host: [])


def test_who_speaks_http_2_may_be_ray() -> None:
    with server(SETTINGS) as port:
        check_ray_address(f"127.0.0.1:{port}")
        check_ray_address(f"ray://127.0.0.1:{port}")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"SSH"])
def test_who_speaks_otherwise_is_not(answer: bytes) -> None:
    with server(answer) as port, pytest.raises(ConnectionError, match="something else listens on that port"):
        check_ray_address(f"127.0.0.1:{port}")


def test_silence_ends() -> None:
    started = time.monotonic()
    with server(None) as port, pytest.raises(ConnectionError, match="no answer in time"):
        check_ray_address(f"127.0.0.1:{port}", timeout=0.5)
    assert time.monotonic() - started < 5


def test_encrypted_clusters_are_not_greeted_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with server(b"\x15\x03\x01") as port:
        check_ray_address(f"127.0.0.1:{port}")


def test_nobody_there_and_no_such_host() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: refused
        port = unused.getsockname()[1]
        with pytest.raises(ConnectionError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{port}: connection refused"):
            check_ray_address(f"127.0.0.1:{port}")
    with pytest.raises(ConnectionError, match=r"no Ray cluster answers at no-such-host\.invalid:6379"):
        check_ray_address("no-such-host.invalid:6379")


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:99999", "ray://host", "a b:1", ""])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="no address of a Ray cluster"):
        check_ray_address(address)


def test_auto_is_what_the_environment_or_ray_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{gone.getsockname()[1]}"
        (tmp_path / "ray" / "ray_current_cluster").write_text(address)
        with pytest.raises(ConnectionError, match=rf"{address} \(which auto stands for here\)"):
            check_ray_address("auto")
        with server(SETTINGS) as port:
            monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
            check_ray_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    check_ray_address("auto")


def _of_ray() -> set[str]:
    """Numbers of the processes of a Ray on this machine."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
        except OSError:  # it ended meanwhile
            continue
        if any(name in command for name in (b"raylet", b"gcs_server")):
            found.add(folder.name)
    return found


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to see processes")
@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_the_command_fails_at_once_and_leaves_nothing(form: str, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra cluster")
    (tmp_path / "p").mkdir()
    Image.new("RGB", (20, 20)).save(tmp_path / "p" / "a.png")
    before = _of_ray()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = form.format(unused.getsockname()[1])
        command = ["features", "scenes", "--data", str(tmp_path / "p"), "-o", str(tmp_path / "out"), "--ray", address]
        # Ray itself tries for 160 s and more; most of this time goes into importing it.
        run = subprocess.run(
            [sys.executable, "-c", "from clipmend.cli import main; main()", *command],
            capture_output=True, text=True, timeout=100, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
    assert run.returncode == 1, run.stderr
    assert f"error: no Ray cluster answers at {address}: connection refused" in run.stderr
    assert not (tmp_path / "out").exists()
    assert _of_ray() <= before
