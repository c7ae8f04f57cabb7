"""``clipmend finetune`` and ``clipmend dense-stats``."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, CLIPModel
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data.images import ImageError
from clipmend.data.scenes.tables import write_scenes
from clipmend.dense.pairs import as_pairs, open_pairs
from dense import small_training as small

pytest.importorskip("accelerate", reason="needs the extra train")

runner = CliRunner()
FEW = ("--batch-size", 4, "--steps", 3, "--lr", 1e-3, "--device", "cpu", "--validation", 0.2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images with a text beside each; a space and an accent in the names."""
    folder = tmp_path_factory.mktemp("data") / "my photos"
    folder.mkdir()
    for k, (picture, caption) in enumerate(small.items(12)):
        picture.save(folder / f"é {k}.png")
        (folder / f"é {k}.txt").write_text(f"{caption}.\nIt is drawn in few colours.\n", encoding="utf-8")
    return folder


def invoke(command: str, *arguments: Any) -> str:
    result = runner.invoke(app, [command, *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def refused(*arguments: Any) -> str:
    result = runner.invoke(app, ["finetune", *map(str, arguments)])
    assert isinstance(result.exception, (ValueError, OSError)), result.output
    return str(result.exception)


def test_a_folder_to_an_ordinary_model(model: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = invoke(
        "finetune", model, "--data", photos, "-o", out, "--length", 60, "--set", "token_weight=0.5", "--lens-every", 1,
        "--micro-batches", 2, *FEW,
    )  # fmt: skip
    told = (
        "recipe hn-clip",
        "3 negatives a query",
        "cut at 60 tokens",
        "step 0: recall at 1",
        "lens: InfoNCE below",
        "kept the state",
    )
    for text in told:
        assert text in said, said
    assert AutoTokenizer.from_pretrained(out).model_max_length == 60
    assert CLIPModel.from_pretrained(out).config.text_config.max_position_embeddings == 60
    record = json.loads((out / "finetune.json").read_text())
    assert record["config"]["recipe"]["token_weight"] == 0.5
    assert record["data"]["name"] == "my photos"
    assert record["command"].startswith("clipmend ")
    assert {"README.md", "lens.png", "metrics.jsonl"} <= {path.name for path in out.iterdir()}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]  # nothing is left beside it


def test_a_configuration_and_its_resumption(model: str, photos: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"recipe": {"name": "plain", "gamma": 0.25}, "batch_size": 4, "steps": 2, "learning_rate": 1e-3}))
    common = ("--data", photos, "--config", config, "--device", "cpu", "--work", tmp_path / "work")
    invoke("finetune", model, "-o", tmp_path / "one", "--set", "label_smoothing=0.1", *common)
    recipe = json.loads((tmp_path / "one" / "finetune.json").read_text())["config"]["recipe"]
    assert (recipe["name"], recipe["gamma"], recipe["label_smoothing"]) == ("plain", 0.25, 0.1)
    assert (tmp_path / "work" / "checkpoint.pt").is_file()
    said = invoke("finetune", model, "-o", tmp_path / "two", "--set", "label_smoothing=0.1", *common)
    assert "step 2: recall" not in said  # it was done already
    one, two = (CLIPModel.from_pretrained(tmp_path / name).state_dict() for name in ("one", "two"))
    assert all((one[name] == two[name]).all() for name in one)
    assert "belongs to a fine-tuning" in refused(model, "-o", tmp_path / "three", "--recipe", "hn-clip", *common)


def test_what_is_refused(model: str, photos: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "out", "--data", photos)
    said = refused(model, *out, "--recipe", "x")
    assert "there is no recipe 'x'" in said
    assert all(name in said for name in ("dora", "hn-clip", "lora", "plain"))
    assert "has no weight (did you mean 'weight_decay'?); it has" in refused(model, *out, "--set", "weight=1")
    assert "write it as NAME=VALUE" in refused(model, *out, "--set", "gamma")
    assert "--keep is about stretching" in refused(model, *out, "--keep", 3)
    assert "exclude each other" in refused(model, *out, "--steps", 3, "--epochs", 2)
    assert "no such file or folder" in refused(model, "-o", tmp_path / "out", "--data", tmp_path / "nothing")
    assert "a step takes 128 pairs" in refused(model, *out, "--device", "cpu")
    (tmp_path / "bad.json").write_text("{")
    assert "not JSON" in refused(model, *out, "--config", tmp_path / "bad.json")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    assert "exists already" in refused(model, "--data", photos, "-o", tmp_path / "full")
    assert not (tmp_path / "out").exists()


def test_drawn_scenes_and_tables(tmp_path: Path, photos: Path) -> None:
    write_scenes(tmp_path / "drawn", count=5, size=16)
    pairs = open_pairs(str(tmp_path / "drawn"))
    assert len(pairs) == len(pairs.images) == 5
    assert all(len(caption.split()) > 50 for caption in pairs.captions)
    assert len(open_pairs(str(tmp_path / "drawn"), twins=True)) == 10
    write_scenes(tmp_path / "test", count=5, size=16, split="test")
    with pytest.raises(ValueError, match="scenes of the test split"):
        open_pairs(str(tmp_path / "test"))
    with (photos / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        writer.writerows([(f"é {k}.png", f"caption {k} {n}") for k in range(6) for n in range(2)])
    try:
        table = open_pairs(str(photos))
        assert (len(table), len(table.images)) == (12, 6)
        assert table.open(0).size == (32, 32)
        assert len(open_pairs(str(photos / "captions.csv"))) == 12
        assert len(open_pairs(f"folder:{photos}")) == 12
        assert open_pairs(f"folder:{photos}").captions[0].endswith("It is drawn in few colours.")
        assert len(open_pairs(f"folder:{photos}", captions="lines")) == 24
    finally:
        (photos / "captions.csv").unlink()
    with pytest.raises(ValueError, match="it is a test set"):
        open_pairs("urban1k:" + str(tmp_path))
    with pytest.raises(ValueError, match="go with a path"):
        as_pairs(small.items(4), split="train")


def test_rows_and_images_that_cannot_be_used(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for k, (picture, caption) in enumerate(small.items(14)):
        picture.save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text(caption)
    (folder / "3.txt").unlink()
    assert "3.txt is not there; leave out what cannot be used with --skip-broken" in refused(
        model, "--data", folder, "-o", tmp_path / "out"
    )
    (folder / "5.png").write_bytes(b"no image at all")
    said = invoke("finetune", model, "--data", folder, "-o", tmp_path / "out", "--skip-broken", *FEW)
    assert "2 rows or images that cannot be used left out:" in said
    assert "3.txt is not there" in said
    assert "5.png" in said
    assert (tmp_path / "out").is_dir()
    # The same of a table, with a row too short, an image that is not there and an empty caption.
    table = folder / "captions.csv"
    table.write_text("image,caption\n" + "".join(f"{k}.png,caption {k}\n" for k in range(7)) + "99.png,gone\n8.png,\n")
    with pytest.raises(ValueError, match=r"line 10: caption is empty.*--skip-broken"):
        open_pairs(str(folder))
    pairs = open_pairs(str(folder), skip_broken=True)
    assert pairs.captions == [f"caption {k}" for k in (0, 1, 2, 3, 4, 6)]
    assert [Path(image).name for image in pairs.images] == [f"{k}.png" for k in (0, 1, 2, 3, 4, 6)]
    assert pairs.image_of.tolist() == list(range(6))
    assert "3 rows or images that cannot be used left out:" in pairs.notes
    table.write_text("image,caption\n99.png,gone\n")
    with pytest.raises(FileNotFoundError, match=r"99\.png not found under .*--skip-broken"):
        open_pairs(str(folder))
    with pytest.raises(ValueError, match=r"no row of 1 can be used; the first: .*99"):
        open_pairs(str(folder), skip_broken=True)
    with pytest.raises(ValueError, match="takes no colour; it takes") as told:
        open_pairs(str(folder), colour="red")
    assert "on_error" not in str(told.value)
    table.write_text("image,caption\n5.png,no image\n6.png,cut off\n")
    (folder / "6.png").write_bytes((folder / "6.png").read_bytes()[:60])
    pairs = open_pairs(str(folder))
    with pytest.raises(ImageError, match=r"5\.png: .*--skip-broken"):
        pairs.open(0)
    with pytest.raises(ImageError, match=r"6\.png: is .*clipmend data check"):
        pairs.open(1)
    out = ("-o", tmp_path / "s.json", "--device", "cpu")
    said = invoke("dense-stats", photos_of(tmp_path), "--model", model, "--skip-broken", *out)
    assert "6 captions" in said


def photos_of(tmp_path: Path) -> Path:
    """A table of six images that can be opened and one that is not there."""
    table = tmp_path / "photos" / "more.csv"
    table.write_text("image,caption\n" + "".join(f"{k}.png,caption {k}\n" for k in (0, 1, 2, 7, 8, 9, 99)))
    return table


def test_dense_stats(model: str, photos: Path, tmp_path: Path) -> None:
    said = invoke("dense-stats", photos, "--model", model, "-o", tmp_path / "stats.json", "--device", "cpu")
    assert "12 captions of my photos, in batches of 12" in said
    found = json.loads((tmp_path / "stats.json").read_text())
    assert f"cosine between captions: {found['mean']:.3f} on average" in said
    assert -1 <= found["mean"] < found["hardest"] < 1
    invoke("dense-stats", photos, "--model", model, "-o", tmp_path / "new" / "stats.json", "--device", "cpu")
    assert json.loads((tmp_path / "new" / "stats.json").read_text()) == found
    result = runner.invoke(app, ["dense-stats", str(photos), "--model", model, "-o", str(tmp_path)])
    assert isinstance(result.exception, IsADirectoryError)


@pytest.mark.parametrize("command", ["finetune", "dense-stats"])
def test_help_ends_with_an_example(command: str) -> None:
    assert "Example" in runner.invoke(app, [command, "--help"]).output
