"""Hugging Face data sets, made here and saved to folders: nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from clipmend.data.readers import read
from data.readers.made import encoded, picture, write

datasets = pytest.importorskip("datasets", reason='the package datasets is not installed (pip install "clipmend[datasets]")')


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def images(folder: Path) -> Any:
    """A data set with an Image feature: one sound, one damaged, one list of captions."""
    rows = {
        "image": [
            {"bytes": encoded(), "path": None},
            {"bytes": encoded()[:100], "path": "cut.jpg"},
            {"bytes": None, "path": str(picture(folder / "file.png"))},
        ],
        "text": ["a cat", "a dog", "a mat"],
    }
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    return datasets.Dataset.from_dict(rows, features=features)


def test_an_object_its_stream_and_its_folder_agree(tmp_path: Path) -> None:
    data = images(tmp_path)
    data.save_to_disk(tmp_path / "saved")
    for source in (data, data.to_iterable_dataset(), tmp_path / "saved", f"hf:{tmp_path / 'saved'}"):
        first, cut, third = read(source)
        assert [r.captions[0] for r in (first, cut, third)] == ["a cat", "a dog", "a mat"]
        assert first.open().size == third.open().size == (16, 12)
        with pytest.raises(ValueError, match=r"row 1: cut\.jpg: is truncated"):
            cut.open()


def test_splits(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": images(tmp_path), "test": images(tmp_path).select([0])})
    both.save_to_disk(tmp_path / "saved")
    assert len(list(read(tmp_path / "saved", split="test"))) == 1
    with pytest.raises(ValueError, match="several splits; choose one of train, test"):
        read(tmp_path / "saved")
    with pytest.raises(ValueError, match="no split 'val'; choose one of train, test"):
        read(both, split="val")
    assert len(list(read(datasets.DatasetDict({"train": both["train"]})))) == 3


def test_columns_of_paths_and_lists(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"file": ["a.png", "b.png"], "said": [["one", "two"], ["three"]], "x": [1, 2]})
    records = list(read(data, image_column="file", caption_column="said"))
    assert [(r.image, r.captions) for r in records] == [("a.png", ("one", "two")), ("b.png", ("three",))]
    with pytest.raises(ValueError, match=r"choose one of file, said, x as image_column"):
        read(data)


def test_a_folder_of_data_files_is_streamed(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.csv", "image,caption\na.jpg,A cat\n")
    (record,) = read(f"hf:{tmp_path / 'set'}", split="train")
    assert (record.image, record.captions) == ("a.jpg", ("A cat",))


def test_bad_rows(tmp_path: Path) -> None:
    data = datasets.Dataset.from_dict({"image": ["a.jpg", None, "c.jpg"], "caption": ["x", "y", None]})
    with pytest.raises(ValueError, match="row 1: image is missing"):
        list(read(data))
    source = read(data, on_error="skip")
    assert [r.captions for r in source] == [("x",)]
    assert (source.log.skipped, source.log.empty) == (2, 1)
    numbers = datasets.Dataset.from_dict({"image": ["a.jpg"], "caption": [3]})
    with pytest.raises(ValueError, match="row 0: caption is 3, not text"):
        list(read(numbers))
    with pytest.raises(ValueError, match="holds no rows"):
        list(read(data.select([])))
    with pytest.raises(ValueError, match="a data set is expected"):
        read([1, 2])


def _without_arrow(folder: Path) -> None:
    next(folder.glob("*.arrow")).unlink()


def _cut_arrow(folder: Path) -> None:
    arrow = next(folder.glob("*.arrow"))
    arrow.write_bytes(arrow.read_bytes()[:100])


BROKEN = {
    "no rows' file": (_without_arrow, FileNotFoundError, "arrow"),
    "a cut rows' file": (_cut_arrow, ValueError, "damaged"),
    "a cut state": (lambda folder: write(folder / "state.json", "{"), ValueError, "damaged"),
    "no state": (lambda folder: (folder / "state.json").unlink(), FileNotFoundError, "neither a `Dataset` directory"),
    "a description that is none": (lambda folder: write(folder / "dataset_info.json", "nope"), ValueError, "damaged"),
    "nothing": (lambda folder: [path.unlink() for path in folder.iterdir()], OSError, "doesn't contain any data files|damaged"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_named(tmp_path: Path, case: str) -> None:
    folder = tmp_path / "saved"
    datasets.Dataset.from_dict({"image": ["a.jpg", "b.jpg"], "caption": ["x", "y"]}).save_to_disk(folder)
    assert len(list(read(f"hf:{folder}"))) == 2
    breaks, kind, message = BROKEN[case]
    breaks(folder)
    with pytest.raises(kind, match=rf"^{folder}: .*({message})"):
        list(read(f"hf:{folder}"))


def test_a_broken_folder_of_data_files_is_named(tmp_path: Path) -> None:
    write(tmp_path / "set" / "train.parquet", "no parquet")
    with pytest.raises(ValueError, match=r"set: (no data set|cannot be read|broken)"):
        list(read(f"hf:{tmp_path / 'set'}", split="train"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r'pip install "clipmend\[datasets\]"'):
        read("hf:some/name")
