"""The folder: complete, readable, the same for the same seed, never half written."""

import ast
import csv
import json
import re

import pytest
from PIL import Image

from clipmend.data.records import TRUE, truth_matrix
from clipmend.data.scenes import (
    RESERVED_KINDS,
    make_scenes,
    negation_data,
    negation_data_from_folder,
    read_scenes,
    render,
    write_scenes,
)
from clipmend.data.scenes import tables as tables_module
from clipmend.data.scenes.wordings import RESERVED_PATTERN

COUNT = 45
OPTIONS = [f"caption_{k}" for k in range(4)]
COLUMNS = {
    "captions.csv": ["image", "caption", "form", "wording", "asserts", "denies", "complete"],
    "choice.csv": ["image_path", "correct_answer", *OPTIONS, "correct_answer_template", "subset", "parse"],
    "retrieval.csv": ["filepath", "captions", "parse"],
    "negated_retrieval.csv": ["filepath", "captions", "parse"],
    "exclusion.csv": ["query", "absent", "wording", "subset"],
    "pairs.csv": ["kind", "positive", "contrast", "image", "group", "object"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("worlds with a space é")
    for split in ("train", "test"):
        write_scenes(root / split, COUNT, 32, 5, split)
    return root


def _rows(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("split", ["train", "test"])
def test_everything_named_is_written(folders, split):
    root = folders / split
    assert len(list((root / "images").glob("*.png"))) == COUNT
    assert len(list((root / "twins").glob("*.png"))) == COUNT
    for name, columns in COLUMNS.items():
        text = (root / name).read_bytes()
        assert b"\r" not in text
        rows = _rows(root / name)
        assert rows
        assert list(rows[0]) == columns
    scenes = [json.loads(line) for line in (root / "scenes.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(scenes) == COUNT
    assert {"image", "background", "objects", "relations"} <= set(scenes[0])
    assert {"kind", "colour", "size", "box"} <= set(scenes[0]["objects"][0])
    assert json.loads((root / "world.json").read_text()) == {"count": COUNT, "size": 32, "seed": 5, "split": split}
    for row in _rows(root / "retrieval.csv"):
        captions, parses = ast.literal_eval(row["captions"]), json.loads(row["parse"])
        assert len(captions) == len(parses) == 4
        assert (root / row["filepath"]).is_file()


def test_the_images_are_the_scenes(folders):
    scenes, paths = read_scenes(folders / "test")
    assert scenes == make_scenes(COUNT, 5, "test")
    for scene, path in zip(scenes[:6], paths[:6], strict=True):
        with Image.open(path) as image:
            assert image.size == (32, 32)
            assert image.tobytes() == render(scene, 32).tobytes()


def test_nothing_reserved_is_in_a_training_folder(folders):
    train = folders / "train"
    pattern = re.compile(RESERVED_PATTERN, re.IGNORECASE)
    for path in train.iterdir():
        if path.suffix in (".csv", ".jsonl"):
            lines = path.read_text(encoding="utf-8").splitlines()
            assert not pattern.search("\n".join(lines[1:] if path.suffix == ".csv" else lines)), path
    for row in _rows(train / "choice.csv"):
        assert row["subset"] == "standard"
        assert not {kind for parse in json.loads(row["parse"]) for kind in parse["denies"]} & set(RESERVED_KINDS)
    assert {row["subset"] for row in _rows(train / "exclusion.csv")} == {"standard"}
    for name in ("choice.csv", "exclusion.csv"):
        assert {row["subset"] for row in _rows(folders / "test" / name)} == {"standard", "reserved_wording", "reserved_kind"}


def test_data_read_back_are_the_data_built(folders):
    scenes, paths = read_scenes(folders / "test")
    built = negation_data(scenes, paths, 5, "test")
    read = negation_data_from_folder(folders / "test")
    assert read.facts == built.facts
    assert read.captions == built.captions
    assert read.questions == built.questions
    assert read.reserved == built.reserved
    for subset in ("reserved_wording", "reserved_kind"):
        other = negation_data_from_folder(folders / "test", subset)
        assert other.questions
        truth = truth_matrix(other.facts, other.captions)
        for question in other.questions:
            assert [truth[question.image, k] == TRUE for k in question.options].index(True) == question.answer


def test_the_same_seed_writes_the_same_bytes(folders, tmp_path):
    write_scenes(tmp_path / "again", COUNT, 32, 5, "test")
    for path in sorted((folders / "test").rglob("*")):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(folders / "test")).read_bytes() == path.read_bytes(), path


def test_a_folder_in_use_is_kept_unless_told(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    write_scenes(out, 3, 16, 1)  # an empty folder is fine
    (out / "mine.txt").write_text("keep")
    with pytest.raises(FileExistsError, match="not empty"):
        write_scenes(out, 3, 16, 2)
    assert (out / "mine.txt").exists()
    write_scenes(out, 4, 16, 2, overwrite=True)
    assert not (out / "mine.txt").exists()
    assert len(read_scenes(out)[0]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch):
    out = tmp_path / "out"
    write_scenes(out, 3, 16, 1)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(tables_module, "minimal_pairs", fail)
    with pytest.raises(OSError, match="disk full"):
        write_scenes(out, 5, 16, 2, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_too_few_scenes_for_a_subset_are_noted(tmp_path):
    for seed in range(40):
        if not any(set(scene.kinds) & set(RESERVED_KINDS) for scene in make_scenes(2, seed, "test")):
            break
    written = write_scenes(tmp_path / "few", 2, 16, seed, "test")
    assert any("reserved_kind" in note for note in written.notes)


@pytest.mark.parametrize(("count", "size", "match"), [(0, 64, "at least one"), (3, 4, "16 to 4096"), (1, 5000, "16 to 4096")])
def test_bad_numbers_are_refused(tmp_path, count, size, match):
    with pytest.raises(ValueError, match=match):
        write_scenes(tmp_path / "x", count, size)


@pytest.fixture
def copy(folders, tmp_path):
    write_scenes(tmp_path / "copy", 6, 16, 5)
    return tmp_path / "copy"


def _edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8", newline="")


@pytest.mark.parametrize(
    ("name", "old", "new", "match"),
    [
        ("scenes.jsonl", '"background"', '"backdrop"', r"scenes\.jsonl, line 1: .*background"),
        ("scenes.jsonl", "{", "", r"scenes\.jsonl, line 1: not JSON"),
        ("scenes.jsonl", "images/000001.png", "images/000000.png", r"line 2: .*line 1 already"),
        ("captions.csv", "image,caption", "image,text", r"captions\.csv, line 1: no column caption"),
        ("captions.csv", "affirmative", "positive-ish", r"captions\.csv, line 2: unknown form"),
        ("captions.csv", ",true\n", ",perhaps\n", r"captions\.csv, line 2: complete"),
        ("captions.csv", "images/000000.png", "images/9.png", r"captions\.csv, line 2: the image"),
        ("captions.csv", ",[],true", ",[1],true", r"captions\.csv, line 2: denies is not a list of texts"),
        ("choice.csv", "correct_answer,", "answer,", r"choice\.csv, line 1: no column correct_answer"),
        ("choice.csv", '"[{', '"[{}, {', r"choice\.csv, line 2: parse must list"),
    ],
)  # fmt: skip
def test_errors_name_the_file_and_the_line(copy, name, old, new, match):
    _edit(copy / name, old, new)
    with pytest.raises(ValueError, match=match):
        negation_data_from_folder(copy)


def test_a_cell_beyond_any_caption_is_named(copy):
    with open(copy / "captions.csv", "a", encoding="utf-8") as file:
        file.write(f'images/000000.png,"{"a" * 200_000}",affirmative,,[],[],true\n')
    before = csv.field_size_limit(131_072)  # the module's default; other readers may have raised it for the whole process
    try:
        with pytest.raises(ValueError, match=r"captions\.csv, line \d+: field larger than"):
            negation_data_from_folder(copy)
    finally:
        csv.field_size_limit(before)


def test_missing_files_are_named(copy, tmp_path):
    (copy / "images" / "000002.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"line 3: the image .*000002\.png is missing"):
        read_scenes(copy)
    with pytest.raises(FileNotFoundError, match=r"nowhere: no such folder"):
        read_scenes(tmp_path / "nowhere")
    (copy / "captions.csv").unlink()
    with pytest.raises(FileNotFoundError):
        negation_data_from_folder(copy)


def test_byte_order_mark_crlf_and_extra_columns_are_let_through(copy):
    plain = negation_data_from_folder(copy)
    path = copy / "captions.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    edited = [lines[0] + ",note", *(line + ",x" for line in lines[1:])]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(edited).encode() + b"\r\n")
    assert negation_data_from_folder(copy).captions == plain.captions
