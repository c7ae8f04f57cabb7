"""Sets of dense captions: each format once whole and several times broken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.data import dense_made as made

from clipmend.data.dense import DENSE_SETS, dense_rows, dense_set, read_dense
from clipmend.data.json_stream import stream_list
from clipmend.data.preflight import preflight
from clipmend.data.readers import read, recognise
from clipmend.data.readers.base import Log
from clipmend.data.scenes.tables import write_scenes


def test_docci_has_5000_and_5100_by_name(tmp_path: Path) -> None:
    made.docci(tmp_path)
    data = read_dense("docci", tmp_path)
    assert data.image_ids == ["test_00000", "test_00001"]
    assert data.captions == ["A test photograph, 0.", "A test photograph, 1."]
    assert data.split == "test"
    assert data.missing() == []
    both = read_dense("docci", tmp_path, split="test+qual_test")
    assert both.image_ids == ["test_00000", "test_00001", "qual_test_00000"]
    assert len(read_dense("docci", tmp_path / "docci_descriptions.jsonlines", split="all")) == 7
    with pytest.raises(ValueError, match="docci has no split tset; it has train, test, qual_dev, qual_test, all"):
        read_dense("docci", tmp_path, split="tset")
    with pytest.raises(ValueError, match="docci takes no caption"):
        read_dense("docci", tmp_path, caption="both")


def test_dci_by_its_splits_and_captions(tmp_path: Path) -> None:
    made.dci(tmp_path)
    data = read_dense("dci", tmp_path)
    assert (data.image_ids, data.captions, data.short) == (["sa_11"], ["Another long one."], ["Short 1."])
    assert any("1 photographs have no extra_caption" in note for note in data.notes)
    assert data.known_as == ["sa_11"]
    both = read_dense("dci", tmp_path / "densely_captioned_images", caption="both")
    assert both.captions == ["Short 1. Another long one.", "Short 2."]
    assert read_dense("dci", tmp_path, caption="short").captions == ["Short 1.", "Short 2."]
    assert len(read_dense("dci", tmp_path, split="train+valid")) == 2
    other = made.write(tmp_path / "goal.json", {"test": ["sa_10.json", "sa_13"]})
    assert read_dense("dci", tmp_path, split_file=str(other)).image_ids == ["sa_10", "sa_13"]
    (tmp_path / "densely_captioned_images/splits.json").unlink()
    assert len(read_dense("dci", tmp_path, split="all")) == 3
    with pytest.raises(FileNotFoundError, match="cannot be told"):
        read_dense("dci", tmp_path)


def test_long_dci_shares_its_ids_with_dci(tmp_path: Path) -> None:
    data = read_dense("long-dci", made.long_dci(tmp_path))
    assert data.captions == ["A long one.", 'Another, "quoted" long one.', "Third."]
    assert data.known_as == ["sa_10", "sa_11", "sa_12"]
    assert data.missing() == []
    assert data.where[2].endswith("dci_long.csv: line 5")
    comma = made.write(tmp_path / "other.csv", "filepath,title\nsa_10.jpg,One\n")
    assert read_dense("long-dci", comma).captions == ["One"]


def test_urban1k_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    made.urban1k(tmp_path)
    made.write(tmp_path / "caption/2.txt", "First line.\nSecond line.\n")
    data = read_dense("urban1k", tmp_path)
    assert data.image_ids == ["1", "2", "10"]
    assert data.captions == ["Street number 1.", "First line.", "Street number 10."]
    assert any("more than one line" in note for note in data.notes)
    assert data.known_as == ["", "", ""]  # "1" says nothing outside this folder


def test_sharegpt4v_begins_with_its_test_part(tmp_path: Path) -> None:
    file = made.sharegpt4v(tmp_path)
    data = read_dense("sharegpt4v", tmp_path, split="train", test_entries=1)
    assert data.captions == ["It is number 1.", "It is number 2.", "It is number 3."]
    assert data.known_as[0] == "000000000001"
    assert data.missing() == []
    assert len(read_dense("sharegpt4v", file, split="test", test_entries=1)) == 1
    file.write_text(file.read_text()[:-40])  # the end is not read where only the beginning is asked for
    assert len(read_dense("sharegpt4v", file, split="test", test_entries=1)) == 1
    with pytest.raises(ValueError, match="cut short"):
        read_dense("sharegpt4v", file, split="all")


def test_visual_genome_paragraphs_by_their_split_files(tmp_path: Path) -> None:
    made.vg(tmp_path)
    data = read_dense("vg-paragraphs", tmp_path)
    assert data.image_ids == ["8", "9"]
    assert data.captions[0] == "A paragraph about 8."
    assert data.missing() == []
    assert len(read_dense("vg-paragraphs", tmp_path / "paragraphs_v1.json", split="all")) == 3
    flat = made.vg(tmp_path / "flat")
    for image in flat.rglob("*.jpg"):
        made.picture(flat / "images" / image.name)
        image.unlink()
    assert read_dense("vg-paragraphs", flat).missing() == []


def test_goal_pairs_and_training_parts(tmp_path: Path) -> None:
    data = read_dense("goal", made.goal_pairs(tmp_path))
    assert data.image_ids == ["sa_20", "sa_21"]
    assert data.missing() == []  # found by the last part of the names, which are another machine's
    assert data.segments is None
    train = read_dense("goal", made.goal_training(tmp_path))
    assert train.captions == ["A dog. A cat."]
    assert train.segments is not None
    assert [(part.caption, part.box, part.score) for part in train.segments[0]] == [
        ("A dog", (1, 2, 5, 6), 21.5),
        ("A cat", (1, 2, 5, 6), 21.5),
    ]


def test_any_table(tmp_path: Path) -> None:
    made.picture(tmp_path / "a b.png")
    table = made.write(tmp_path / "t.csv", '\ufeffphoto,says,more\r\na b.png,"One, two",x\r\na b.png,Three é,y\r\n')
    data = read_dense("table", table, image_column="photo", caption_column="says")
    assert data.captions == ["One, two", "Three é"]
    assert data.image_of.tolist() == [0, 0]
    assert data.caption_ids == ["a b#0", "a b#1"]
    lines = made.write(tmp_path / "t.jsonl", '{"image": "a b.png", "caption": "One"}\n')
    assert read_dense("table", lines).missing() == []
    with pytest.raises(ValueError, match="no column is called as captions usually are"):
        read_dense("table", table, image_column="photo")


def test_a_folder_of_own_images(tmp_path: Path) -> None:
    folder = tmp_path / "my photos"
    for k in range(3):
        made.picture(folder / f"é {k}.png", k)
        made.write(folder / f"é {k}.txt", f"Photograph {k}.\nIt is plain.\n")
    data = read_dense("folder", folder)
    assert data.captions == [f"Photograph {k}. It is plain." for k in range(3)]
    assert data.missing() == []
    assert data.image_ids == ["é 0", "é 1", "é 2"]
    assert len(read_dense("folder", folder, captions="lines")) == 6
    (folder / "é 1.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"é 1\.txt is not there"):
        read_dense("folder", folder)
    assert read_dense("folder", folder, on_error="skip").skipped == 1
    with pytest.raises(NotADirectoryError, match=r"--set table"):
        read_dense("folder", folder / "é 0.txt")
    with pytest.raises(FileNotFoundError, match=r"without captions\.csv.*--set folder"):
        read_dense("table", folder)
    # Its table comes first, as in fine-tuning, and both sets read the same.
    made.write(folder / "captions.csv", "image,caption\né 2.png,One\né 0.png,Two\n")
    found = [read_dense(name, folder) for name in ("folder", "table")]
    assert [data.captions for data in found] == [["One", "Two"]] * 2
    assert [data.images for data in found] == [[folder / "é 2.png", folder / "é 0.png"]] * 2
    for file in (*folder.glob("*.txt"), folder / "captions.csv"):
        file.unlink()
    with pytest.raises(ValueError, match=r"no image has a \.txt beside it, and there is no captions\.csv"):
        read_dense("folder", folder)


def test_drawn_scenes_with_their_twins(tmp_path: Path) -> None:
    write_scenes(tmp_path / "world", count=3, size=16, seed=5, split="test")
    data = read_dense("scenes", tmp_path / "world")
    assert len(data) == len(data.images) == 6
    assert data.twins == [(0, 1), (2, 3), (4, 5)]
    assert data.missing() == []
    assert data.images[1].parent.name == "twins"
    other = write_scenes(tmp_path / "train", count=3, size=16, seed=6, split="train").folder
    assert not set(data.known_as) & set(read_dense("scenes", other).known_as)
    assert len(read_dense("scenes", tmp_path / "world", twins=False)) == 3
    with pytest.raises(ValueError, match="of the split 'test', not train"):
        read_dense("scenes", tmp_path / "world", split="train")


Break = Callable[[Path], Any]


def lines_of(file: Path, number: int, text: str) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    lines[number] = text
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def entry_of(file: Path, number: int, change: Callable[[dict[str, Any]], Any]) -> None:
    entries = json.loads(file.read_text())
    changed = change(entries[number])
    entries[number] = entries[number] if changed is None else changed
    file.write_text(json.dumps(entries))


DESCRIPTIONS = "docci_descriptions.jsonlines"
BASE = "densely_captioned_images"
SHARE = "share-captioner_coco_lcs_sam_1246k_1107.json"
BROKEN: list[tuple[str, Callable[[Path], Path], Break, str]] = [
    ("docci", made.docci, lambda p: lines_of(p / DESCRIPTIONS, 3, '{"split": "test"'), r"jsonlines: line 4: not JSON"),
    (
        "docci",
        made.docci,
        lambda p: lines_of(p / DESCRIPTIONS, 3, '{"split": "test", "image_file": "a.jpg"}'),
        "line 4: description is missing",
    ),
    (
        "docci",
        made.docci,
        lambda p: lines_of(p / DESCRIPTIONS, 3, '{"split": "tst", "image_file": "a.jpg"}'),
        "line 4: split is 'tst', none of",
    ),
    (
        "docci",
        made.docci,
        lambda p: lines_of(p / DESCRIPTIONS, 3, '{"split": "test", "image_file": 3, "description": "x"}'),
        "line 4: image_file is 3, not str",
    ),
    (
        "docci",
        made.docci,
        lambda p: lines_of(p / DESCRIPTIONS, 3, '{"split": "test", "image_file": "a", "description": " "}'),
        "line 4: description is empty",
    ),
    ("dci", made.dci, lambda p: made.write(p / BASE / "annotations/sa_11.json", "{"), r"sa_11.json: not JSON"),
    (
        "dci",
        made.dci,
        lambda p: (p / BASE / "annotations/sa_11.json").unlink(),
        r"splits.json: test\[0\]: its annotation .*sa_11.json is not there",
    ),
    (
        "dci",
        made.dci,
        lambda p: made.write(p / BASE / "annotations/sa_11.json", {"image": "sa_11.jpg", "short_caption": ""}),
        "sa_11.json: extra_caption is missing",
    ),
    ("dci", made.dci, lambda p: made.write(p / BASE / "splits.json", ["a"]), "must hold a list of annotation files for each split"),
    ("dci", made.dci, lambda p: made.write(p / BASE / "splits.json", {"train": []}), "has no split test; it has train"),
    (
        "dci",
        made.dci,
        lambda p: made.write(p / BASE / "splits.json", {"test": ["../x.json"]}),
        r"test\[0\]: '../x.json' is no annotation",
    ),
    ("long-dci", made.long_dci, lambda p: made.write(p / "dci_long.csv", "filepath\ttext\na\tb\n"), "title"),
    ("long-dci", made.long_dci, lambda p: lines_of(p / "dci_long.csv", 1, "sa_10.jpg\tA\tB"), "dci_long.csv: line 2: 3 fields"),
    ("long-dci", made.long_dci, lambda p: lines_of(p / "dci_long.csv", 1, "sa_10.jpg\t  "), "dci_long.csv: line 2: title is empty"),
    ("urban1k", made.urban1k, lambda p: made.write(p / "caption/2.txt", " \n"), "2.txt: the caption is empty"),
    ("urban1k", made.urban1k, lambda p: (p / "caption/2.txt").unlink(), r"2.jpg: has no caption .*2.txt"),
    ("urban1k", made.urban1k, lambda p: (p / "caption/2.txt").write_bytes(b"\xff\xfe\x00"), "2.txt: not UTF-8"),
    (
        "sharegpt4v",
        made.sharegpt4v,
        lambda p: entry_of(p, 1, lambda e: e.pop("image") and None),
        r"1107.json: \[1\]: image is missing",
    ),
    (
        "sharegpt4v",
        made.sharegpt4v,
        lambda p: entry_of(p, 1, lambda e: e.update(conversations=[{}])),
        r"\[1\]: conversations has 1 turns",
    ),
    ("sharegpt4v", made.sharegpt4v, lambda p: entry_of(p, 1, lambda e: 7), r"\[1\]: 7 stands where an object belongs"),
    (
        "vg-paragraphs",
        made.vg,
        lambda p: entry_of(p / "paragraphs_v1.json", 1, lambda e: e.update(image_id="8")),
        r"\[1\]: image_id is '8', not int",
    ),
    (
        "vg-paragraphs",
        made.vg,
        lambda p: entry_of(p / "paragraphs_v1.json", 1, lambda e: e.update(paragraph=None)),
        r"\[1\]: paragraph is missing",
    ),
    ("vg-paragraphs", made.vg, lambda p: made.write(p / "test_split.json", ["8"]), r"test_split.json: \[0\]: '8' is no image id"),
    ("vg-paragraphs", made.vg, lambda p: (p / "test_split.json").unlink(), "test_split.json: no such file"),
    (
        "goal",
        made.goal_pairs,
        lambda p: entry_of(p, 1, lambda e: e.pop("caption") and None),
        r"DCI_test.json: \[1\]: caption is missing",
    ),
    ("goal", made.goal_pairs, lambda p: made.write(p, {"a": 1}), "'{' stands where '\\[' belongs"),
    (
        "goal",
        made.goal_training,
        lambda p: entry_of(p, 0, lambda e: e["segment"][1]["bbox_coordinates"].update(x2=1)),
        r"segment\[1\]: bbox_coordinates .* are no box",
    ),
    (
        "goal",
        made.goal_training,
        lambda p: entry_of(p, 0, lambda e: e["segment"][0]["bbox_coordinates"].update(x1=0.5)),
        r"segment\[0\]: bbox_coordinates: x1 is 0.5, not a whole number",
    ),
    (
        "goal",
        made.goal_training,
        lambda p: entry_of(p, 0, lambda e: e["segment"][0].update(similarity_score="x")),
        r"segment\[0\]: similarity_score is 'x'",
    ),
]


@pytest.mark.parametrize(("name", "make", "damage", "message"), BROKEN)
def test_broken_files_are_named_with_their_row(
    name: str, make: Callable[[Path], Path], damage: Break, message: str, tmp_path: Path
) -> None:
    path = make(tmp_path)
    whole = len(read_dense(name, path))
    damage(path)
    with pytest.raises((ValueError, OSError), match=message):
        read_dense(name, path)
    try:
        left = read_dense(name, path, on_error="skip")
    except (ValueError, OSError):  # nothing is left, or the file as a whole is of no use
        return
    assert left.skipped == 1
    assert len(left) in (whole - 1, whole)  # a row of another split costs nothing of this one
    assert any("1 row left out" in note and str(tmp_path) in note for note in left.notes)


@pytest.mark.parametrize("name", sorted(DENSE_SETS))
def test_what_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_dense(name, tmp_path / "nothing")
    with pytest.raises((FileNotFoundError, ValueError)):
        read_dense(name, tmp_path)
    with pytest.raises(ValueError, match="is empty"):
        read_dense(name, " ")
    with pytest.raises((FileNotFoundError, ValueError)):
        read_dense(name, tmp_path, split="no such")
    with pytest.raises(ValueError, match="split is 'test\\+'"):
        read_dense(name, tmp_path, split="test+")


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="no set 'doccy'; choose one of dci, docci"):
        read_dense("doccy", ".")
    with pytest.raises(ValueError, match="two sets"):
        dense_set("docci", "another")(lambda path, splits, root, log: iter(()))


def test_rows_are_joined_and_repeats_are_noted(tmp_path: Path) -> None:
    made.picture(tmp_path / "x/a.png")
    made.picture(tmp_path / "y/a.png")
    table = made.write(tmp_path / "t.csv", "image,caption\nx/a.png,One\ny/a.png,One\nx/a.png,One\nx/a.png,Two\n")
    data = read_dense("table", table)
    assert data.captions == ["One", "One", "Two"]
    assert data.image_of.tolist() == [0, 1, 0]
    assert data.image_ids == ["x/a.png", "y/a.png"]  # their stems do not tell them apart
    assert any("1 captions repeated" in note for note in data.notes)
    assert any("1 captions stand under more than one image" in note for note in data.notes)


def test_missing_images_are_counted_and_left_out(tmp_path: Path) -> None:
    made.docci(tmp_path)
    (tmp_path / "images/test_00000.jpg").unlink()
    data = read_dense("docci", tmp_path)
    assert data.missing() == [0]
    assert "1 of 2 images have no file" in str(data.missing_error([0]))
    left = data.without([0])
    assert (left.image_ids, left.captions, left.image_of.tolist()) == (["test_00001"], ["A test photograph, 1."], [0])
    for report in (preflight(data.source()), preflight(read(f"docci:{tmp_path}", split="test"))):
        assert report.findings["images_missing"].count == 1
        assert report.captions == 2


def test_twins_that_lose_a_partner_go(tmp_path: Path) -> None:
    write_scenes(tmp_path / "world", count=2, size=16, seed=5, split="test")
    data = read_dense("scenes", tmp_path / "world").without([1])
    assert data.twins == [(1, 2)]


def test_the_digest_is_of_contents_not_of_places(tmp_path: Path) -> None:
    first = read_dense("docci", made.docci(tmp_path / "a"))
    again = read_dense("docci", made.docci(tmp_path / "elsewhere"))
    assert first.gallery_digest(first.digests()) == again.gallery_digest(again.digests())
    turned = first.without([0])
    assert first.gallery_digest() != turned.gallery_digest()
    made.picture(tmp_path / "a/images/test_00000.jpg", 200)
    assert first.gallery_digest(first.digests()) != again.gallery_digest(again.digests())


def test_sets_are_recognised_and_others_are_not_taken(tmp_path: Path) -> None:
    assert recognise(made.docci(tmp_path / "docci"))[0] == "docci"
    assert recognise(made.dci(tmp_path / "dci"))[0] == "dci"
    assert recognise(made.long_dci(tmp_path / "long"))[0] == "long-dci"
    assert recognise(made.vg(tmp_path / "vg"))[0] == "vg-paragraphs"
    assert recognise(made.sharegpt4v(tmp_path / "share"))[0] == "sharegpt4v"
    assert recognise(made.urban1k(tmp_path / "urban"))[0] == "folder"  # any folder of this layout may be meant
    log = Log("skip")
    assert len(list(dense_rows("docci", tmp_path / "docci", log=log))) == 2
    assert log.skipped == 0


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_a_list_is_streamed_whole_whatever_the_chunk(chunk: int, tmp_path: Path) -> None:
    entries = [{"a": "x, ]", "b": [1, 2.5e3]}, 12, "é", [], None, {"c": {"d": "\u2028"}}]
    file = made.write(tmp_path / "list.json", "\ufeff " + json.dumps(entries, indent=1) + "\n")
    assert list(stream_list(file, chunk=chunk)) == list(enumerate(entries))
    assert list(stream_list(made.write(file, "[]"), chunk=chunk)) == []
    for text, message in (
        ("", "the file is empty"),
        ("{}", "the file, which must be a list"),
        ("[1, 2", "the file ends where ']' belongs"),
        ('[{"a": 1}, {"a":', r"\[1\] is cut short"),
        ("[1] 2", "more text follows"),
        ("[1 2]", "'2' stands where ']' belongs"),
    ):
        with pytest.raises(ValueError, match=message):
            list(stream_list(made.write(file, text), chunk=chunk))
