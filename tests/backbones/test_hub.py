"""Loading by hub id: quick to fail without a network, patient with one. A small hub on this machine stands in for the real one."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import close_session, constants

import clipmend
from backbones import tiny
from clipmend.backbones import hub
from clipmend.backbones.minilm import minilm_folder
from clipmend.backbones.photos.classifiers import TransformersClassifier
from clipmend.negation import PeakPatch
from helpers import RandomDualEncoder

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ENCODERS = {"me/clip": "clip", "me/text": "bert"}
NAMES = {**ENCODERS, "me/classifier": "vit"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hub")
    tokenizer = tiny.clip_tokenizer()
    tiny.saved(root / "clip", tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())
    words = tiny.bert_tokenizer()
    tiny.saved(root / "bert", tiny.bert_model(len(words)), words)
    tiny.saved(root / "vit", tiny.vit_classifier(), tiny.vit_processor())
    return root


class Hub(ThreadingHTTPServer):
    """Serves the files of some folders as a hub does; ``stumbles`` answers are errors before the first good one."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        self.root, self.stumbles, self.asked = root, 0, list[str]()
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.server.asked.append(f"{self.command} {self.path}")
        repository, _, file = self.path.lstrip("/").partition("/resolve/")
        file = file.partition("/")[2]
        if repository not in NAMES:
            return self._send(404, b"", {})
        if self.server.stumbles:
            self.server.stumbles -= 1
            return self._send(503, b"", {})
        path = self.server.root / NAMES[repository] / file
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = path.read_bytes()
        tag = hashlib.sha256(content).hexdigest()
        return self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'}, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool = False) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)


@pytest.fixture
def served(folders: Path) -> Iterator[Hub]:
    server = Hub(folders)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


class Net:
    """Where the hub's client looks, and how long it (or we) waited before trying again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self._monkeypatch = monkeypatch
        self.waited = 0.0
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(time, "sleep", self._sleep)
        for variable in ("HF_HUB_ETAG_TIMEOUT", *(name for name in os.environ if name.lower().endswith("_proxy"))):
            monkeypatch.delenv(variable, raising=False)
        self.look_at(closed_port())

    def look_at(self, endpoint: str) -> None:
        self.waited = 0.0
        close_session()
        self._monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        self._monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
        self._monkeypatch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)

    def _sleep(self, seconds: float) -> None:
        self.waited += seconds


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Net]:
    yield Net(monkeypatch, tmp_path / "cache")
    close_session()


TEXTS = ["a dog", "no cat"]


@pytest.mark.parametrize("name", ["nobody/no-such-model", "photos:nobody/no-such-model"])
def test_an_unknown_id_without_a_network_fails_at_once(name: str, net: Net) -> None:
    with pytest.raises(OSError, match=f"cannot load '{name}': ") as caught:
        clipmend.load(name, device="cpu")
    assert f"{constants.ENDPOINT} cannot be reached" in str(caught.value)
    assert "'scenes'" in str(caught.value)
    assert net.waited < 2


def test_minilm_without_a_network_fails_at_once(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(OSError, match=r"neither installed nor reachable on the hub .* cannot be reached.*clipmend\[demo\]"):
        minilm_folder()
    assert net.waited < 2


def test_a_live_model_without_a_network_fails_at_once(net: Net) -> None:
    tokenizer = tiny.clip_tokenizer()
    model = tiny.clip_model(tokenizer)
    model.name_or_path = "nobody/no-such-model"
    with pytest.raises(ValueError, match="no image processor found"):
        clipmend.load(model, tokenizer=tokenizer)
    assert net.waited < 2


def test_a_hub_that_stumbles_is_asked_again(served: Hub, net: Net, folders: Path) -> None:
    net.look_at(served.address)
    served.stumbles = 4
    found = clipmend.load("me/clip", device="cpu").encode_texts(TEXTS)
    assert served.stumbles == 0
    assert net.waited >= 1  # the client's own pauses
    torch.testing.assert_close(found, clipmend.load(folders / "clip", device="cpu").encode_texts(TEXTS))


def test_an_id_that_the_hub_does_not_know(served: Hub, net: Net) -> None:
    net.look_at(served.address)
    with pytest.raises(OSError, match="cannot load 'nobody/no-such-model'") as caught:
        clipmend.load("nobody/no-such-model", device="cpu")
    assert "cannot be reached" not in str(caught.value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", list(ENCODERS))
def test_what_is_cached_loads_without_a_network(name: str, served: Hub, net: Net, folders: Path) -> None:
    net.look_at(served.address)
    first = clipmend.load(name, device="cpu")
    torch.testing.assert_close(first.encode_texts(TEXTS), clipmend.load(folders / NAMES[name], device="cpu").encode_texts(TEXTS))
    net.look_at(closed_port())
    again = clipmend.load(name, device="cpu")
    assert again.fingerprint == first.fingerprint
    assert net.waited < 2


def test_a_cached_classifier_loads_without_a_network(served: Hub, net: Net, folders: Path) -> None:
    net.look_at(served.address)
    first = TransformersClassifier("me/classifier").digest()
    net.look_at(closed_port())
    assert TransformersClassifier("me/classifier").digest() == first == TransformersClassifier(str(folders / "vit")).digest()
    assert net.waited < 2
    with pytest.raises(OSError, match=r"nobody/classifier is neither a folder here nor in the local cache.*cannot be reached"):
        TransformersClassifier("nobody/classifier")
    assert net.waited < 2


def test_a_patch_that_is_not_there_fails_at_once(net: Net) -> None:
    with pytest.raises(ValueError, match=r"no patch called 'nobody/no-such-patch': it is no folder here.*cannot be reached"):
        PeakPatch.from_pretrained("nobody/no-such-patch")
    assert net.waited < 2
    patch = PeakPatch.untrained(RandomDualEncoder())
    with pytest.raises(OSError, match=r"cannot be uploaded to me/patch: .*cannot be reached"):
        patch.push_to_hub("me/patch")
    assert net.waited < 2


def test_a_cached_patch_is_read_without_a_network(net: Net) -> None:
    home = Path(constants.HF_HUB_CACHE) / "models--me--patch"
    PeakPatch.untrained(RandomDualEncoder()).save_pretrained(home / "snapshots" / COMMIT)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(COMMIT, encoding="ascii")
    assert PeakPatch.from_pretrained("me/patch").backbone == "random"
    assert net.waited < 2


def test_an_unknown_pooling_is_said(served: Hub, net: Net) -> None:
    """Weights that something else put into the cache: nobody ever asked whether a modules.json belongs to them."""
    net.look_at(served.address)
    transformers.AutoModel.from_pretrained("me/text")
    transformers.AutoTokenizer.from_pretrained("me/text")
    net.look_at(closed_port())
    with pytest.warns(UserWarning, match=r"me/text: the hub cannot be asked for modules\.json"):
        clipmend.load("me/text", device="cpu")


def test_offline_mode_sends_nothing(served: Hub, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    net.look_at(served.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(OSError, match="offline mode is on"):
        clipmend.load("me/clip", device="cpu")
    assert served.asked == []


def test_problems(net: Net, served: Hub, tmp_path: Path) -> None:
    assert hub.hub_problem(tmp_path) == ""  # it is here
    assert hub.hub_problem("no hub/id at all") == ""
    assert "cannot be reached" in hub.hub_problem("nobody/no-such-model")
    net.look_at(served.address)
    assert hub.hub_problem("nobody/no-such-model") == ""
    assert len(served.asked) == 1


def test_a_name_server_that_hangs_is_not_waited_for(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_SECONDS", 0.5)
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: done.wait(60) and [])
    net.look_at("http://hub.invalid")
    start = time.perf_counter()
    problem = hub.hub_problem("nobody/no-such-model")
    done.set()
    assert time.perf_counter() - start < 5
    assert "hub.invalid" in problem


def test_a_slow_answer_is_an_answer(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that is there but slow must be left to the client's own patience."""
    monkeypatch.setattr(hub, "_SECONDS", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        net.look_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert hub.hub_problem("nobody/no-such-model") == ""
