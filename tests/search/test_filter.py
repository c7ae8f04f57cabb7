"""Filtering folders, lists, tables, indexes and shards: scores of every image, thresholds, and nothing lost in silence."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from clipmend.data.tables import open_table
from clipmend.search import ImageIndex
from clipmend.search.calibrate import Aim
from clipmend.search.collection import Collection, open_collection
from clipmend.search.filter import UNCALIBRATED, FilterResult, filter_images, read_labels
from data.readers.made import encoded, tar
from search.fakes import FakeEncoder

runner = CliRunner()
SHADES = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images from red to blue, one in a folder with a space and an umlaut, and two that cannot be read."""
    folder = tmp_path_factory.mktemp("data") / "pictures"
    (folder / "süb folder").mkdir(parents=True)
    for k in range(SHADES):
        where = folder / "süb folder" if k == 3 else folder
        Image.new("RGB", (8, 8), (255 - 20 * k, 0, 20 * k)).save(where / f"{k:02d}.png")
    (folder / "broken.jpg").write_bytes(encoded()[:100])
    (folder / "empty.png").write_bytes(b"")
    return folder


def names() -> list[str]:
    return [f"süb folder/{k:02d}.png" if k == 3 else f"{k:02d}.png" for k in range(SHADES)]


def redness(result: FilterResult) -> list[str]:
    """Names by rank."""
    return [result.names[row] for row in np.argsort(result.ranks[:, 0])]


def test_a_folder_is_ranked_and_what_is_broken_is_named(folder: Path) -> None:
    encoder = FakeEncoder()
    result = filter_images(encoder, open_collection(folder), ["red"])
    assert redness(result) == names()
    assert result.kept is None
    assert result.notes == [UNCALIBRATED]
    assert sorted(name for name, _ in result.skipped) == ["broken.jpg", "empty.png"]
    assert encoder.embedded == SHADES
    vectors = encoder.encode_images([folder / name for name in result.names])
    assert np.allclose(result.scores[:, 0], (vectors @ encoder.encode_texts(["red"]).T)[:, 0], atol=1e-6)


def test_every_kind_of_data_gives_the_same_scores(folder: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder()
    whole = filter_images(encoder, open_collection(folder), ["red"])
    expected = dict(zip(whole.names, whole.scores[:, 0].tolist(), strict=True))
    ImageIndex.build(encoder, folder, tmp_path / "index")
    listed = [*names(), "broken.jpg", "missing.png"]
    (tmp_path / "list.txt").write_text("\n".join(str(folder / name) for name in listed) + "\n", encoding="utf-8")
    (tmp_path / "table.csv").write_text("id,file_name\n" + "".join(f"7,{name}\n" for name in listed), encoding="utf-8")
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"image": n}) + "\n" for n in listed), encoding="utf-8")
    sources: list[Collection] = [
        open_collection(tmp_path / "index"),
        open_collection(tmp_path / "list.txt"),
        open_collection(tmp_path / "table.csv", image_root=folder),
        open_collection(tmp_path / "lines.jsonl", column="image", image_root=folder),
    ]
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"path": listed}), tmp_path / "table.parquet")
    sources.append(open_collection(tmp_path / "table.parquet", image_root=folder))
    for source in sources:
        result = filter_images(encoder, source, ["red"])
        found = {
            name.removeprefix(f"{folder}/"): score for name, score in zip(result.names, result.scores[:, 0].tolist(), strict=True)
        }
        assert found == pytest.approx(expected, abs=1e-6), source.name
        assert len(result.skipped) == 2, result.skipped


def test_shards_are_streamed_through_their_reader(folder: Path, tmp_path: Path) -> None:
    members = {}
    for k, name in enumerate(names()):
        members[f"{k:05d}.png"] = (folder / name).read_bytes()
        members[f"{k:05d}.txt"] = b"a caption"
    members["00099.png"], members["00099.txt"] = b"no image", b"a caption"
    tar(tmp_path / "shard.tar", members)
    result = filter_images(FakeEncoder(), open_collection(f"webdataset:{tmp_path / 'shard.tar'}"), ["red"])
    assert len(result.names) == SHADES
    assert len(result.skipped) == 1
    assert (np.diff(result.scores[:, 0]) < 0).all()


def test_a_labelled_sample_sets_the_threshold(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\n" + "".join(f"{n},{int(k < 5)}\n" for k, n in enumerate(names())), encoding="utf-8")
    read = read_labels(labels, ["red"])
    result = filter_images(FakeEncoder(), open_collection(folder), ["red"], labels=read, aim=Aim(precision=1.0))
    assert result.kept is not None
    assert [name for name, keep in zip(result.names, result.kept, strict=True) if keep] == sorted(names()[:5])
    (calibration,) = result.calibrations
    assert (calibration.precision, calibration.recall, calibration.auroc) == (1.0, 1.0, 1.0)
    assert result.thresholds == [calibration.threshold]
    assert UNCALIBRATED not in result.notes


def test_labelled_images_may_lie_elsewhere(folder: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder()
    for k in range(6):
        Image.new("RGB", (8, 8), (255 - 40 * k, 0, 40 * k)).save(tmp_path / f"other{k}.png")
    (tmp_path / "other9.png").write_bytes(b"broken")
    labels = {"red": {f"other{k}.png": k < 3 for k in range(6)} | {"other9.png": True, "00.png": True}}
    result = filter_images(encoder, open_collection(folder), ["red"], labels=labels, label_root=tmp_path)
    assert result.kept is not None
    assert 0 < result.kept.sum() < SHADES
    assert encoder.embedded == SHADES + 6  # 00.png is in the data: once is enough
    assert any("1 labelled images cannot be read" in note for note in result.notes)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        filter_images(encoder, open_collection(folder), ["red"], labels={"red": {"nowhere.png": True, "00.png": False}})


def test_several_queries_must_all_fit_or_any(folder: Path) -> None:
    result = filter_images(FakeEncoder(), open_collection(folder), ["red", "blue"], quantile=0.5)
    assert result.kept is not None
    assert result.kept_by is not None
    assert result.kept_by.sum(0).tolist() == [SHADES // 2] * 2
    assert result.kept.tolist() == result.kept_by.all(1).tolist()
    either = filter_images(FakeEncoder(), open_collection(folder), ["red", "blue"], quantile=0.5, match_any=True)
    assert either.kept is not None
    assert either.kept.sum() >= SHADES // 2
    assert list(result.columns()) == ["image", "score_1", "rank_1", "kept_1", "score_2", "rank_2", "kept_2", "kept"]


def test_a_name_twice_is_scored_once(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "twice.csv").write_text("image\n00.png\n01.png\n00.png\n", encoding="utf-8")
    result = filter_images(FakeEncoder(), open_collection(tmp_path / "twice.csv", image_root=folder), ["red"])
    assert result.names == ["00.png", "01.png"]
    assert any("1 rows name an image again" in note for note in result.notes)


def test_an_index_of_another_encoder_is_refused(folder: Path, tmp_path: Path) -> None:
    ImageIndex.build(FakeEncoder("another"), folder, tmp_path / "index")
    with pytest.raises(ValueError, match="index"):
        filter_images(FakeEncoder(), open_collection(tmp_path / "index"), ["red"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_hold_scores_and_how_they_were_made(folder: Path, tmp_path: Path, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    result = filter_images(FakeEncoder(), open_collection(folder), ["red"], quantile=0.25)
    out = tmp_path / "new" / f"scores{suffix}"
    files = result.write(out)
    assert [file.name for file in files] == [f"scores{suffix}", "scores.filter.json", "scores.skipped.json"]
    if suffix == ".csv":
        with out.open(encoding="utf-8", newline="") as file:
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
        back = [(r["image"], np.float32(r["score"]), int(r["rank"]), r["kept"] == "true") for r in rows]
    else:
        from pyarrow import parquet

        back = [(r["image"], np.float32(r["score"]), r["rank"], r["kept"]) for r in parquet.read_table(out).to_pylist()]
    assert result.kept is not None
    rows_expected = zip(result.names, result.scores[:, 0], result.ranks[:, 0].tolist(), result.kept.tolist(), strict=True)
    assert back == sorted(rows_expected, key=lambda row: row[2])
    assert [rank for _, _, rank, _ in back] == list(range(1, SHADES + 1))  # a table of ranks is in their order
    about = json.loads(files[1].read_text(encoding="utf-8"))
    assert (about["images"], about["kept"], about["skipped"], about["thresholds"]) == (SHADES, 3, 2, None)
    assert {entry["image"] for entry in json.loads(files[2].read_text(encoding="utf-8"))} == {"broken.jpg", "empty.png"}
    clean = filter_images(FakeEncoder(), open_collection(folder / "süb folder"), ["red"])
    with pytest.raises(FileExistsError, match=r"scores\.(csv|parquet) exists already; .*--overwrite"):
        clean.write(out)
    clean.write(out, overwrite=True)
    assert not files[2].exists()  # of the earlier run
    assert not [p for p in out.parent.iterdir() if p.suffix == ".tmp"]


def test_an_error_half_way_writes_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(count: int) -> None:
        if count:
            raise KeyboardInterrupt

    monkeypatch.setattr(clipmend, "load", lambda *_, **__: FakeEncoder(before_batch=dies))
    result = runner.invoke(app, ["filter", "fake", str(folder), "red", "--batch-size", "2", "-o", str(tmp_path / "out" / "s.csv")])
    assert result.exit_code != 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queries": []}, "no query"),
        ({"queries": ["red", " "]}, "empty"),
        ({"queries": ["red", "red"]}, "twice"),
        ({"quantile": 0.0}, "above 0"),
        ({"quantile": 0.5, "labels": {"red": {"a": True}}}, "give one of them"),
        ({"aim": Aim(recall=0.5)}, "labelled sample"),
        ({"labels": {"blue": {"a": True}}}, "no image is labelled for 'red'"),
        ({"score_correction": True}, "no score correction"),
    ],
)
def test_what_makes_no_sense_is_refused(folder: Path, options: dict[str, Any], said: str) -> None:
    queries = options.pop("queries", ["red"])
    with pytest.raises(ValueError, match=said):
        filter_images(FakeEncoder(), open_collection(folder), queries, **options)


def test_data_without_a_readable_image_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"none of 1 images can be read; the first: a\.png"):
        filter_images(FakeEncoder(), open_collection(tmp_path), ["red"])
    (tmp_path / "no.csv").write_text("what,else\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="no column is called as images usually are"):
        open_collection(tmp_path / "no.csv")
    with pytest.raises(FileNotFoundError):
        open_collection(tmp_path / "not-there.csv")
    (tmp_path / "blank.csv").write_text('image\n""\n" "\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"blank\.csv"):
        open_collection(tmp_path / "blank.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image\na.png\n", "column label is missing"),
        ("image,label\na.png,maybe\n", "line 2: label is 'maybe'"),
        ("image,label\na.png,1\na.png,0\n", "line 3: a.png is labelled both ways"),
        ("image,label,query\na.png,1,green\n", "line 2: the query 'green' is not asked"),
        ("image,label\n ,1\n", "line 2: image is empty"),
    ],
)
def test_a_broken_sample_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=said):
        read_labels(path, ["red"])


def test_a_sample_as_spreadsheets_write_it(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("\ufeffimage,query,label,more\r\nä b.png,red,Yes,\r\nä b.png,blue,0.0,\r\nä b.png,red,1,\r\n".encode())
    assert read_labels(path, ["red", "blue"]) == {"red": {"ä b.png": True}, "blue": {"ä b.png": False}}
    (tmp_path / "one.csv").write_text("image,label\na.png,1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="column query is missing"):
        read_labels(tmp_path / "one.csv", ["red", "blue"])


def test_what_is_written_gives_the_same_decisions_again(tmp_path: Path) -> None:
    """Score and threshold as written decide as the run did, also where the threshold is a score itself."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        for k in range(8):
            Image.new("RGB", (4, 4), tuple(int(v) for v in rng.integers(0, 256, 3))).save(folder / f"{k}.png")
        found = filter_images(FakeEncoder(), open_collection(folder), ["red"])
        worst = found.names[int(np.argmax(found.ranks[:, 0]))]
        labels = {"red": {name: name == worst for name in found.names}}  # all must be kept: the threshold is the lowest score
        result = filter_images(FakeEncoder(), open_collection(folder), ["red"], labels=labels, aim=Aim(recall=1.0))
        result.write(tmp_path / f"{seed}.csv")
        threshold = json.loads((tmp_path / f"{seed}.filter.json").read_text())["thresholds"][0]
        rows = [row for _, row in open_table(tmp_path / f"{seed}.csv")[1]]
        assert [float(row["score"]) >= threshold for row in rows] == [row["kept"] == "true" for row in rows] == [True] * 8


@pytest.mark.parametrize(("quantile", "kept"), [(0.01, 1), (0.04, 1), (0.5, 6), (0.99, 12), (1.0, 12)])
def test_a_share_above_nothing_keeps_something(folder: Path, quantile: float, kept: int) -> None:
    result = filter_images(FakeEncoder(), open_collection(folder), ["red"], quantile=quantile)
    assert result.kept is not None
    assert result.kept.sum() == kept
    assert f"the best {100 * quantile:g} % by rank" in result.notes[0]


def test_an_image_under_two_names_is_labelled_once(folder: Path, tmp_path: Path) -> None:
    labels = {"red": {"00.png": True, "./00.png": True, str(folder / "00.png"): True, "05.png": False, "01.png": True}}
    result = filter_images(FakeEncoder(), open_collection(folder), ["red"], labels=labels)
    assert (result.calibrations[0].positives, result.calibrations[0].negatives) == (2, 1)
    assert any("2 labels name an image again" in note for note in result.notes)
    labels["red"]["./05.png"] = True
    with pytest.raises(ValueError, match=r"05\.png and \./05\.png are one image, labelled both ways for 'red'"):
        filter_images(FakeEncoder(), open_collection(folder), ["red"], labels=labels)


def test_a_labelled_image_that_the_data_name_and_lack_is_left_out(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("image\n" + "".join(f"{name}\n" for name in [*names(), "missing.png"]), encoding="utf-8")
    labels = {"red": {"missing.png": True, "00.png": True, "05.png": False}}
    images = open_collection(tmp_path / "table.csv", image_root=folder)
    result = filter_images(FakeEncoder(), images, ["red"], labels=labels, label_root=tmp_path)
    assert result.calibrations[0].positives == 1
    assert any("1 labelled images cannot be read" in note for note in result.notes)


# The command


def run(*arguments: object) -> str:
    result = runner.invoke(app, ["filter", "fake", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def failure(*arguments: object) -> str:
    result = runner.invoke(app, ["filter", "fake", *map(str, arguments)])
    assert isinstance(result.exception, ValueError | OSError), (result.exception, result.output)
    return str(result.exception)


def test_the_command_from_sample_to_list(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: FakeEncoder())
    labels = tmp_path / "labels.csv"
    labels.write_text("image,label\n" + "".join(f"{n},{int(k < 5)}\n" for k, n in enumerate(names())), encoding="utf-8")
    out, kept = tmp_path / "kept.csv", tmp_path / "kept.txt"
    output = run(folder, "red", "--labelled", labels, "--recall", 1, "-o", out, "--list", kept)
    assert "kept 5 of 12 images" in output
    assert "recall 100.0%" in output
    assert "on parts it was not chosen on" in output
    assert "2 images could not be read (broken.jpg" in output
    assert kept.read_text(encoding="utf-8").splitlines() == sorted(names()[:5])
    _, rows = open_table(out, ["image", "score", "rank", "kept"])
    assert sum(row["kept"] == "true" for _, row in rows) == 5
    about = json.loads((tmp_path / "kept.filter.json").read_text(encoding="utf-8"))
    assert about["calibration"][0]["aim"] == "recall of at least 1"
    assert about["model"] == "fake"


def test_an_earlier_result_is_replaced_only_when_told(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: FakeEncoder())
    out, listing = tmp_path / "s.csv", tmp_path / "kept.txt"
    run(folder, "red", "blue", "--quantile", 0.5, "-o", out, "--list", listing)
    rows = [row for _, row in open_table(out)[1]]
    worst = [max(int(row["rank_1"]), int(row["rank_2"])) for row in rows]
    assert worst == sorted(worst)
    before = out.read_bytes()
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: pytest.fail("no model is loaded before this is known"))
    assert "exists already; name another file, or replace it with --overwrite" in failure(folder, "red", "-o", out)
    out.rename(tmp_path / "kept aside.csv")
    assert "s.filter.json exists already" in failure(folder, "red", "-o", out)
    again = (folder, "red", "--quantile", 0.5, "-o", tmp_path / "new.csv", "--list", listing)
    assert "kept.txt exists already" in failure(*again)
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: FakeEncoder())
    (tmp_path / "kept aside.csv").rename(out)
    run(folder, "red", "-o", out, "--overwrite")
    assert out.read_bytes() != before


def test_without_a_sample_the_command_says_so(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: FakeEncoder())
    output = run(folder, "red", "no blue", "-o", tmp_path / "s.csv")
    assert UNCALIBRATED in output
    assert "hint: this query says what must not be there" in output
    assert "kept" not in open_table(tmp_path / "s.csv")[0]


def test_options_without_effect_are_errors(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.csv"
    assert "need --labelled" in failure(folder, "red", "--precision", 0.9, "-o", out)
    assert "--any is for several" in failure(folder, "red", "--any", "-o", out)
    assert "--list needs" in failure(folder, "red", "--list", tmp_path / "l", "-o", out)
    assert "needs --patch" in failure(folder, "red", "--scn", "-o", out)
    assert "choose one of these endings" in failure(folder, "red", "-o", tmp_path / "s.txt")
    assert "is a folder" in failure(folder, "red", "-o", _folder(tmp_path / "d.csv"))


def test_no_output_takes_the_place_of_an_input(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: pytest.fail("no model is loaded before this is known"))
    labels, data, out = tmp_path / "labels.csv", tmp_path / "data.csv", tmp_path / "out.csv"
    labels.write_text("image,label\n" + "".join(f"{n},{int(k < 5)}\n" for k, n in enumerate(names())), encoding="utf-8")
    data.write_text("image\n" + "".join(f"{name}\n" for name in names()), encoding="utf-8")
    (tmp_path / "link.csv").symlink_to(labels)
    before = {path: path.read_bytes() for path in (labels, data)}
    root = ("--image-root", folder)
    assert "is read from" in failure(data, "red", *root, "-o", data)
    assert "is read from" in failure(data, "red", *root, "--labelled", labels, "-o", labels)
    assert "is read from" in failure(data, "red", *root, "--labelled", labels, "-o", tmp_path / "link.csv")
    assert "is read from" in failure(data, "red", *root, "--labelled", labels, "-o", out, "--list", labels)
    assert "is written twice" in failure(data, "red", *root, "--quantile", 0.5, "-o", out, "--list", out)
    assert "is written twice" in failure(data, "red", *root, "--quantile", 0.5, "-o", out, "--list", tmp_path / "out.filter.json")
    assert "is a folder" in failure(data, "red", *root, "--quantile", 0.5, "-o", out, "--list", tmp_path)
    assert "is a file" in failure(data, "red", *root, "-o", labels / "out.csv")
    assert "is a file" in failure(data, "red", *root, "--quantile", 0.5, "-o", out, "--list", labels / "new" / "list.txt")
    assert {path: path.read_bytes() for path in (labels, data)} == before
    assert not out.exists()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
