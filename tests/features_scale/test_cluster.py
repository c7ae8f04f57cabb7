"""Features on many processes and machines: equal bytes, kills, what is refused. Needs Ray (extra ``cluster``)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from PIL import Image

from clipmend.features import make_features
from clipmend.negation import PeakPatchConfig
from features_scale import made

pytest.importorskip("ray", reason="needs the extra cluster")
pytestmark = pytest.mark.slow

MADE: dict[str, Any] = {"config": PeakPatchConfig(**made.LAYERS), **made.SIZES, "image_unit": 3, "text_unit": 6}
OPTIONS = ["--peak", "2", "--anchor", "1", "--image-batch", "4", "--text-batch", "8", "--image-unit", "3", "--text-unit", "6"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def model(folder: Path) -> str:
    return made.model(folder / "model")


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    return made.pictures(folder / "pictures")


@pytest.fixture(scope="module")
def whole(folder: Path, model: str, pictures: Path) -> Path:
    """Made by one process, without Ray."""
    report = make_features(model, pictures, folder / "whole", **MADE)
    assert report.made > 15
    return folder / "whole"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes of one processor each, on this machine."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=node)
    try:
        nodes.add_node(**node)
        nodes.wait_for_nodes()
        yield nodes.address
    finally:
        ray.shutdown()
        nodes.shutdown()


def test_two_processes_give_the_bytes_of_one(whole: Path, model: str, pictures: Path, tmp_path: Path) -> None:
    import ray

    report = make_features(model, pictures, tmp_path / "two", workers=2, **MADE)
    assert report.made == report.units
    assert [skip.image for skip in report.skipped] == list(made.POISONED)
    assert made.tree(tmp_path / "two") == made.tree(whole)
    assert not ray.is_initialized()  # stopped again
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


def start(model: str, pictures: Path, out: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
    arguments = ["features", model, "--data", str(pictures), "-o", str(out), "--workers", "2", *OPTIONS]
    return subprocess.Popen([sys.executable, "-c", "from clipmend.cli import main; main()", *arguments], stdout=log, stderr=log)


def test_killed_at_random_points_two_processes_end_with_the_same_bytes(
    whole: Path, model: str, pictures: Path, tmp_path: Path
) -> None:
    """The run is killed twice, wherever it is; the same command ends what is left."""
    out, log, rng = tmp_path / "out", tmp_path / "log", random.Random(11)
    kills = 0
    for attempt in range(4):
        with log.open("ab") as file:
            process = start(model, pictures, out, file)
        goal, deadline = made.units(out) + rng.randint(1, 3), time.monotonic() + 400
        while process.poll() is None and made.units(out) < goal and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05)
        if attempt < 2 and process.poll() is None:
            process.kill()
            process.wait()
            kills += 1
            continue
        assert process.wait(timeout=400) == 0, log.read_text()
        break
    assert kills
    assert made.tree(out) == made.tree(whole)


def test_a_worker_that_dies_is_replaced(
    whole: Path, model: str, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process kills itself, by SIGKILL, in the middle of its second unit; the run goes on and ends with the same bytes."""
    monkeypatch.setenv("CLIPMEND_TEST_DIE", str(tmp_path / "died"))
    code = (
        "import os, signal, pathlib\n"
        "from clipmend.negation import image_features as module\n"
        "mark, count, original = pathlib.Path(os.environ['CLIPMEND_TEST_DIE']), [0], module._Reading.unit\n"
        "def unit(*args, **kwargs):\n"
        "    count[0] += 1\n"
        "    if count[0] == 2 and not mark.exists():\n"
        "        mark.touch()\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return original(*args, **kwargs)\n"
        "module._Reading.unit = unit\n"
    )
    (tmp_path / "site").mkdir()
    only_there = "import sys\nif 'default_worker' in ' '.join(sys.orig_argv):\n    exec({code!r})\n"
    (tmp_path / "site" / "sitecustomize.py").write_text(only_there.format(code=code))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    report = make_features(model, pictures, tmp_path / "out", workers=2, texts=False, **MADE)
    assert (tmp_path / "died").exists()
    assert report.images == 37
    images = {name: content for name, content in made.tree(whole).items() if name.startswith("features/images/")}
    assert {name: content for name, content in made.tree(tmp_path / "out").items() if name.startswith("features/images/")} == images


def test_two_nodes_give_the_bytes_of_one_process(whole: Path, model: str, pictures: Path, tmp_path: Path, cluster: str) -> None:
    import ray

    make_features(model, pictures, tmp_path / "nodes", ray=cluster, **MADE)
    assert made.tree(tmp_path / "nodes") == made.tree(whole)
    # Half of it lost: what is missing is made, what is there is kept.
    kept = (tmp_path / "nodes" / "features" / "images" / "unit-00001").stat().st_mtime_ns
    for number in (0, 2, 5):
        for path in sorted((tmp_path / "nodes" / "features" / "images" / f"unit-{number:05d}").iterdir()):
            path.unlink()
        (tmp_path / "nodes" / "features" / "images" / f"unit-{number:05d}").rmdir()
    report = make_features(model, pictures, tmp_path / "nodes", ray=cluster, **MADE)
    assert report.made == 3
    assert made.tree(tmp_path / "nodes") == made.tree(whole)
    assert (tmp_path / "nodes" / "features" / "images" / "unit-00001").stat().st_mtime_ns == kept
    with pytest.raises(ValueError, match=r"5 workers, and the cluster has 2 processors"):
        make_features(model, pictures, tmp_path / "many", ray=cluster, workers=5, **MADE)
    assert not (tmp_path / "many").exists()
    assert not ray.is_initialized()


def test_a_refusal_in_a_worker_is_one_line(model: str, tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = made.pictures(tmp_path / "p", 60, poisoned=False)
    import ray

    from clipmend.features import make as module

    idle = {"tqdm_monitor", "Prefetcher"}  # Ray leaves the latter waiting, with nothing to do
    before = {thread.name for thread in threading.enumerate()} | idle
    original = module.write_lines

    def write(path: Path, rows: Any) -> None:
        original(path, rows)
        Image.new("RGB", (9, 9)).save(data / "08.png")

    monkeypatch.setattr(module, "write_lines", write)
    with pytest.raises(ValueError, match=r"^unit-00002 of images: image 8, .*08.png, changed while its features were made"):
        make_features(model, data, tmp_path / "out", ray=cluster, texts=False, **MADE)
    assert not list((tmp_path / "out").rglob("*.tmp-*"))
    # What was left undone has ended too: a thread that went on would connect this process to the cluster anew.
    assert {thread.name for thread in threading.enumerate()} <= before
    assert not ray.is_initialized()
