"""``clipmend index`` from the outside, on a real (tiny, random) CLIP checkpoint."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import clipmend
from backbones.tiny import clip_model, clip_processor, clip_tokenizer, saved
from clipmend.cli.app import app
from clipmend.search import ImageIndex
from data.zoo import make_zoo
from search.fakes import colour_folder

runner = CliRunner()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = clip_tokenizer()
    return saved(tmp_path_factory.mktemp("tiny clip"), clip_model(tokenizer), tokenizer, clip_processor())


def test_makes_and_updates_an_index(checkpoint: str, tmp_path: Path) -> None:
    zoo = make_zoo(tmp_path / "a zoo")
    command = ["index", checkpoint, str(tmp_path / "a zoo"), "-o", str(tmp_path / "index"), "--batch-size", "5", "--device", "cpu"]
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    good = sum(animal.size is not None for animal in zoo.values())
    contents = len({animal.path.read_bytes() for animal in zoo.values() if animal.size is not None})
    assert contents < good  # copies are embedded once
    assert f"{good} images ({contents} embedded, {good} added; {len(zoo) - good} skipped)" in first.output
    assert "skipped bomb.png: has 60000 x 60000 = 3,600,000,000 pixels, over the limit" in first.output
    assert "... and " in first.output
    index = ImageIndex.open(tmp_path / "index", verify=True)
    encoder = clipmend.load(checkpoint)
    index.check(encoder)
    assert index.backbone == checkpoint
    assert np.allclose(index.embeddings(), encoder.encode_images(index.paths).numpy(), atol=1e-5)
    assert f"those skipped are listed in {tmp_path / 'index' / 'skipped.json'}" in first.output
    again = runner.invoke(app, command)
    assert again.exit_code == 0
    assert f"({good} unchanged; {len(zoo) - good} skipped)" in again.output
    assert "skipped.json" in again.output
    assert "embedded," not in again.output
    assert "skipped bomb.png" not in again.output  # told before
    (tmp_path / "a zoo" / "another broken one.jpg").write_bytes(b"no")
    third = runner.invoke(app, command)
    assert f"{len(zoo) - good + 1} skipped" in third.output
    assert third.output.count("  skipped ") == 1
    assert "skipped another broken one.jpg" in third.output


def test_half_and_max_pixels(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 4)
    out = str(tmp_path / "index")
    result = runner.invoke(app, ["index", checkpoint, str(tmp_path / "photos"), "-o", out, "--half", "--max-pixels", "29"])
    assert isinstance(result.exception, ValueError)  # 6 x 5 = 30 pixels each
    assert "none of the 4 images under" in str(result.exception)
    assert "over the limit of 29" in str(result.exception)
    result = runner.invoke(app, ["index", checkpoint, str(tmp_path / "photos"), "-o", out, "--half", "--max-pixels", "0"])
    assert result.exit_code == 0, result.output
    index = ImageIndex.open(out)
    assert (len(index), index.dtype) == (4, "float16")


def test_mistakes_are_one_line(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    colour_folder(tmp_path / "photos", 2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").touch()
    cases = [
        ([checkpoint, str(tmp_path / "nowhere"), "-o", str(tmp_path / "i")], "there is no folder"),
        ([checkpoint, str(tmp_path / "full" / "x.txt"), "-o", str(tmp_path / "i")], "is a file, not a folder"),
        ([checkpoint, str(tmp_path / "empty"), "-o", str(tmp_path / "i")], "no image under"),
        ([checkpoint, str(tmp_path / "photos"), "-o", str(tmp_path / "full")], "not an image index and not empty"),
    ]
    for arguments, message in cases:
        monkeypatch.setattr("sys.argv", ["clipmend", "index", *arguments])
        with pytest.raises(SystemExit) as stop:
            clipmend.cli.main()
        assert stop.value.code == 1
        error = " ".join(capsys.readouterr().err.split())
        assert "error: " in error
        assert message in error
        assert "Traceback" not in error
    assert not (tmp_path / "i").exists()


def test_help_ends_with_an_example() -> None:
    for command in ("index", "search", "encode"):
        text = runner.invoke(app, [command, "--help"]).output
        assert "Example:" in text
        assert f"clipmend {command} " in text.split("Example:")[1]


def test_nothing_that_can_be_read_is_an_error_and_leaves_nothing(checkpoint: str, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_bytes(b"no")
    (photos / "b.png").touch()
    out = tmp_path / "new" / "deep" / "index"
    result = runner.invoke(app, ["index", checkpoint, str(photos), "-o", str(out)])
    assert isinstance(result.exception, ValueError)
    assert "none of the 2 images under" in str(result.exception)
    assert "the first: a.jpg is not an image" in str(result.exception)
    assert not (tmp_path / "new").exists()


def test_an_index_outlives_a_folder_that_went_bad(checkpoint: str, tmp_path: Path) -> None:
    colours = colour_folder(tmp_path / "photos", 3)
    out = tmp_path / "index"
    assert runner.invoke(app, ["index", checkpoint, str(tmp_path / "photos"), "-o", str(out)]).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for name in colours:
        (tmp_path / "photos" / str(name)).write_bytes(b"now broken")
    result = runner.invoke(app, ["index", checkpoint, str(tmp_path / "photos"), "-o", str(out)])
    assert "none of the 3 images" in str(result.exception)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert len(ImageIndex.open(out, verify=True)) == 3


def test_several_folders_columns_verify_and_the_graph(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 4)
    colour_folder(tmp_path / "scans", 4, seed=2)
    (tmp_path / "labels.csv").write_text("path,label\nphotos/a/000.png,cat\n")
    out = str(tmp_path / "index")
    command = ["index", checkpoint, str(tmp_path / "photos"), str(tmp_path / "scans"), "-o", out]
    result = runner.invoke(app, [*command, "--columns", str(tmp_path / "labels.csv"), "--approximate"])
    assert result.exit_code == 0, result.output
    assert "8 images" in result.output
    assert "1 of 1 rows name an image; label: text" in result.output
    assert (tmp_path / "index" / "nearest.json").is_file()
    with ImageIndex.open(out) as index:
        assert list(index.roots) == ["photos", "scans"]
        assert index.fields["label"] == "text"
    again = runner.invoke(app, ["index", checkpoint, "-o", out, "--exact", "--verify"])  # its own folders
    assert again.exit_code == 0, again.output
    assert "8 unchanged" in again.output
    assert not (tmp_path / "index" / "nearest.json").exists()
    shard = next((tmp_path / "index").glob("*.npy"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(bytes(data))
    bad = runner.invoke(app, ["index", checkpoint, "-o", out, "--verify"])
    assert "not what was written" in str(bad.exception)


def test_without_a_folder_there_must_be_an_index(tmp_path: Path) -> None:
    result = runner.invoke(app, ["index", "scenes", "-o", str(tmp_path / "index")])
    assert "no image index at" in str(result.exception)
    missing = runner.invoke(
        app, ["index", "scenes", str(tmp_path), "-o", str(tmp_path / "i"), "--columns", str(tmp_path / "x.csv")]
    )
    assert "x.csv: no such file" in str(missing.exception)


def test_a_run_with_nothing_to_embed_loads_no_model(checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos = tmp_path / "photos"
    colour_folder(photos, 4)
    out = str(tmp_path / "index")
    command = ["index", checkpoint, str(photos), "-o", out]
    assert runner.invoke(app, command).exit_code == 0
    loaded: list[str] = []

    def refuse(model: str, device: str | None) -> None:
        loaded.append(model)
        raise OSError(f"loaded {model}")

    monkeypatch.setattr("clipmend.cli.index.load_encoder", refuse)
    first, second = sorted(photos.rglob("*.png"))[:2]
    first.rename(photos / "moved.png")
    second.unlink()
    (tmp_path / "labels.csv").write_text("path,label\nmoved.png,cat\n")
    result = runner.invoke(app, [*command, "--columns", str(tmp_path / "labels.csv")])
    assert result.exit_code == 0, result.output
    assert "(1 moved, 1 removed, 2 unchanged)" in result.output
    assert "1 of 1 rows name an image" in result.output
    assert loaded == []
    other = runner.invoke(app, ["index", "another", str(photos), "-o", out])  # compared although nothing is to be embedded
    assert "loaded another" in str(other.exception)
    colour_folder(photos / "more", 2, seed=9)
    new = runner.invoke(app, command)
    assert f"loaded {checkpoint}" in str(new.exception)
    assert loaded == ["another", checkpoint]
    with ImageIndex.open(out, verify=True) as index:
        assert len(index) == 3


def test_a_checkpoint_that_was_replaced_is_found_before_it_embeds(checkpoint: str, tmp_path: Path) -> None:
    import shutil

    import torch

    model = tmp_path / "model"
    shutil.copytree(checkpoint, model)
    colour_folder(tmp_path / "photos", 3)
    command = ["index", str(model), str(tmp_path / "photos"), "-o", str(tmp_path / "index")]
    assert runner.invoke(app, command).exit_code == 0
    torch.manual_seed(99)
    tokenizer = clip_tokenizer()
    other = clip_model(tokenizer)
    with torch.no_grad():
        other.visual_projection.weight.mul_(2).add_(0.01)
    other.save_pretrained(model)
    assert "3 unchanged" in runner.invoke(app, command).output  # its vectors are as good as they were
    colour_folder(tmp_path / "photos" / "more", 2, seed=5)
    result = runner.invoke(app, command)
    assert "their vectors cannot be compared" in str(result.exception)
    assert len(ImageIndex.open(tmp_path / "index", verify=True)) == 3


def test_files_that_are_no_images_are_counted_by_ending(checkpoint: str, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    colour_folder(photos, 2)
    for name in ("raw.cr2", "RAW2.CR2", "a/clip.mp4", "x.svg", "picture", ".hidden.txt", ".cache/y.txt"):
        (photos / name).parent.mkdir(exist_ok=True)
        (photos / name).touch()
    command = ["index", checkpoint, str(photos), "-o", str(photos / "the.index")]
    for _ in range(2):  # also where the index itself lies among them
        result = runner.invoke(app, command)
        assert "  5 other files passed over: .cr2 2, no ending 1, .mp4 1, .svg 1\n" in result.output
    (tmp_path / "films").mkdir()
    (tmp_path / "films" / "x.mp4").touch()
    nothing = runner.invoke(app, ["index", checkpoint, str(tmp_path / "films"), "-o", str(tmp_path / "no.index")])
    assert "1 other file passed over: .mp4 1" in str(nothing.exception)


def test_a_table_is_checked_before_any_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    colour_folder(tmp_path / "photos", 2)

    def refuse(model: str, device: str | None) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("clipmend.cli.index.load_encoder", refuse)
    table = tmp_path / "labels.csv"
    cases = [
        ("file,label\na/000.png,cat\n", [], "no column 'path' to name the image; it has file, label. Say which column does: --key"),
        ("path;label\na/000.png;cat\n", [], "separated by something else"),
        ("", [], "the file is empty"),
        ("path,label\na/000.png,cat\nb\n", [], "line 3: 1 fields where the header names 2"),
        ("path,width\na/000.png,3\n", [], "a field 'width' already"),
        ("path,n\na/000.png,x\n", ["--type", "n:number"], "n is 'x', which is no number"),
        ("path,n\na/000.png,x\n", ["--type", "n"], "write COLUMN:TYPE"),
        ("path,n\na/000.png,x\n", ["--type", "n:colour"], "write COLUMN:TYPE"),
    ]
    command = ["index", "scenes", str(tmp_path / "photos"), "-o", str(tmp_path / "index")]
    for text, options, message in cases:
        table.write_text(text)
        result = runner.invoke(app, [*command, "--columns", str(table), *options])
        assert isinstance(result.exception, ValueError), (text, result.exception)
        assert message in str(result.exception)
    alone = runner.invoke(app, [*command, "--type", "n:text"])
    assert "needs --columns" in str(alone.exception)
    assert not (tmp_path / "index").exists()


def test_types_of_columns_are_told_and_can_be_stated(checkpoint: str, tmp_path: Path) -> None:
    colour_folder(tmp_path / "photos", 2)
    (tmp_path / "labels.csv").write_text("path,taken,a:b\na/000.png,2024-05-01,2024-05-01\n")
    command = [
        "index",
        checkpoint,
        str(tmp_path / "photos"),
        "-o",
        str(tmp_path / "index"),
        "--columns",
        str(tmp_path / "labels.csv"),
    ]
    result = runner.invoke(app, [*command, "--type", "a:b:text"])
    assert result.exit_code == 0, result.output
    assert "1 of 1 rows name an image; taken: time, a:b: text" in result.output
