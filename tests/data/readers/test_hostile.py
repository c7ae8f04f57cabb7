"""Files made to break a reader: each bad row is named or counted, nothing is run, and memory stays small."""

from __future__ import annotations

import gzip
import json
import os
import tarfile
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data.preflight import preflight
from clipmend.data.readers import Source, read
from clipmend.data.readers.voc import read_voc
from data.readers.made import coco, encoded, picture, tar, voc, write

NUMBER = "1" * 5000  # more digits than Python reads
RUN = CliRunner()


def looked_through(source: Source) -> tuple[int, list[str]]:
    """Records, and every complaint; each must name a file."""
    count = sum(1 for _ in source)
    complaints = source.log.problems + source.log.empties
    assert len(complaints) == source.log.skipped
    return count, complaints


def one_bad_row(path: Path, message: str, good: int = 1, **options: Any) -> None:
    """The bad row is counted by file and row, the others are read; without ``skip`` it is the error."""
    count, complaints = looked_through(read(path, on_error="skip", **options))
    assert (count, len(complaints)) == (good, 1), complaints
    assert path.name in complaints[0]
    assert message in complaints[0]
    with pytest.raises(ValueError, match=path.name):
        list(read(path, **options))


# ---- tables ---------------------------------------------------------------------------------------------------------------------


def test_a_field_longer_than_the_csv_modules_limit(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", f"image,caption\na.jpg,{'x' * 200_000}\nb.jpg,cat\n")
    assert [len(record.captions[0]) for record in read(path)] == [200_000, 3]


def test_a_table_that_ends_in_a_broken_quote_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'image,caption\n"a.jpg,cat\n')
    count, complaints = looked_through(read(path, on_error="skip"))
    assert count == 0
    assert "broken table" in complaints[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"image":"a","caption":"x","n":' + NUMBER + "}", "not JSON"),
        ('{"image":"a","caption":' + "[" * 100_000 + "}", "not JSON"),
        ('{"image":"a","caption":"\\ud800"}', "no valid Unicode"),
        ('{"image":"\\ud800.jpg","caption":"x"}', "which no file can be called"),
        ('{"image":"a\\u0000.jpg","caption":"x"}', "which no file can be called"),
        ('{"image":{"bytes":"abc"},"caption":"x"}', "has bytes that are 'abc'"),
        ('{"image":{"bytes":100000000000000},"caption":"x"}', "has bytes that are 100000000000000"),
        ('{"image":{"bytes":[1,999]},"caption":"x"}', "has bytes that are [1, 999]"),
        ('{"image":{"path":[5]},"caption":"x"}', "neither a path nor"),
    ],
    ids=["digits", "deep", "caption", "name", "nul", "text", "number", "list", "path"],
)
def test_json_lines(tmp_path: Path, line: str, message: str) -> None:
    one_bad_row(write(tmp_path / "t.jsonl", line + '\n{"image":"b.jpg","caption":"cat"}\n'), message)


def test_a_line_that_is_not_utf_8_costs_that_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"image":"a","caption":"x"}\n{"image":"b","caption":"\xff"}\n{"image":"c","caption":"y"}\n')
    one_bad_row(path, "line 2: not UTF-8", good=2)


@pytest.mark.parametrize(
    "literal",
    [
        "__import__('os').mkdir('{}')",
        "[__import__('os').mkdir('{}')]",
        "['a'] * 1000000000",
        "9**9**9",
        "[" * 5000 + "]" * 5000,
        "-" * 100_000 + "1",
        "f'{{1}}'",
        "['\\ud800']",
    ],
    ids=["call", "call in a list", "repeat", "power", "deep", "signs", "f-string", "surrogate"],
)
def test_lists_are_data(tmp_path: Path, literal: str) -> None:
    text = literal.replace("{}", str(tmp_path / "was run")).replace('"', '""')
    path = write(tmp_path / "t.csv", f'filepath,captions\na.jpg,"{text}"\nb.jpg,"[\'cat\']"\n')
    one_bad_row(path, "line 2: captions")
    assert not (tmp_path / "was run").exists()


def test_a_backslash_in_a_list_is_no_warning(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "filepath,captions\na.jpg,\"['a \\d sign']\"\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [record.captions for record in read(path)] == [("a \\d sign",)]


@pytest.mark.parametrize("name", ["a" * 5000 + ".jpg", "a/" * 5000 + "b.jpg", "x" * 300])
def test_names_that_no_file_can_have_are_missing_images(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "t.csv", f"image,caption\n{name},cat\nb.jpg,dog\n")
    report = preflight(read(path, image_root=tmp_path), workers=1)
    assert report.findings["images_missing"].count == 2


def test_parquet(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    offsets, characters = pa.py_buffer(b"\0\0\0\0\2\0\0\0\5\0\0\0"), pa.py_buffer(b"\xff\xfecat")
    captions = pa.Array.from_buffers(pa.string(), 2, [None, offsets, characters])
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"image": ["a", "b"], "caption": captions}), path)
    one_bad_row(path, "row 1: cannot be read")
    parquet.write_table(pa.table({"image": [{"bytes": "str", "path": "p"}], "caption": ["x"]}), path)
    one_bad_row(path, "has bytes that are 'str'", good=0)
    whole = path.read_bytes()
    for cut in (0, 10, len(whole) - 50):
        path.write_bytes(whole[:cut])
        one_bad_row(path, "broken Parquet", good=0)


# ---- COCO and drawn scenes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["id", "info"])
def test_a_number_of_thousands_of_digits(tmp_path: Path, where: str) -> None:
    image = '{"id":' + (NUMBER if where == "id" else "1") + ',"file_name":"a.jpg"}'
    info = NUMBER if where == "info" else "1"
    path = write(tmp_path / "captions_x.json", f'{{"info":{info},"images":[{image}],"annotations":[]}}')
    with pytest.raises(ValueError, match=r"captions_x\.json: character \d+: .* cannot be read"):
        list(read(path, on_error="skip"))


def test_coco_texts_that_are_none(tmp_path: Path) -> None:
    content = {
        "images": [{"id": 1, "file_name": "\ud800.jpg"}, {"id": 2, "file_name": "a\0.jpg"}, {"id": 3, "file_name": "b.jpg"}],
        "annotations": [{"image_id": 3, "caption": "\udfff"}, {"image_id": 3, "caption": "cat"}],
    }
    source = read(write(tmp_path / "captions_x.json", json.dumps(content)), on_error="skip")
    assert [(record.image, record.captions) for record in source] == [("b.jpg", ("cat",))]
    assert source.log.skipped == 3


def test_drawn_scenes_with_a_broken_table_of_captions(tmp_path: Path) -> None:
    from clipmend.data.scenes import make_scenes

    scenes = make_scenes(3, 1, "test")
    lines = [json.dumps(scene.to_json()) for scene in scenes]
    odd = json.dumps({**scenes[0].to_json(), "image": 5})
    write(tmp_path / "scenes.jsonl", "\n".join([odd, *lines]))
    rows = [f"{scenes[0].name},\"['cat']\"", f'{scenes[1].name},"{{1}}"', f"{scenes[2].name},\"['dog']\""]
    write(tmp_path / "retrieval.csv", "filepath,captions\n" + "\n".join(rows) + "\n")
    count, complaints = looked_through(read(tmp_path, on_error="skip"))
    assert count == 3
    assert [name for name in ("retrieval.csv: line 3", "image is 5") if any(name in text for text in complaints)] == [
        "retrieval.csv: line 3",
        "image is 5",
    ]


# ---- VOC ------------------------------------------------------------------------------------------------------------------------

BOMB = "<!DOCTYPE a [<!ENTITY a 'cat'>]><annotation><object><name>&a;</name></object></annotation>"


@pytest.mark.parametrize(
    "content",
    [
        BOMB.encode(),
        f"<?xml version='1.0' encoding='utf-16'?>{BOMB}".encode("utf-16"),
        BOMB.replace("'cat'", "SYSTEM 'file:///etc/hostname'").encode("utf-16"),
        BOMB.replace("[<!ENTITY a 'cat'>]", "SYSTEM 'http://127.0.0.1/x.dtd'").encode(),
    ],
    ids=["utf-8", "utf-16", "external", "external dtd"],
)
def test_document_types_are_refused_in_any_encoding(tmp_path: Path, content: bytes) -> None:
    root = voc(tmp_path) / "VOCdevkit" / "VOC2007" / "Annotations"
    name = min(root.glob("*.xml"))
    name.write_bytes(content)
    count, complaints = looked_through(read(tmp_path, reader="voc", on_error="skip"))
    assert count > 0
    assert complaints == [f"{name}: broken XML: it has a document type: no annotation of VOC"]


def test_nesting_and_size_are_bounded(tmp_path: Path) -> None:
    root = voc(tmp_path) / "VOCdevkit" / "VOC2007" / "Annotations"
    first, second = sorted(root.glob("*.xml"))[:2]
    first.write_text("<annotation>" + "<a>" * 1000 + "</a>" * 1000 + "</annotation>")
    second.write_bytes(b"<annotation>" + b" " * 10_000_001)
    complaints = looked_through(read(tmp_path, reader="voc", on_error="skip"))[1]
    assert "nested over 100 deep" in complaints[0]
    assert "over 10,000,000 bytes" in complaints[1]


def test_lists_of_ids(tmp_path: Path) -> None:
    listing = voc(tmp_path) / "VOCdevkit" / "VOC2007" / "ImageSets" / "Main" / "test.txt"
    good = listing.read_bytes().split()[0]
    listing.write_bytes(b"\xff\xfe\n../../../etc/passwd\n0\x00 \n" + b"0" * 400 + b"\n" + good + b"\n")
    count, complaints = looked_through(read(tmp_path, reader="voc", split="test", on_error="skip"))
    assert count == 1
    assert [f"line {number}:" in text for number, text in enumerate(complaints, 1)] == [True] * 4
    with pytest.raises(ValueError, match=r"classes is the text 'cat'; give a list"):
        read_voc(tmp_path, classes="cat")


# ---- WebDataset -----------------------------------------------------------------------------------------------------------------


def test_paths_out_of_a_shard_are_only_names(tmp_path: Path) -> None:
    outside = tmp_path / "evil.jpg"
    names = {"../evil.jpg": encoded(), "../evil.txt": b"x", f"{outside}": encoded(), f"{outside.with_suffix('.txt')}": b"x"}
    path = tar(tmp_path / "in" / "a.tar", names)
    assert sum(1 for _ in read(path)) == 2
    preflight(read(path))
    assert not outside.exists()


def test_links_and_devices_are_no_members(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(f"{number}.jpg")
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
            archive.addfile(tarfile.TarInfo(f"{number}.txt"))
    count, complaints = looked_through(read(path, on_error="skip"))
    assert count == 0
    assert all("has no image" in text for text in complaints)


def test_a_header_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 2_000_000_000
    with gzip.open(path, "wb", 1) as file:
        file.write(header.tobuf(tarfile.USTAR_FORMAT))
        file.write(bytes(50_000_000))  # enough to tell by the memory whether it is read
    tracemalloc.start()
    complaints = looked_through(read(path, on_error="skip"))[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(complaints) == 1
    assert peak < 20_000_000


@pytest.mark.parametrize("pattern", ["{0..99999999999}.tar", "{1..1000}{1..1000}{1..1000}.tar"])
def test_patterns_that_mean_too_many_shards(pattern: str) -> None:
    with pytest.raises(ValueError, match="over 1,000,000 shards"):
        read(pattern, reader="webdataset")


def test_empty_and_broken_shards_are_said_in_one_line(tmp_path: Path) -> None:
    for content, message in ((b"", r"the file is empty"), (b"x" * 5000, r"could not be opened")):
        path = tmp_path / "a.tar"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message) as error:
            list(read(path))
        assert "\n" not in str(error.value)


def test_a_number_of_thousands_of_digits_in_a_shard(tmp_path: Path) -> None:
    members = {"1.jpg": encoded(), "1.json": b'{"caption":' + NUMBER.encode() + b"}", "2.jpg": encoded(), "2.json": b"\xff"}
    complaints = looked_through(read(tar(tmp_path / "a.tar", members), on_error="skip"))[1]
    assert ".json is not JSON: Exceeds" in complaints[0]
    assert ".json is not UTF-8" in complaints[1]


# ---- options ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reader", "option", "message"),
    [
        ("table", "on_error=raise", "no option of a reader"),
        ("table", "source=x", "no option of a reader"),
        ("table", "reader=coco", "READER:PATH"),
        ("table", "delimiter=ab", "delimiter is 'ab'; it must be one character"),
        ("table", "caption_lists=often", "table: caption_lists is 'often'; it must be true or false"),
        ("coco", "captions=1", "1: no such file"),
        ("voc", "difficult=1", "difficult is '1'; it must be"),
        ("voc", "classes=cat,,dog", "names with commas between"),
        ("folder", "caption_suffix=txt", "caption_suffix is 'txt'"),
        ("folder", "captions=1", "captions is '1'; it must be"),
        ("webdataset", "max_member=many", "webdataset: max_member is 'many'; it must be a whole number"),
    ],
)
def test_options_of_other_types(tmp_path: Path, reader: str, option: str, message: str) -> None:
    sources = {
        "table": lambda: write(tmp_path / "t.csv", "image,caption\na.jpg,cat\n"),
        "coco": lambda: coco(tmp_path / "coco"),
        "voc": lambda: voc(tmp_path / "voc"),
        "folder": lambda: picture(tmp_path / "folder" / "a.png").parent,
        "webdataset": lambda: tar(tmp_path / "a.tar", {"1.jpg": encoded(), "1.txt": b"x"}),
    }
    result = RUN.invoke(app, ["data", "check", f"{reader}:{sources[reader]()}", "--option", option])
    assert isinstance(result.exception, (ValueError, OSError)), result.exception
    assert message in str(result.exception)


def test_options_that_look_like_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "5;7\na.jpg;cat\n")
    options = ["--option", "image_column=5", "--option", "caption_column=7", "--option", "delimiter=;"]
    result = RUN.invoke(app, ["data", "check", str(path), *options])
    assert result.exit_code == 0, result.exception
    classes = read(voc(tmp_path / "voc"), reader="voc", classes="cat, dog", on_error="skip").vocabulary
    assert classes == {"cat", "dog"}


@pytest.mark.parametrize("source", ["", " ", "coco:", "table: "])
def test_an_empty_path(source: str) -> None:
    with pytest.raises(ValueError, match="empty"):
        read(source)


# ---- names in reports ------------------------------------------------------------------------------------------------------------


def test_a_table_called_like_markup_or_in_bytes(tmp_path: Path) -> None:
    for name in ("[red]a.csv", os.fsdecode(b"\xff.csv")):
        path = tmp_path / name
        try:
            path.write_text("image,caption\n[x].jpg,[y]\n")
        except OSError:  # a file system of Unicode names alone
            continue
        result = RUN.invoke(app, ["data", "check", str(path)])
        assert result.exit_code == 0, result.exception
        assert ("[red]a: 1 rows" if name.startswith("[") else "\\xff: 1 rows") in result.output
