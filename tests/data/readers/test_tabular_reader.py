"""CSV, TSV, JSON lines and Parquet with chosen columns; folders with text files."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipmend.data.readers import READERS, read
from data.readers.made import encoded, picture, write

PAIRS = [("a b.jpg", "A cat, on a mat"), ("ü/2.jpg", 'He said "no dog" 🐕'), ("3.jpg", "two\nlines")]


def save(path: Path, rows: list[tuple[Any, Any]], names: tuple[str, str] = ("filepath", "caption")) -> Path:
    """The same rows in the format of the suffix."""
    if path.suffix in (".csv", ".tsv"):
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerows([names, *rows])
    elif path.suffix == ".jsonl":
        write(path, "".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
        from pyarrow import parquet

        columns = {name: [row[k] for row in rows] for k, name in enumerate(names)}
        parquet.write_table(pyarrow.table(columns), path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format_gives_the_same_pairs(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"pairs{suffix}", PAIRS)
    assert [(r.image, r.captions) for r in read(path)] == [(image, (text,)) for image, text in PAIRS]
    other = save(tmp_path / f"other{suffix}", PAIRS, ("Pfad", "Text auf Deutsch"))
    with pytest.raises(ValueError, match="no column is called as images usually are; choose one of Pfad, Text auf Deutsch"):
        list(read(other))
    with pytest.raises(ValueError, match="column nothing is missing; there are Pfad"):
        list(read(other, image_column="nothing"))
    chosen = read(other, image_column="Pfad", caption_column="Text auf Deutsch")
    assert [r.captions for r in chosen] == [(text,) for _, text in PAIRS]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_lists_of_captions(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"pairs{suffix}", [("a.jpg", ["one", "two"]), ("b.jpg", ["three"])])
    assert [r.captions for r in read(path)] == [("one", "two"), ("three",)]


def test_lists_in_a_csv_are_opted_into(tmp_path: Path) -> None:
    rows = [("a.jpg", "['one', 'two']")]
    assert [r.captions for r in read(save(tmp_path / "a.csv", rows))] == [("['one', 'two']",)]
    assert [r.captions for r in read(save(tmp_path / "a.csv", rows), caption_lists=True)] == [("one", "two")]
    assert [r.captions for r in read(save(tmp_path / "b.csv", rows, ("image", "captions")))] == [("one", "two")]


def test_images_inside_parquet(tmp_path: Path) -> None:
    rows: list[tuple[Any, Any]] = [({"bytes": encoded(), "path": "x.jpg"}, "a"), ({"bytes": None, "path": "there.jpg"}, "b")]
    held, named = read(save(tmp_path / "a.parquet", rows, ("image", "text")))
    assert held.image == "x.jpg"
    assert held.open().size == (16, 12)
    assert (named.image, named.content) == ("there.jpg", None)
    (raw,) = read(save(tmp_path / "b.parquet", [(encoded(), "a")], ("image", "text")))
    assert raw.open().size == (16, 12)


BAD: dict[str, tuple[list[tuple[Any, Any]], str]] = {
    "a caption missing": ([("a.jpg", "x"), ("b.jpg", None)], "(line|row) 2: caption is missing"),
    "a caption NaN": ([("a.jpg", float("nan"))], "(line|row) 1: caption is missing"),
    "a caption that is a number": ([("a.jpg", 7)], "(line|row) 1: caption is 7, not text"),
    "a caption blank": ([("a.jpg", "x"), ("a.jpg", " \t")], "(line|row) 2: caption is empty"),
    "an empty list": ([("a.jpg", [])], "(line|row) 1: caption is an empty list"),
    "an image missing": ([("a.jpg", "x"), (None, "y")], "(line|row) 2: filepath is missing"),
    "an image that is a number": ([(3, "x")], "(line|row) 1: filepath is 3, neither a path"),
    "an image blank": ([(" ", "x")], "(line|row) 1: filepath is empty"),
}


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("case", BAD)
def test_bad_cells_are_named_or_skipped(tmp_path: Path, case: str, suffix: str) -> None:
    rows, message = BAD[case]
    path = save(tmp_path / f"pairs{suffix}", rows)
    with pytest.raises(ValueError, match=rf"pairs\{suffix}: {message}"):
        list(read(path))
    source = read(path, on_error="skip")
    assert len(list(source)) == len(rows) - 1
    assert source.log.skipped == 1


def test_broken_files(tmp_path: Path) -> None:
    lines = write(tmp_path / "a.jsonl", '{"image": "a", "caption": "b"}\n\n{"image": \n[1]\n{"image": "a"}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl: line 3: not JSON"):
        list(read(lines))
    source = read(lines, on_error="skip")
    assert len(list(source)) == 1
    assert source.log.skipped == 3
    assert "line 5: caption is missing; the line has image" in source.log.problems[2]
    whole = save(tmp_path / "a.parquet", PAIRS).read_bytes()
    for name, content in (("cut.parquet", whole[: len(whole) // 2]), ("text.parquet", b"not parquet"), ("empty.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: broken Parquet"):
            list(read(tmp_path / name))
    with pytest.raises(ValueError, match="holds no JSON object"):
        list(read(write(tmp_path / "b.jsonl", "\n")))
    with pytest.raises(ValueError, match="not a table that can be read"):
        read(f"table:{write(tmp_path / 'a.xlsx', 'x')}")


def test_parquet_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.parquet", PAIRS)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ImportError, match=r'pip install "clipmend\[parquet\]"'):
        read(path)


@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip).filter(bool)] * 2), min_size=1
    ),
    suffix=st.sampled_from([".csv", ".tsv", ".jsonl"]),
)
def test_any_text_survives(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], suffix: str) -> None:
    # A field of NUL alone is what the csv module of Python 3.10 refuses; a carriage return is normalised by no reader.
    rows = [(a.replace("\0", "0"), b.replace("\0", "0")) for a, b in rows]
    path = save(tmp_path_factory.mktemp("t") / f"x{suffix}", rows)
    assert [(r.image, r.captions[0]) for r in read(path)] == rows


# Choosing the reader


def test_the_registry_says_what_it_takes(tmp_path: Path) -> None:
    assert {"negbench", "cc12m-negcap", "cc12m-negmcq", "coco", "voc", "table", "folder", "webdataset", "hf"} <= set(READERS)
    path = save(tmp_path / "a.csv", PAIRS)
    with pytest.raises(ValueError, match=r"the reader table takes no split; it takes image_column"):
        read(path, split="test")
    with pytest.raises(ValueError, match="there is no reader 'tables'; choose one of"):
        read(path, reader="tables")
    with pytest.raises(FileNotFoundError, match=r"b\.csv: no such file or folder"):
        read(tmp_path / "b.csv")
    with pytest.raises(ValueError, match="no reader recognises it"):
        read(write(tmp_path / "a.docx", "x"))
    with pytest.raises(ValueError, match="on_error is 'ignore'"):
        read(path, on_error="ignore")


# Folders


def test_a_folder_with_text_files(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "deep" / "b c.PNG")
    write(tmp_path / "a.txt", "A cat.\r\n\r\n  A  mat. \r\n", "utf-8-sig")
    write(tmp_path / "deep" / "b c.txt", "Ein Hund – groß")
    write(tmp_path / "orphan.txt", "x")
    source = read(tmp_path)
    first, second = source
    assert (first.image, first.captions) == ("a.jpg", ("A cat.", "A mat."))
    assert (second.image, second.captions) == (str(Path("deep") / "b c.PNG"), ("Ein Hund – groß",))
    assert second.open(source.image_root).size == (16, 12)
    assert source.log.notes == [f"{tmp_path}: 1 .txt files belong to no image"]
    assert next(iter(read(tmp_path, captions="whole"))).captions == ("A cat. A mat.",)


def test_images_and_captions_in_two_folders(tmp_path: Path) -> None:
    picture(tmp_path / "image" / "1.jpg")
    write(tmp_path / "caption" / "1.txt", "A long caption. Of two sentences.")
    (record,) = read(tmp_path)
    assert record.captions == ("A long caption. Of two sentences.",)
    (same,) = read(tmp_path / "image", caption_root=tmp_path / "caption")
    assert same.captions == record.captions


def test_broken_folders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no images"):
        list(read(write(tmp_path / "none" / "a.txt", "x").parent))
    good = picture(tmp_path / "in" / "a.jpg").parent
    picture(good / "b.jpg")
    write(good / "b.txt", "A cat")
    with pytest.raises(FileNotFoundError, match=r"a\.jpg: its caption file .*a\.txt is not there"):
        list(read(good))
    write(good / "a.txt", " \n")
    with pytest.raises(ValueError, match=r"a\.txt: holds no caption"):
        list(read(good))
    (good / "a.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.txt: not UTF-8 text"):
        list(read(good))
    source = read(good, on_error="skip")
    assert [record.image for record in source] == ["b.jpg"]
    assert source.log.skipped == 1
    (good / "a.txt").unlink()
    (good / "a.txt").mkdir()
    with pytest.raises(OSError, match=r"a\.jpg: its caption file .*a\.txt cannot be read \(Is a directory\)"):
        list(read(good))


def test_a_folder_of_photographs_alone(tmp_path: Path) -> None:
    picture(tmp_path / "a.jpg")
    picture(tmp_path / "sub" / "b.png")
    write(tmp_path / "about.txt", "taken in May")
    source = read(tmp_path)
    assert [(record.image, record.captions) for record in source] == [("a.jpg", ()), ("sub/b.png", ())]
    assert any("no image has a .txt file: images alone" in note for note in source.log.notes)
