"""``clipmend serve``: what it refuses before it loads anything, and a run from folder to search."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from clipmend.cli.app import app
from clipmend.data.scenes.build import make_scenes
from clipmend.data.scenes.draw import render

TOKEN = "a-token-of-enough-letters"


def refusal(*arguments: str, token: str | None = None) -> str:
    environment = {"CLIPMEND_TOKEN": token or ""}
    done = CliRunner().invoke(app, ["serve", *arguments], env=environment)
    assert done.exit_code != 0
    return " ".join((str(done.exception) + done.output).split())


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7"):
        told = refusal("no.index", "--host", host)  # told before anything of the index is looked at
        assert "--token-file" in told
        assert "CLIPMEND_TOKEN" in told
    assert "16" in refusal("no.index", "--host", "0.0.0.0", token="short")
    (tmp_path / "token").write_text("")
    assert "one line" in refusal("no.index", "--token-file", str(tmp_path / "token"))
    assert "No such file" in refusal("no.index", "--token-file", str(tmp_path / "none"))


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = refusal(str(tmp_path / "no.index"), "--port", str(taken.getsockname()[1]))
    assert "--port" in told


def test_no_index(tmp_path: Path) -> None:
    assert "no.index" in refusal(str(tmp_path / "no.index"), "--port", "0")
    assert "--patch" in refusal("no.index", "--strength", "2")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("clipmend.service")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'clipmend[serve]'" in refusal("no.index")


def test_vectors_of_unknown_files_are_told_so(tmp_path: Path) -> None:
    """The banner on standard output; on standard error JSON lines, warnings too, and one line about the files."""
    np.save(tmp_path / "own.npy", 3 * np.eye(384, dtype=np.float32)[:5])
    program = [sys.executable, "-c", "from clipmend.cli import main; main()"]
    arguments = ["serve", "own.npy", "--model", "scenes", "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLIPMEND_TOKEN": ""}
    with open(tmp_path / "log", "wb") as log:
        served = subprocess.Popen(
            [*program, *arguments], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert served.stdout is not None
        banner = served.stdout.readline()
        said = re.search(r"5 images by scenes: (http://127\.0\.0\.1:\d+/) ", banner)
        assert said, banner + (tmp_path / "log").read_text()
        with urllib.request.urlopen(said[1] + "api/about") as answer:
            assert json.load(answer)["files"] is False
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
    finally:
        served.kill()
        served.wait()
        served.stdout.close()  # type: ignore[union-attr]
    lines = (tmp_path / "log").read_text().splitlines()
    plain = [line for line in lines if not line.startswith("{")]
    assert plain == ["warning: it is not known where these images are: name their folder with --images DIR"]
    told = [json.loads(line) for line in lines if line not in plain]
    assert [line["event"] for line in told if line.get("warning") == "UnnormalisedWarning"] == [
        "own.npy: 5 of 5 vectors are not of length 1 (from 3 to 3); they are normalised here"
    ]
    assert any(line.get("path") == "/api/about" for line in told)


@pytest.mark.parametrize(("options", "seconds"), [([], 1.0), (["--no-reload"], None)])
def test_whether_it_looks_for_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], seconds: float | None
) -> None:
    from clipmend.service import server

    given: list[float | None] = []
    monkeypatch.setattr(server, "run", lambda app, listening, settings, **_: given.append(settings.reload))
    np.save(tmp_path / "own.npy", np.eye(384, dtype=np.float32)[:5])
    done = CliRunner().invoke(app, ["serve", str(tmp_path / "own.npy"), "--model", "scenes", "--port", "0", *options])
    assert done.exit_code == 0, done.output
    assert given == [seconds]


def test_from_a_folder_to_a_search(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for number, scene in enumerate(make_scenes(12, 5, "test")):
        render(scene, 64).save(tmp_path / "pictures" / f"{number}.png")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CLIPMEND_TOKEN": TOKEN}
    program = [sys.executable, "-c", "from clipmend.cli import main; main()"]
    subprocess.run([*program, "index", "scenes", "pictures", "-o", "my.index"], cwd=tmp_path, env=environment, check=True)
    log = tmp_path / "log"
    with open(log, "wb") as file:
        served = subprocess.Popen(
            [*program, "serve", "my.index", "--patch", "scenes", "--port", "0", "--example", "no cat"],
            cwd=tmp_path,
            env=environment,
            stdout=file,
            stderr=open(tmp_path / "errors", "wb"),  # noqa: SIM115 (the process's)
        )
    try:
        deadline = time.monotonic() + 200
        while not (said := re.search(r"12 images by scenes with the patch scenes: (http://127\.0\.0\.1:\d+/) ", log.read_text())):
            assert served.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)

        def ask(path: str, body: object = None) -> dict:
            data = None if body is None else json.dumps(body).encode()
            headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(said[1] + path, data, headers)) as answer:
                return json.load(answer)

        about = ask("api/about")
        assert (about["name"], about["count"], about["patch"]["name"]) == ("my", 12, "scenes")
        assert about["examples"] == ["no cat"]
        found = ask("search", {"query": "a picture with no cat", "k": 3, "compare": True})
        assert found["hits"][0]["rank_before"] > 1
        assert ask("embeddings", {"input": "no cat", "model": "scenes+patch"})["usage"]["total_tokens"] == 4
        render(make_scenes(1, 6, "test")[0], 64).save(tmp_path / "pictures" / "new.png")
        subprocess.run([*program, "index", "scenes", "-o", "my.index"], cwd=tmp_path, env=environment, check=True)
        listed = ask("search", {"query": ""})
        assert listed["total"] == 13
        assert listed["edition"] != found["edition"]
        served.send_signal(signal.SIGINT)
        assert served.wait(30) == 0
        assert log.read_text().rstrip().endswith("ended")
        errors = (tmp_path / "errors").read_text()
        assert {"event", "level", "time"} <= set.intersection(*(set(json.loads(line)) for line in errors.splitlines()))
    finally:
        served.kill()
        served.wait()
