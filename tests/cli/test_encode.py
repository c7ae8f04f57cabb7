"""``clipmend encode`` from the outside, and the files it reads and writes."""

from __future__ import annotations

import builtins
import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import clipmend
from backbones.tiny import clip_model, clip_processor, clip_tokenizer, saved
from clipmend.backbones import DualEncoder
from clipmend.cli.app import app
from clipmend.negation import PeakPatch
from clipmend.search import store
from clipmend.search.vectors import check_output, list_images, read_rows, write_vectors
from search.fakes import colour_folder

runner = CliRunner()
TEXTS = ["a dog", "a street with no cars", "no cat 🐈", "NA"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = clip_tokenizer()
    return saved(tmp_path_factory.mktemp("tiny clip"), clip_model(tokenizer), tokenizer, clip_processor())


@pytest.fixture(scope="module")
def encoder(checkpoint: str) -> DualEncoder:
    return clipmend.load(checkpoint)


def invoke(*arguments: object, **options: object) -> str:
    result = runner.invoke(app, ["encode", *map(str, arguments)], **options)  # type: ignore[arg-type]
    assert result.exit_code == 0, result.output
    return result.output


def ids_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_to_npy_with_ids(checkpoint: str, encoder: DualEncoder, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_bytes("\ufeff".encode() + "\r\n".join(TEXTS).encode() + b"\r\n\r\n")
    output = invoke(checkpoint, "texts", tmp_path / "q.txt", "-o", tmp_path / "deep" / "v.npy")
    vectors = np.load(tmp_path / "deep" / "v.npy")
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, encoder.encode_texts(TEXTS).numpy(), atol=1e-6)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert ids_of(tmp_path / "deep" / "v.ids.jsonl") == [{"row": i, "id": str(i), "text": t} for i, t in enumerate(TEXTS)]
    assert "4 vectors of 24" in output
    assert sorted(p.name for p in (tmp_path / "deep").iterdir()) == ["v.ids.jsonl", "v.npy"]


def test_stdin_and_no_normalize(checkpoint: str, encoder: DualEncoder, tmp_path: Path) -> None:
    invoke(checkpoint, "texts", "-", "-o", tmp_path / "v.npy", "--no-normalize", input="\n".join(TEXTS))
    vectors = np.load(tmp_path / "v.npy")
    assert np.allclose(vectors, encoder.encode_texts(TEXTS, normalize=False).numpy(), atol=1e-5)
    assert not np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-2)


def test_patch_changes_texts(checkpoint: str, encoder: DualEncoder, tmp_path: Path) -> None:
    patch = PeakPatch.untrained(encoder)
    with torch.no_grad():
        patch.ecn.log_alpha += 6
    patch.save_pretrained(tmp_path / "patch")
    (tmp_path / "q.txt").write_text("\n".join(TEXTS))
    for name, extra in (("plain", []), ("mended", ["--patch", tmp_path / "patch"])):
        invoke(checkpoint, "texts", tmp_path / "q.txt", "-o", tmp_path / f"texts {name}.npy", *extra)
    loaded = {p.stem: np.load(p) for p in tmp_path.glob("*.npy")}
    mended = PeakPatch.from_pretrained(tmp_path / "patch").apply(encoder)
    assert np.allclose(loaded["texts mended"], mended.encode_texts(TEXTS).numpy(), atol=1e-5)
    assert not np.allclose(loaded["texts mended"], loaded["texts plain"], atol=1e-2)


def test_csv_to_parquet(checkpoint: str, encoder: DualEncoder, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = ["key,caption", *(f'k{i},"{text}"' for i, text in enumerate(TEXTS))]
    (tmp_path / "c.csv").write_text("\n".join(rows))
    invoke(checkpoint, "texts", tmp_path / "c.csv", "--column", "caption", "--id-column", "key", "-o", tmp_path / "v.parquet")
    table = parquet.read_table(tmp_path / "v.parquet")
    assert table.column_names == ["id", "text", "vector"]
    assert str(table.schema.field("vector").type).startswith("fixed_size_list<")
    assert str(table.schema.field("vector").type).endswith("[24]")
    assert "float" in str(table.schema.field("vector").type)
    assert table["id"].to_pylist() == ["k0", "k1", "k2", "k3"]
    assert table["text"].to_pylist() == TEXTS
    assert np.allclose(table["vector"].to_pylist(), encoder.encode_texts(TEXTS).numpy(), atol=1e-6)
    assert table.schema.metadata[b"model"] == checkpoint.encode()
    assert table.schema.metadata[b"normalized"] == b"true"


def test_images_of_a_folder_skip_what_cannot_be_read(checkpoint: str, encoder: DualEncoder, tmp_path: Path) -> None:
    colours = colour_folder(tmp_path / "photos", 5)
    (tmp_path / "photos" / "bad.png").write_bytes(b"no")
    output = invoke(checkpoint, "images", tmp_path / "photos", "-o", tmp_path / "v.npy", "--batch-size", 2)
    assert "1 of 6 images skipped" in " ".join(output.split())
    assert "skipped " in output
    assert "bad.png: is not an image" in " ".join(output.split())
    kept = [row["id"] for row in ids_of(tmp_path / "v.ids.jsonl")]
    assert kept == sorted(colours)
    expected = encoder.encode_images([tmp_path / "photos" / str(name) for name in kept]).numpy()
    assert np.allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)
    told = json.loads((tmp_path / "v.skipped.json").read_text())
    assert [(row["id"], "not an image" in row["reason"]) for row in told] == [("bad.png", True)]
    (tmp_path / "photos" / "bad.png").unlink()
    invoke(checkpoint, "images", tmp_path / "photos", "-o", tmp_path / "v.npy")
    assert not (tmp_path / "v.skipped.json").exists()


def test_images_of_a_list_and_one_image(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 3)
    (tmp_path / "list.txt").write_text(f"photos/b/001.png\n{tmp_path}/photos/a/000.png\n")
    invoke(checkpoint, "images", tmp_path / "list.txt", "-o", tmp_path / "v.npy")
    assert [r["id"] for r in ids_of(tmp_path / "v.ids.jsonl")] == ["photos/b/001.png", f"{tmp_path}/photos/a/000.png"]
    one = tmp_path / "photos" / "b" / "001.png"
    invoke(checkpoint, "images", one, "-o", tmp_path / "one.npy")
    assert np.allclose(np.load(tmp_path / "one.npy")[0], np.load(tmp_path / "v.npy")[0], atol=1e-6)


def test_on_long(checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("dog " * 100)
    result = runner.invoke(
        app, ["encode", checkpoint, "texts", str(tmp_path / "long.txt"), "-o", str(tmp_path / "v.npy"), "--on-long", "error"]
    )
    assert isinstance(result.exception, ValueError)
    assert not (tmp_path / "v.npy").exists()
    invoke(checkpoint, "texts", tmp_path / "long.txt", "-o", tmp_path / "v.npy", "--on-long", "truncate")
    assert np.load(tmp_path / "v.npy").shape == (1, 24)


def test_bad_input_fails_before_the_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> object:
        raise AssertionError("loaded")

    monkeypatch.setattr(clipmend, "load", never, raising=False)
    (tmp_path / "q.txt").write_text("a\n")
    for arguments, message in [
        (["texts", tmp_path / "q.txt", "-o", tmp_path / "v.csv"], ".npy or .parquet"),
        (["texts", tmp_path / "none.txt", "-o", tmp_path / "v.npy"], "no such file"),
        (["images", tmp_path / "q.txt", "-o", tmp_path], ".npy or .parquet"),
    ]:
        result = runner.invoke(app, ["encode", "m", *map(str, arguments)])
        assert isinstance(result.exception, (ValueError, OSError)), result.exception
        assert message in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["texts", "{texts}", "--strength", "2"], "--strength needs --patch"),
        (["texts", "{texts}", "--gate"], "--gate needs --patch"),
        (["texts", "{texts}", "--max-pixels", "9"], "--max-pixels is for images"),
        (["images", "{images}", "--on-long", "error"], "--on-long is for texts"),
        (["images", "{images}", "--column", "path"], "columns are read from .csv and .tsv files only"),
        (["images", "{images}/a/000.png", "--id-column", "id"], "columns are read from .csv and .tsv files only"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "texts.txt").write_text("a dog\n", encoding="utf-8")
    colour_folder(tmp_path / "photos", 1)
    filled = [argument.format(texts=tmp_path / "texts.txt", images=tmp_path / "photos") for argument in arguments]
    result = runner.invoke(app, ["encode", "scenes", *filled, "-o", str(tmp_path / "out.npy")])
    assert message in str(result.exception)


def test_vectors_that_cannot_be_written_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_vectors(tmp_path / "v.npy", np.ones((1, 2), np.float32), ["a"])
    assert list(tmp_path.iterdir()) == []


def test_none_readable_is_an_error(checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "bad.png").write_bytes(b"")
    result = runner.invoke(app, ["encode", checkpoint, "images", str(tmp_path / "photos"), "-o", str(tmp_path / "v.npy")])
    assert isinstance(result.exception, ValueError)
    assert "none of the 1 images can be read" in str(result.exception)


@pytest.mark.parametrize(
    ("name", "data", "options", "message"),
    [
        ("a.txt", b"", {}, "nothing to encode"),
        ("a.txt", b"one\n\n  \nfour\n", {}, "nothing on line 2, 3;"),
        ("a.txt", b"one\ncaf\xe9\n", {}, r"line 2 is not UTF-8 \(byte 0xe9\)"),
        ("a.txt", b"one\n", {"column": "x"}, "only"),
        ("a.csv", b"", {}, "is empty"),
        ("a.csv", b"a,b\n1,2\n", {}, r"--column \('a', 'b'\)"),
        ("a.csv", b"a,b\n1,2\n", {"column": "c"}, "no column 'c'; it has 'a', 'b'"),
        ("a.csv", b"a,a\n1,2\n", {"column": "a"}, "several columns 'a'"),
        ("a.csv", b"a,b\n1,2\n3\n", {"column": "a"}, "line 3 has 1 fields, the header 2"),
        ("a.csv", b"a,b\n1,x\n2,\n", {"column": "b"}, "nothing on line 3"),
        ("a.csv", b"a,b\n1,x\n1,y\n", {"column": "b", "id_column": "a"}, "the id '1' stands in several rows"),
    ],
)
def test_bad_texts_are_named(tmp_path: Path, name: str, data: bytes, options: dict[str, str], message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_rows(tmp_path / name, **options)  # type: ignore[arg-type]
    assert name in str(caught.value)


def test_good_texts_are_kept_to_the_letter(tmp_path: Path) -> None:
    odd = "with\u2028separator\x0b and  spaces "
    (tmp_path / "a.txt").write_text(f"{odd}\nNULL\n\n")
    assert read_rows(tmp_path / "a.txt").values == [odd, "NULL"]
    (tmp_path / "a.txt").write_text("x\n\ny")
    rows = read_rows(tmp_path / "a.txt", skip_empty=True)
    assert (rows.ids, rows.values) == (["0", "2"], ["x", "y"])
    (tmp_path / "a.tsv").write_bytes('\ufefft\tid\r\n"two\r\nlines"\t7\r\nNA\t8\r\n'.encode())
    rows = read_rows(tmp_path / "a.tsv", column="t", id_column="id")
    assert (rows.ids, rows.values) == (["7", "8"], ["two\r\nlines", "NA"])
    (tmp_path / "one.csv").write_text("caption\na\nb\n")
    assert read_rows(tmp_path / "one.csv").values == ["a", "b"]
    assert read_rows("-", column="t", stdin=io.BytesIO(b"t,u\n1,2\n")).values == ["1"]


def test_a_folder_is_no_text_file_and_an_empty_one_no_images(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="is a folder"):
        read_rows(tmp_path)
    with pytest.raises(ValueError, match="no image under"):
        list_images(tmp_path)


def test_parquet_without_pyarrow_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.split(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    check_output("v.npy")
    with pytest.raises(ImportError, match=r"clipmend\[parquet\]"):
        check_output("v.parquet")


def test_undecodable_names_fit_every_file(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    names, vectors = ["ok.png", "caf\udce9.png"], np.eye(2, dtype=np.float32)
    write_vectors(tmp_path / "v.npy", vectors, names)
    assert [row["id"] for row in ids_of(tmp_path / "v.ids.jsonl")] == names
    write_vectors(tmp_path / "v.parquet", vectors, names)
    assert parquet.read_table(tmp_path / "v.parquet")["id"].to_pylist() == ["ok.png", "caf\\xe9.png"]
    with pytest.raises(ValueError, match="do not match"):
        write_vectors(tmp_path / "v.npy", vectors, ["one"])


def test_a_patch_for_images_is_refused(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 2)
    out = tmp_path / "v.npy"
    result = runner.invoke(app, ["encode", checkpoint, "images", str(tmp_path / "photos"), "--patch", "scenes", "-o", str(out)])
    assert isinstance(result.exception, ValueError)
    assert "a patch never changes images" in str(result.exception)
    assert not out.exists()


def test_many_skipped_images_are_named_up_to_five(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 1)
    for number in range(7):
        (tmp_path / "photos" / f"bad{number}.png").write_bytes(b"no")
    output = " ".join(invoke(checkpoint, "images", tmp_path / "photos", "-o", tmp_path / "v.npy").split())
    assert "7 of 8 images skipped" in output
    assert "bad4.png: is not an image" in output
    assert "bad5.png" not in output
    assert "and 2 more" in output


def test_lists_with_a_name_too_long_and_an_open_quote(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 1)
    good = next(path.relative_to(tmp_path) for path in sorted((tmp_path / "photos").rglob("*.*")))
    (tmp_path / "list.txt").write_text(f"{good}\n{'x' * 5000}.jpg\n")
    output = " ".join(invoke(checkpoint, "images", tmp_path / "list.txt", "-o", tmp_path / "v.npy").split())
    assert "1 of 2 images skipped" in output
    (tmp_path / "open.csv").write_text('text\na dog\n"no cat\nanother\n')
    result = runner.invoke(app, ["encode", checkpoint, "texts", str(tmp_path / "open.csv"), "-o", str(tmp_path / "t.npy")])
    assert "open.csv: line 4 does not parse" in str(result.exception)
