"""A folder of drawn scenes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clipmend.data.readers import read
from clipmend.data.scenes import make_scenes
from clipmend.data.scenes.world import KINDS, RESERVED_KINDS
from data.readers.made import write

SCENES = make_scenes(3, 5, "test")


def folder(root: Path, *odd: str) -> Path:
    """Three scenes with captions, and lines of another's making before them."""
    write(root / "scenes.jsonl", "\n".join([*odd, *(json.dumps(scene.to_json()) for scene in SCENES)]) + "\n")
    rows = [f"{scene.name},\"['a {scene.objects[0].kind}']\"" for scene in SCENES]
    write(root / "retrieval.csv", "\n".join(["filepath,captions", *rows]) + "\n")
    return root


def changed(**fields: Any) -> str:
    return json.dumps({**SCENES[0].to_json(), **fields})


def first_object(**fields: Any) -> str:
    row = SCENES[0].to_json()
    return json.dumps({**row, "objects": [{**row["objects"][0], **fields}, *row["objects"][1:]]})


def test_presence_absence_and_captions(tmp_path: Path) -> None:
    source = read(folder(tmp_path))
    records = list(source)
    assert [record.image for record in records] == [scene.name for scene in SCENES]
    for record, scene in zip(records, SCENES, strict=True):
        shown = {thing.kind for thing in scene.objects}
        assert record.present == shown
        assert record.absent == set(KINDS) - shown
        assert record.captions == (f"a {scene.objects[0].kind}",)
    assert source.vocabulary == set(KINDS)


def test_reserved_kinds_are_kept_back_unless_the_split_is_the_tests_own(tmp_path: Path) -> None:
    folder(tmp_path)
    assert set(read(tmp_path).reserved) == set(RESERVED_KINDS)
    write(tmp_path / "world.json", '{"split": "test"}')
    assert set(read(tmp_path).reserved) == set()


def test_without_captions_and_with_windows_line_ends(tmp_path: Path) -> None:
    folder(tmp_path)
    text = (tmp_path / "scenes.jsonl").read_text()
    (tmp_path / "scenes.jsonl").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (tmp_path / "retrieval.csv").unlink()
    assert [record.captions for record in read(tmp_path)] == [()] * 3


def test_a_folder_without_scenes_says_how_to_draw_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"scenes\.jsonl: no such file; write scenes with: clipmend scenes"):
        read(f"scenes:{tmp_path}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image": "images/0.png", "objects": [', "not JSON"),
        ('["images/0.png"]', "must be a JSON object"),
        (changed(objects=5), "not a scene"),
        (changed(background="moon"), "moon"),
        (first_object(kind="unicorn"), "unicorn"),
        (first_object(kind=["cat"]), "unknown kind"),
        (first_object(box=[0, 0, 1]), "not four numbers"),
        (first_object(box=[0, 0, float("nan"), 1]), "not four numbers"),
        (changed(variant=float("inf")), "not a whole number"),
        (json.dumps({k: v for k, v in SCENES[0].to_json().items() if k != "background"}), "background"),
    ],
    ids=["cut", "list", "objects", "background", "kind", "kinds", "box", "nan", "variant", "missing"],
)
def test_a_broken_scene_is_named_by_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    folder(tmp_path, line)
    with pytest.raises(ValueError, match=rf"scenes\.jsonl: line 1.*({message})"):
        list(read(tmp_path))
    source = read(tmp_path, on_error="skip")
    assert len(list(source)) == 3
    assert source.log.skipped == 1


def test_a_broken_caption_table_costs_its_row(tmp_path: Path) -> None:
    folder(tmp_path)
    path = tmp_path / "retrieval.csv"
    path.write_text(path.read_text().replace("['a ", "[('a ", 1))
    with pytest.raises(ValueError, match=r"retrieval\.csv: line 2"):
        list(read(tmp_path))
    source = read(tmp_path, on_error="skip")
    assert [len(record.captions) for record in source] == [0, 1, 1]
