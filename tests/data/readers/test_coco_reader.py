"""COCO's two files joined, and the streaming of large JSON below it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmend.data.json_stream import stream_arrays
from clipmend.data.readers import read
from clipmend.data.readers.coco import coco_files
from data.readers.made import coco, write


def test_captions_and_categories_meet(tmp_path: Path) -> None:
    source = read(coco(tmp_path))
    cat, crowd, empty = source
    assert cat.image == "000000397133.jpg"
    assert cat.captions == ("A cat on a mat", "Une chatte grise – très contente")
    assert (cat.present, cat.absent) == ({"cat"}, {"person", "toothbrush"})
    assert (crowd.present, crowd.captions) == ({"person"}, ("A crowd of people.",))  # iscrowd counts, the line end goes
    assert (empty.present, empty.absent, empty.captions) == (set(), {"person", "cat", "toothbrush"}, ())
    assert source.vocabulary == {"person", "cat", "toothbrush"}
    assert cat.open(source.image_root).size == (16, 12)
    assert source.log.notes == ["captions_val2017.json: 1 images have no caption"]


def test_where_the_files_are(tmp_path: Path) -> None:
    coco(tmp_path)
    annotations = tmp_path / "annotations"
    both = (annotations / "captions_val2017.json", annotations / "instances_val2017.json", tmp_path / "val2017")
    for given_path in (tmp_path, annotations, both[0], both[1]):
        assert coco_files(given_path) == both
    coco(tmp_path, "train2017")
    with pytest.raises(ValueError, match="the splits train2017, val2017; choose one"):
        coco_files(tmp_path)
    assert [r.image for r in read(tmp_path, split="train2017")] == [r.image for r in read(both[0])]
    with pytest.raises(FileNotFoundError, match=r"neither captions_test2017.json .* there are train2017, val2017"):
        coco_files(tmp_path, "test2017")
    with pytest.raises(FileNotFoundError, match="no such file or folder"):
        read(f"coco:{tmp_path / 'nowhere'}")


def test_one_file_alone_and_other_names(tmp_path: Path) -> None:
    coco(tmp_path)
    captions = tmp_path / "annotations" / "captions_val2017.json"
    instances = (tmp_path / "annotations" / "instances_val2017.json").rename(tmp_path / "mine.json")
    assert {r.present for r in read(captions)} == {None}
    joined = list(read(captions, instances=instances))
    assert joined[0].present == {"cat"}
    alone = list(read(f"coco:{instances}"))
    assert [r.captions for r in alone] == [(), (), ()]
    assert alone[1].present == {"person"}


def test_an_image_that_instances_do_not_list_is_unknown(tmp_path: Path) -> None:
    path = coco(tmp_path) / "annotations" / "instances_val2017.json"
    content = json.loads(path.read_text())
    content["images"] = content["images"][:2]
    write(path, json.dumps(content))
    source = read(tmp_path)
    assert list(source)[2].present is None
    assert "instances_val2017.json: 1 images are not listed: what they show is unknown" in source.log.notes


def changed(folder: Path, kind: str, change: Any) -> None:
    path = folder / "annotations" / f"{kind}_val2017.json"
    content = json.loads(path.read_text())
    change(content)
    write(path, json.dumps(content))


BROKEN: dict[str, tuple[str, Any, str]] = {
    "caption NaN": ("captions", lambda c: c["annotations"][1].update(caption=float("nan")), r"annotations\[1\]: caption is nan"),
    "caption blank": ("captions", lambda c: c["annotations"][1].update(caption=" \n"), r"annotations\[1\]: caption is empty"),
    "no caption": ("captions", lambda c: c["annotations"][0].pop("caption"), r"annotations\[0\]: caption is missing"),
    "unknown image": ("captions", lambda c: c["annotations"][2].update(image_id=5), r"annotations\[2\]: image 5 is not listed"),
    "image twice": ("captions", lambda c: c["images"].append(c["images"][0]), r"images\[3\]: image 397133 is listed twice"),
    "id as text": ("captions", lambda c: c["images"][0].update(id="397133"), r"images\[0\]: id is '397133', not an integer"),
    "unknown category": ("instances", lambda c: c["annotations"][1].update(category_id=4), r"annotations\[1\]: category 4 is not"),
    "category twice": ("instances", lambda c: c["categories"].append({"id": 2, "name": "cat"}), r"categories\[3\]: category 2"),
    "another name": ("instances", lambda c: c["images"][0].update(file_name="x.jpg"), r"images\[0\]: image 397133 is 'x.jpg' here"),
    "a list": ("instances", lambda c: c["annotations"].insert(0, [1]), r"annotations\[0\]: \[1\] where an object belongs"),
    "no images": ("captions", lambda c: c.update(images=[], annotations=[]), "no images in it|is not listed|here and"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_entries_are_named(tmp_path: Path, case: str) -> None:
    kind, change, message = BROKEN[case]
    changed(coco(tmp_path), kind, change)
    if case == "no images":
        (tmp_path / "annotations" / "instances_val2017.json").unlink()
    with pytest.raises(ValueError, match=message) as error:
        list(read(tmp_path))
    assert "_val2017.json" in str(error.value)


def test_broken_entries_can_be_skipped(tmp_path: Path) -> None:
    changed(coco(tmp_path), "captions", BROKEN["caption blank"][1])
    source = read(tmp_path, on_error="skip")
    first, *_ = source
    assert first.captions == ("Une chatte grise – très contente",)
    assert (source.log.skipped, source.log.empty) == (1, 1)


# Streaming


def test_every_cut_of_a_file_is_noticed(tmp_path: Path) -> None:
    whole = (coco(tmp_path) / "annotations" / "captions_val2017.json").read_text(encoding="utf-8")
    for end in range(0, len(whole), 7):
        path = write(tmp_path / "cut.json", whole[:end])
        with pytest.raises(ValueError, match=r"cut\.json"):
            list(stream_arrays(path, chunk=64))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "'\\[' stands where '{' belongs"),
        ("", "the file is empty"),
        ('{"a": [1, 2,]}', "a\\[2\\] is not JSON"),
        ('{"a": [1 2]}', "after entry 0"),
        ('{"a": [1]} {}', "more text follows"),
        ('{"a": [{"b": tru}]}', "a\\[0\\] is not JSON"),
        ('{"a": [' + "[" * 100_000, "a\\[0\\] is"),
        ("{1: 2}", "1 stands where a key belongs"),
    ],
)
def test_what_is_not_json(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(stream_arrays(write(tmp_path / "x.json", text), chunk=16))


def test_latin_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.json: not UTF-8"):
        list(stream_arrays(write(tmp_path / "x.json", '{"a": ["café"]}', "latin-1")))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(), st.lists(JSON, max_size=4) | JSON, max_size=4),
    st.integers(1, 40),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_it_reads_what_the_standard_library_reads(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any], chunk: int, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    path = tmp_path_factory.mktemp("j") / "x.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass") if ascii_only else text.encode("utf-8", "replace"))
    expected = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, Any] = {key: [] for key, value in expected.items() if isinstance(value, list)}
    for key, index, entry in stream_arrays(path, chunk=chunk):
        if index < 0:
            found[key] = entry
        else:
            assert index == len(found[key])
            found[key].append(entry)
    assert found == expected
