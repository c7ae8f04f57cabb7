"""Features of a data set on one process: what they are, what they leave out, what they survive and what a fit makes of them."""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import clipmend
from clipmend.backbones.base import LongTextsWarning
from clipmend.backbones.text import TextAndImageEncoder
from clipmend.cli.app import app
from clipmend.data.scenes import negation_data_from_folder
from clipmend.features import Features, make_features
from clipmend.features import survey as survey_module
from clipmend.features.survey import DataSource, StoredImages, survey
from clipmend.negation import PeakPatchConfig
from clipmend.negation.features import extract_image_features
from clipmend.negation.image_features import SkippedImagesWarning, content_digest
from features_scale import made
from helpers import RandomDualEncoder

CONFIG = PeakPatchConfig(**made.LAYERS)
MADE: dict[str, Any] = {"config": CONFIG, **made.SIZES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("features")


@pytest.fixture(scope="module")
def encoder(folder: Path) -> TextAndImageEncoder:
    return clipmend.load(made.model(folder / "model"))


@pytest.fixture(scope="module")
def pictures(folder: Path) -> Path:
    return made.pictures(folder / "pictures")


@pytest.fixture(scope="module")
def whole(folder: Path, encoder: TextAndImageEncoder, pictures: Path) -> Path:
    make_features(encoder, pictures, folder / "whole", **MADE)
    return folder / "whole"


# What they are


def test_equal_to_the_encoders_own(encoder: TextAndImageEncoder, pictures: Path, whole: Path) -> None:
    features = Features.open(whole)
    paths = [pictures / name for name in features.names]
    assert features.names == sorted(path.name for path in pictures.iterdir() if path.suffix != ".txt")
    kept = features.kept
    assert len(kept) == len(paths) - len(made.POISONED)
    own = encoder.encode_images([paths[row] for row in kept]).numpy()
    np.testing.assert_allclose(features.images[kept], own, atol=1e-5)
    assert len(features.captions) == 2 * len(paths)
    beside = [line for path in paths for line in path.with_suffix(".txt").read_text().splitlines()]
    assert features.captions == [" ".join(line.split()) for line in beside]
    assert features.owners.tolist() == [k // 2 for k in range(80)]
    np.testing.assert_allclose(features.texts.embedding, encoder.encode_texts(features.captions).numpy(), atol=1e-5)
    assert features.texts.peak == 2
    assert not features.negated.any()


def test_prepared_one_by_one_is_what_the_processor_makes_of_a_batch(encoder: TextAndImageEncoder, pictures: Path) -> None:
    opened = [Image.open(pictures / f"{k:02d}.png").convert("RGB") for k in (0, 1, 2)]
    prepared = torch.stack([encoder.prepare_image(image) for image in opened])
    torch.testing.assert_close(prepared, encoder.image_processor(images=opened, return_tensors="pt")["pixel_values"])
    torch.testing.assert_close(encoder.encode_prepared(prepared), encoder.encode_images(opened), atol=1e-6, rtol=1e-6)


def test_poisoned_images_are_skipped_counted_and_named(whole: Path, pictures: Path, encoder: TextAndImageEncoder) -> None:
    lines = [json.loads(line) for line in (whole / "features" / "skipped.jsonl").read_text().splitlines()]
    assert [line["image"] for line in lines] == list(made.POISONED)
    for line, word in zip(lines, ("truncated", "web page", "empty"), strict=True):
        assert word.lower() in line["reason"].lower()
    report = make_features(encoder, pictures, whole, **MADE)
    assert (report.images, report.made, len(report.skipped)) == (37, 0, 3)
    assert "37 images, 80 captions (" in str(report)
    assert "3 skipped" in str(report)
    # Those who cannot do without them are told which they are.
    paths = [pictures / name for name in Features.open(whole).names]
    with pytest.raises(ValueError, match=r"40 images less 3 that were skipped: image 7 .*07.png\): is truncated"):
        extract_image_features(encoder, paths, whole / "features" / "images")
    with pytest.raises(ValueError, match=r"image 7 \(.*07.png\): is truncated"):
        extract_image_features(encoder, paths)
    with pytest.warns(SkippedImagesWarning, match=r"3 of 40 images skipped; the first: image 7"):
        again = extract_image_features(encoder, paths, whole / "features" / "images", on_error="skip")
    assert np.flatnonzero(np.isnan(again).any(1)).tolist() == [7, 19, 23]


def test_everything_unusable_is_an_error(encoder: TextAndImageEncoder, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    for k in range(3):
        (tmp_path / "bad" / f"{k}.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(ValueError, match=r"none of 3 images can be used; the first: 0.jpg: .*skipped.jsonl"):
        make_features(encoder, tmp_path / "bad", tmp_path / "out", **MADE)
    assert len((tmp_path / "out" / "features" / "skipped.jsonl").read_text().splitlines()) == 3


def test_no_image_found_is_an_error_before_any_work(encoder: TextAndImageEncoder, tmp_path: Path) -> None:
    """A table read without its --image-root: captions alone are not what was asked for."""
    (tmp_path / "t.csv").write_text("image,caption\na.png,a dog\nb.png,no cat\n")
    told = r"none of 2 images can be used; the first: a.png: not found under .*; try --image-root DIR"
    with pytest.raises(ValueError, match=told):
        make_features(encoder, f"table:{tmp_path / 't.csv'}", tmp_path / "out", **MADE)
    assert not (tmp_path / "out").exists()
    report = make_features(encoder, f"table:{tmp_path / 't.csv'}", tmp_path / "out", images=False, **MADE)
    assert (report.images, report.captions) == (0, 2)


@pytest.mark.parametrize("name", ["image_batch", "text_batch", "image_unit", "text_unit", "readers"])
def test_sizes_below_one_and_a_file_are_refused(encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path, name: str) -> None:
    for value in (0, -1):
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be at least 1"):
            make_features(encoder, pictures, tmp_path / "out", **{**MADE, name: value})
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; features need a folder"):
        make_features("no model is loaded", pictures, tmp_path / "file", **MADE)


def test_an_embedding_that_is_not_finite_is_skipped(tmp_path: Path) -> None:
    class Odd(RandomDualEncoder):
        def encode_images(self, images, **kwargs):  # type: ignore[no-untyped-def]
            rows = super().encode_images(images, **kwargs).clone()
            for row, image in enumerate(images):
                if image.width == 79:
                    rows[row] = float("nan")
                if image.width == 77:
                    raise ValueError("too odd")
            return rows

    made.pictures(tmp_path / "p", 8, poisoned=False)
    report = make_features(Odd(), tmp_path / "p", tmp_path / "out", **MADE)
    assert [(skip.image, skip.reason.split("(")[0]) for skip in report.skipped] == [
        ("01.png", "its embedding is not finite "),
        ("03.jpg", "the encoder refused it "),
    ]


def test_texts_alone_later_forget_no_image_that_was_skipped(
    encoder: TextAndImageEncoder, pictures: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "out")
    report = make_features(encoder, pictures, tmp_path / "out", images=False, **MADE)
    assert (report.images, report.made) == (0, 0)
    assert made.tree(tmp_path / "out") == made.tree(whole)
    assert [skip.image for skip in report.skipped] == list(made.POISONED)


def test_a_refused_run_leaves_nothing_that_refuses_the_next(encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path) -> None:
    """Images of other data are planned, then their captions refused: the plan must not stay in the way of the right data."""
    make_features(encoder, pictures, tmp_path / "out", images=False, **MADE)
    before = made.tree(tmp_path / "out")
    other = made.pictures(tmp_path / "other", 12, poisoned=False)
    (other / "00.txt").write_text("another caption\n")
    with pytest.raises(ValueError, match="text features made from something else"):
        make_features(encoder, other, tmp_path / "out", **MADE)
    assert made.tree(tmp_path / "out") == before
    make_features(encoder, pictures, tmp_path / "out", **MADE)
    assert Features.open(tmp_path / "out").images.shape[0] == 40


# Killed and resumed


def run(arguments: list[str]) -> subprocess.Popen[bytes]:
    program = "from clipmend.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Killed(BaseException):
    """Stands for a kill: nothing in the library may catch it."""


@pytest.mark.parametrize("seed", range(4))
def test_killed_anywhere_the_bytes_are_the_same(
    seed: int, whole: Path, encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    save, kills, done = np.save, 0, False
    while not done:
        left = [rng.randint(1, 20)]

        def dying(file: Path, *args: Any, left: list[int] = left, **kwargs: Any) -> None:
            left[0] -= 1
            if left[0] < 0:
                Path(file).write_bytes(b"\x93NUMPY half a fil")
                raise Killed
            save(file, *args, **kwargs)

        monkeypatch.setattr(np, "save", dying)
        try:
            make_features(encoder, pictures, tmp_path / "out", **MADE)
            done = True
        except Killed:
            kills += 1
            assert kills < 60
    monkeypatch.undo()
    assert kills
    assert made.tree(tmp_path / "out") == made.tree(whole)


@pytest.mark.slow
def test_sigkill_at_random_points(whole: Path, folder: Path, pictures: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sizes = [str(x) for name, size in made.SIZES.items() for x in (f"--{name.replace('_', '-')}", size)]
    arguments = ["features", str(folder / "model"), "--data", str(pictures), "-o", str(out), "--peak", "2", "--anchor", "1", *sizes]
    rng, kills = random.Random(3), 0
    for _ in range(12):
        process = run(arguments)
        goal, deadline = made.units(out) + rng.randint(1, 3), time.monotonic() + 300
        while process.poll() is None and made.units(out) < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.01)
        process.kill()
        if process.wait() == 0:
            break
        kills += 1
    else:
        process = run(arguments)
        assert process.wait() == 0
    assert kills
    assert made.tree(out) == made.tree(whole)


def test_a_failure_before_the_first_unit_leaves_nothing(
    encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="disk full"):
        make_features(encoder, pictures, tmp_path / "a" / "out", **MADE)
    assert not (tmp_path / "a").exists()


# Refusals


def test_refusals(
    encoder: TextAndImageEncoder, pictures: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = made.tree(whole)
    other = made.pictures(tmp_path / "other", 6, poisoned=False)
    out = tmp_path / "out"
    with pytest.raises(ValueError, match=r"made from something else \(images: 40 there, 6 now"):
        make_features(encoder, other, whole, **MADE)
    shutil.copytree(pictures, tmp_path / "same images")
    (tmp_path / "same images" / "00.txt").write_text("another")
    with pytest.raises(ValueError, match="features of other captions"):
        make_features(encoder, tmp_path / "same images", whole, texts=False, **MADE)
    with pytest.raises(ValueError, match="peak: 2 there, 3 now"):
        make_features(encoder, pictures, whole, **{**MADE, "config": PeakPatchConfig(peak=3, anchor=1)})
    with pytest.raises(ValueError, match="draft: None there, 2 now"):
        make_features(encoder, pictures, whole, draft=True, **MADE)
    with pytest.raises(ValueError, match="nothing to do"):
        make_features(encoder, pictures, whole, images=False, texts=False)
    with pytest.raises(ValueError, match="give its name or folder"):
        make_features(encoder, pictures, whole, workers=2, **MADE)
    with pytest.raises(ValueError, match="on_error"):
        make_features(encoder, pictures, whole, on_error="raise")
    (tmp_path / "empty.csv").write_text("image,caption\nnowhere.jpg,\n")
    with pytest.raises(ValueError, match=r"neither an image nor a caption.*line 2"):
        make_features(encoder, tmp_path / "empty.csv", out, **MADE)
    long = tmp_path / "long.csv"
    long.write_text(f"image,caption\n{pictures / '00.png'},{'dog ' * 90}\n{pictures / '01.png'},{'cat ' * 90}\n")
    with pytest.raises(ValueError, match="2 of 2 distinct captions exceed 40 tokens"):
        make_features(encoder, long, out, on_long="error", **MADE)
    assert not out.exists()
    with pytest.warns(LongTextsWarning, match="2 of 2 distinct"):
        assert make_features(encoder, long, out, **MADE).truncated == 2
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "clipmend.features.cluster", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'clipmend\[cluster\]'"):
        make_features(encoder.name, pictures, whole, workers=2, **MADE)
    assert made.tree(whole) == before


def test_a_file_that_changes_meanwhile_is_an_error(
    encoder: TextAndImageEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = made.pictures(tmp_path / "p", 20, poisoned=False)
    original = survey_module.write_lines

    def write(path: Path, rows: Any) -> None:
        original(path, rows)
        Image.new("RGB", (9, 9)).save(data / "12.png")

    monkeypatch.setattr("clipmend.features.make.write_lines", write)
    with pytest.raises(ValueError, match=r"image 12, .*12.png, changed while its features were made; run the same command again"):
        make_features(encoder, data, tmp_path / "out", **MADE)
    assert made.units(tmp_path / "out") == 1  # the unit before it


# Sources


def test_sources(encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same images through every kind of source, by file and held by the source, give the same embeddings."""
    good = [path for path in sorted(pictures.iterdir()) if path.suffix != ".txt" and path.name not in made.POISONED][:21]
    broken = pictures / "07.png"
    files = sorted([*good, broken])
    rows = [(path, line) for path in files for line in path.with_suffix(".txt").read_text().splitlines()]
    (tmp_path / "shards").mkdir()
    for number, part in enumerate((files[:8], files[8:])):
        with tarfile.open(tmp_path / "shards" / f"{number:03d}.tar", "w") as archive:
            for path in part:
                for name in (path, path.with_suffix(".txt")):
                    member = tarfile.TarInfo(name.name)
                    member.size = name.stat().st_size
                    archive.addfile(member, io.BytesIO(name.read_bytes()))
    (tmp_path / "t.csv").write_text("image,caption\n" + "".join(f"{path.name},{line}\n" for path, line in rows))
    with (tmp_path / "t.jsonl").open("w") as file:
        for path in files:
            captions = path.with_suffix(".txt").read_text().splitlines()
            file.write(json.dumps({"image": str(path), "caption": captions}) + "\n")
    import pyarrow
    import pyarrow.parquet

    table = {"image": [{"bytes": path.read_bytes(), "path": None} for path, _ in rows], "caption": [line for _, line in rows]}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    (tmp_path / "only").mkdir()
    for path in files:
        (tmp_path / "only" / path.name).write_bytes(path.read_bytes())

    make = {**MADE, "image_unit": 5}
    expected = encoder.encode_images(good).numpy()
    sources: dict[str, tuple[str, dict[str, Any]]] = {
        "shards": (f"webdataset:{tmp_path}/shards/{{000..001}}.tar", {}),
        "csv": (str(tmp_path / "t.csv"), {"image_root": str(pictures)}),
        "jsonl": (str(tmp_path / "t.jsonl"), {}),
        "parquet": (str(tmp_path / "t.parquet"), {}),
        "only pictures": (str(tmp_path / "only"), {}),
    }
    digests = set()
    for name, (data, options) in sources.items():
        report = make_features(encoder, data, tmp_path / "made" / name, **make, **options)
        features = Features.open(tmp_path / "made" / name)
        assert features.images.shape[0] == len(features.names), name
        if name == "parquet":  # every row holds its image anew, under a name of its own
            assert (report.images, len(features.names)) == (42, 44)
            np.testing.assert_allclose(features.images[features.kept], expected.repeat(2, 0), atol=1e-5)
        else:
            assert (report.images, len(features.names)) == (21, 22), name
            np.testing.assert_allclose(features.images[features.kept], expected, atol=1e-5, err_msg=name)
            manifest = json.loads((tmp_path / "made" / name / "features" / "images" / "manifest.json").read_text())
            digests.add(manifest["identity"]["images_sha256"])
        if name == "shards":  # there a text is one caption
            assert features.captions == [path.with_suffix(".txt").read_text().strip() for path in files]
        else:
            assert features.captions == ([] if name == "only pictures" else [line for _, line in rows]), name
    assert len(digests) == 1  # the same images by content, wherever they lie


def test_held_images_in_any_order(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for k in range(6):
            for name, content in ((f"{k}.png", bytes([k]) * 9), (f"{k}.txt", b"text")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    found = survey(DataSource(str(tmp_path / "a.tar")))
    images = found.images()
    assert [images[row] for row in (0, 3, 5, 1, 2, 2)] == [bytes([k]) * 9 for k in (0, 3, 5, 1, 2, 2)]
    assert [place.sha256 for place in found.places] == [content_digest(bytes([k]) * 9) for k in range(6)]
    lost = StoredImages(found.source, [survey_module.Place("0.png", "", 0, 9)])
    with pytest.raises(ValueError, match="no longer there"):
        lost[0]


def test_rows_that_cannot_be_used_are_all_named(encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path) -> None:
    lines = [f"{pictures / '00.png'},a dog", *(f"missing{k}.jpg,a cat" for k in range(30)), f"{pictures / '01.png'},"]
    (tmp_path / "t.csv").write_text("image,caption\n" + "\n".join(lines) + "\n")
    report = make_features(encoder, tmp_path / "t.csv", tmp_path / "out", **MADE)
    assert (report.images, report.captions, len(report.skipped)) == (1, 31, 31)
    features = Features.open(tmp_path / "out")
    assert features.owners.tolist() == [0] + [-1] * 30  # captions stay, without their image
    assert sum("not found under" in skip.reason for skip in report.skipped) == 30
    (row,) = [skip.reason for skip in report.skipped if not skip.image]
    assert row.startswith(f"{tmp_path / 't.csv'}: line 33: caption is empty")


# Use


def test_a_fit_reads_them(tmp_path: Path) -> None:
    """Made beforehand, the features spare a fit every pass over its images and captions."""
    shown = CliRunner().invoke(app, ["scenes", str(tmp_path / "drawn"), "--count", "40", "--size", "32", "--seed", "1"])
    assert shown.exit_code == 0, shown.output
    first = RandomDualEncoder()
    config = PeakPatchConfig(
        steps=2, epochs=None, batch_size=8, hidden=16, text_only_weight=0.0, guidance_weight=0.0, **made.LAYERS
    )
    report = make_features(first, tmp_path / "drawn", tmp_path / "work", config=config, image_unit=16, text_unit=64)
    assert report.images == 40
    second = RandomDualEncoder()
    seen: list[int] = []
    second.encode_images = lambda images, **kwargs: seen.append(len(images))  # type: ignore[method-assign, assignment, return-value]
    patch = clipmend.fit(second, tmp_path / "drawn", config, directory=tmp_path / "work")
    assert not seen
    assert second.texts_seen == 0
    assert patch.metrics["images"] > 0
    plain = clipmend.fit(RandomDualEncoder(), tmp_path / "drawn", config)
    assert patch.training_data == plain.training_data


def test_a_mixed_fit_reads_them_too(tmp_path: Path) -> None:
    """Its borrowed captions and noun sets are encoded by the fit, the data's own captions are not."""
    shown = CliRunner().invoke(app, ["scenes", str(tmp_path / "drawn"), "--count", "40", "--size", "32", "--seed", "1"])
    assert shown.exit_code == 0, shown.output
    config = PeakPatchConfig(steps=1, epochs=None, batch_size=8, hidden=16, text_only_sets=64, guidance_weight=0.0, **made.LAYERS)
    make_features(RandomDualEncoder(), tmp_path / "drawn", tmp_path / "work", config=config, image_unit=16, text_unit=64)
    with_them, without = RandomDualEncoder(), RandomDualEncoder()
    patch = clipmend.fit(with_them, tmp_path / "drawn", config, directory=tmp_path / "work")
    plain = clipmend.fit(without, tmp_path / "drawn", config)
    own = {caption.text for caption in negation_data_from_folder(tmp_path / "drawn").captions}
    assert without.texts_seen - with_them.texts_seen == len(own)
    assert patch.training_data == plain.training_data


def test_draft_is_faster_food_of_nearly_the_same_taste(encoder: TextAndImageEncoder, tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    rng = np.random.default_rng(1)
    for k in range(4):
        small = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize((1600, 1200), Image.Resampling.BICUBIC).save(tmp_path / "p" / f"{k}.jpg", quality=90)
    make_features(encoder, tmp_path / "p", tmp_path / "full", **MADE)
    make_features(encoder, tmp_path / "p", tmp_path / "draft", draft=True, **MADE)
    full, draft = Features.open(tmp_path / "full").images, Features.open(tmp_path / "draft").images
    assert not np.array_equal(full, draft)
    assert (full * draft).sum(1).min() > 0.99
    with pytest.raises(ValueError, match="does not say at what size"):
        make_features(RandomDualEncoder(), tmp_path / "p", tmp_path / "random", draft=True, **MADE)


def test_large_images_are_skipped_on_request(encoder: TextAndImageEncoder, pictures: Path, tmp_path: Path) -> None:
    report = make_features(encoder, pictures, tmp_path / "out", texts=False, max_pixels=2500, **MADE)
    assert {skip.image for skip in report.skipped} > set(made.POISONED)
    assert any("over the limit of 2,500" in skip.reason for skip in report.skipped)


def test_command(folder: Path, whole: Path, pictures: Path, tmp_path: Path) -> None:
    sizes = [str(x) for name, size in made.SIZES.items() for x in (f"--{name.replace('_', '-')}", size)]
    arguments = ["features", str(folder / "model"), "--data", str(pictures), "-o", str(tmp_path / "out"), *sizes]
    shown = CliRunner().invoke(app, [*arguments, "--peak", "2", "--anchor", "1"])
    assert shown.exit_code == 0, shown.output
    assert "37 images, 80 captions (" in shown.output
    assert "skipped 07.png: is truncated" in shown.output
    assert made.tree(tmp_path / "out") == made.tree(whole)
    again = CliRunner().invoke(app, arguments)  # the layers are the folder's own
    assert again.exit_code == 0, again.output
    assert ", 0 of them made now" in again.output
    refused = CliRunner().invoke(app, [*arguments, "--no-texts", "--peak", "2"])
    assert isinstance(refused.exception, ValueError)
