"""``clipmend evaluate dense``: end to end on drawn scenes, models against sets, curves, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data import dense_made as made
from tests.evaluation.fakes import LookupEncoder
from typer.testing import CliRunner

import clipmend
from backbones import tiny
from clipmend.backbones.base import Fingerprint
from clipmend.cli.app import app
from clipmend.data.dense import read_dense
from clipmend.data.scenes.tables import write_scenes

RUN = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"})


def run(*arguments: str | Path, fails: str = "") -> str:
    done = RUN.invoke(app, ["evaluate", "dense", *map(str, arguments)])
    if fails:
        assert done.exit_code == 1
        assert isinstance(done.exception, (ValueError, OSError))
        assert fails in str(done.exception)
        return str(done.exception)
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("worlds") / "test", count=12, size=64, seed=9, split="test").folder


def test_the_bundled_encoder_on_drawn_scenes(world: Path, tmp_path: Path) -> None:
    training = write_scenes(tmp_path / "train", count=4, size=64, seed=3, split="train").folder
    out = tmp_path / "dense.json"
    shown = run("scenes", "--set", "scenes", "--data", world, "--train-set", "scenes", "--train-data", training, "--json", out)
    assert "text → image" in shown
    assert "twins: own image by the text" in shown
    assert "0 of 24 images seen in training on scenes" in shown
    assert "sha256" in shown
    written = json.loads(out.read_text())
    assert written["dataset"] == "scenes"
    assert written["model"] == "scenes"
    assert written["gallery"]["images"] == written["gallery"]["texts"] == 24
    data = read_dense("scenes", world)
    assert written["gallery"]["sha256"] == data.gallery_digest(data.digests())
    assert written["overlap"]["unseen"] == 24
    # An encoder of drawn scenes finds the scene or its twin far above chance, 1 in 24.
    assert written["metrics"]["image_retrieval_recall@5"] > 3 * 5 / 24
    assert written["counts"]["twins/group"] == 12
    assert written["truncation"]["distinct_captions"] == 24
    assert written["truncation"]["truncated"] is not None


def test_a_mended_model_beside_its_backbone(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "dense.json"
    one = ["--set", "scenes", "--data", world, "--at", "1,5"]
    shown = run("scenes", "--patch", "scenes", *one, "--json", out, "--published")
    assert "backbone" in shown
    assert "mended" in shown
    assert "24 distinct captions (0.0 %) cut at" in shown
    assert "scenes + scenes" in shown  # in the table of models
    written = json.loads(out.read_text())
    first, second = written["first"]["metrics"], written["second"]["metrics"]
    assert set(written["differences"]) == set(first) == set(second)
    for name, difference in written["differences"].items():
        assert difference == pytest.approx(second[name] - first[name], abs=1e-6)
    assert written["second"]["pretrained"] == "scenes"
    assert first != second
    alone = run("scenes", "--patch", "scenes", *one, "--json", out, "--no-compare-backbone", "--gate")
    assert "backbone" not in alone
    # These paragraphs deny nothing: behind the gate a mended model is the backbone, whose figures are known from above.
    assert json.loads(out.read_text())["metrics"] == first


class Named(LookupEncoder):
    """One axis an image; of a model called ``weak-N`` or ``epoch-N`` only the first N captions lie on their image's."""

    def __init__(self, name: str, tests: dict[str, str]) -> None:
        right = int(name.rsplit("-", 1)[-1]) if name[-1].isdigit() else len(tests)
        rows = np.eye(len(tests), dtype=np.float32)
        images = {file: rows[k].tolist() for k, file in enumerate(tests.values())}
        texts = {text: rows[k if k < right else (k + 1) % len(tests)].tolist() for k, text in enumerate(tests)}
        super().__init__(texts, images, name=Path(name).name)

    @property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint(self.name, "i", "k")


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """DOCCI and a table, and models by name; lists which were loaded."""
    made.docci(tmp_path / "docci")
    rows = "".join(f"t{k}.png,Table caption {k}\n" for k in range(4))
    made.write(tmp_path / "t.csv", "image,caption\n" + rows)
    for k in range(4):
        made.picture(tmp_path / f"t{k}.png", 50 + k)
    counts = {"train": 3, "test": 2, "qual_dev": 1, "qual_test": 1}
    everything = {f"A {split} photograph, {n}.": f"{split}_{n:05d}.jpg" for split, count in counts.items() for n in range(count)}
    everything |= {f"Table caption {k}": f"t{k}.png" for k in range(4)}
    loaded: list[str] = []

    def load(name: str, device: Any = None) -> LookupEncoder:
        loaded.append(name)
        return Named(name, everything)

    monkeypatch.setattr(clipmend, "load", load)
    monkeypatch.chdir(tmp_path)
    return loaded


def test_models_against_sets_with_printed_rows(sets: list[str]) -> None:
    both = ["--set", "docci", "--data", "docci", "--set", "table", "--data", "t.csv", "--split", "all", "--at", "1,2"]
    shown = run("good", "--model", "weak-5", *both, "--published", "--trained", "docci", "--trained", "", "--json", "r.json")
    assert sets == ["good", "weak-5"]
    lines = [line for line in shown.splitlines() if "good" in line or "weak-5" in line]
    assert "100.0/100.0 *" in lines[0]
    assert "*" not in lines[1]
    assert "HN-CLIP [published]" in shown
    assert "88.25/86.24" in shown
    assert "HN-CLIP [published, trained on dci]" in shown
    assert "not measured here" in shown
    assert "median rank" not in shown
    assert "median rank" in run("good", "weak-5", *both, "--detail")
    written = json.loads(Path("r.json").read_text())
    assert [(r["model"], r["dataset"]) for r in written] == [
        ("good", "docci"), ("good", "table"), ("weak-5", "docci"), ("weak-5", "table"),
    ]  # fmt: skip
    assert written[0]["trained_on"] == "docci"
    assert "trained_on" not in written[2]
    assert {"dataset": "docci", "method": "GOAL", "trained_on": "docci", "text_to_image": 81.53, "image_to_text": 80.86,
            "source": "arXiv 2608.18521"} in written[0]["published"]  # fmt: skip
    assert written[1]["published"] == []
    assert written[0]["metrics"]["image_retrieval_recall@1"] == 1.0
    assert written[3]["metrics"]["image_retrieval_recall@1"] == 0.0


def test_under_several_models_stand_gallery_and_cut_captions(world: Path, tmp_path: Path) -> None:
    tokenizer = tiny.clip_tokenizer()
    tiny.saved(tmp_path / "short", tiny.clip_model(tokenizer, seed=1), tokenizer, tiny.clip_processor())
    shown = run("scenes", tmp_path / "short", "--set", "scenes", "--data", world)
    data = read_dense("scenes", world)
    digest = data.gallery_digest(data.digests())[:16]
    assert shown.count(f"scenes: gallery of 24 images and 24 captions, sha256 {digest}") == 1
    assert "scenes, scenes: 0 of 24 distinct captions (0.0 %) cut at" in shown
    assert "24 of 24 distinct captions (100.0 %) cut at 40 tokens" in shown


def test_what_training_saw_is_apart(sets: list[str]) -> None:
    one = ["--set", "docci", "--data", "docci", "--split", "all", "--at", "1", "--json", "r.json"]
    shown = run("good", *one, "--train-set", "docci", "--train-data", "docci")
    assert "3 of 7 images seen in training on docci (train) (by id 3, by content 3, by caption 3)" in " ".join(shown.split())
    assert "unseen alone: text → image" in shown
    counts = json.loads(Path("r.json").read_text())["counts"]
    assert counts["unseen/image_retrieval_recall@1"] == counts["unseen_gallery/text_retrieval_recall@1"] == 4
    made.write(Path("ids.txt"), "test_00001\ntrain_00002.jpg\n")
    assert "2 of 7 images seen in training on ids.txt" in run("good", *one, "--train-ids", "ids.txt")
    # In a cross-domain table each model may have its own training set.
    more = ["--train-set", "docci", "--train-data", "docci", "--train-set", "table", "--train-data", "t.csv"]
    shown = run("good", "weak-5", *one, *more)
    assert "unseen alone" in shown
    written = json.loads(Path("r.json").read_text())
    assert [r["overlap"]["seen"] for r in written] == [3, 0]
    assert [r["trained_on"] for r in written] == ["docci", "table"]


def test_a_curve_over_checkpoints_and_its_continuation(sets: list[str]) -> None:
    for name in ("epoch-2", "epoch-10", "notes"):
        (Path("run") / name).mkdir(parents=True)
    one = ["--set", "docci", "--data", "docci", "--split", "all", "--at", "1"]
    shown = run("weak-0", "--epochs", "run", *one)
    assert sets == ["weak-0", "run/epoch-2", "run/epoch-10"]
    assert shown.index("epoch-2 on docci: measured") < shown.index("epoch-10 on docci: measured")
    with Path("run/dense-curve.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "image_retrieval_recall@1"]
    assert [(row["epoch"], round(float(row["value"]), 3)) for row in rows] == [("0", 0.0), ("2", 0.286), ("10", 1.0)]
    assert all(float(row["low"]) <= float(row["value"]) <= float(row["high"]) for row in rows)
    assert Path("run/dense-curve.png").read_bytes().startswith(b"\x89PNG")
    (Path("run") / "epoch-11").mkdir()
    shown = run("--epochs", "run", "--curve", "run", *one)
    assert "epoch-10 on docci: kept from before" in shown
    assert "epoch-11 on docci: measured" in shown
    # Another question, another measurement.
    assert "epoch-2 on docci: measured" in run("--epochs", "run", *one[:-1], "2")


def test_saved_models_of_transformers(world: Path, tmp_path: Path) -> None:
    """Random weights: what counts is that folders are opened, long paragraphs counted as cut, and weights told apart."""
    tokenizer = tiny.clip_tokenizer()
    for epoch in (1, 2):
        parts = (tiny.clip_model(tokenizer, seed=epoch), tokenizer, tiny.clip_processor())
        tiny.saved(tmp_path / "run" / f"epoch-{epoch}", *parts)
    out = tmp_path / "r.json"
    run(tmp_path / "run/epoch-1", "--set", "scenes", "--data", world, "--json", out)
    found = json.loads(out.read_text())["truncation"]
    assert found == {"context_length": 40, "distinct_captions": 24, "truncated": 24, "share": 1.0}
    shown = run("--epochs", tmp_path / "run", "--set", "scenes", "--data", world)
    assert "epoch-2 on scenes: measured" in shown
    tiny.saved(tmp_path / "run/epoch-2", tiny.clip_model(tokenizer, seed=3))  # other weights in the same place
    shown = run("--epochs", tmp_path / "run", "--set", "scenes", "--data", world)
    assert "epoch-1 on scenes: kept from before" in shown
    assert "epoch-2 on scenes: measured" in shown


def test_open_clips_checkpoints_go_by_their_own_name(sets: list[str]) -> None:
    made.write(Path("run/epoch-1/open_clip_config.json"), {})
    run("--epochs", "run", "--set", "table", "--data", "t.csv", "--at", "1", "--curve", "elsewhere")
    assert sets == ["open_clip:local-dir:run/epoch-1"]
    assert Path("elsewhere/dense-curve.csv").is_file()


def test_twins_from_a_file(sets: list[str]) -> None:
    made.write(Path("twins.txt"), "test_00000,test_00001\n")
    shown = run("weak-4", "--set", "docci", "--data", "docci", "--at", "1", "--twins", "twins.txt", "--json", "r.json")
    assert "twins: the whole group" in shown
    found = json.loads(Path("r.json").read_text())["metrics"]
    assert found["twins/group"] == 0.0
    assert found["twins/image_by_text"] == 0.5


def test_missing_images_and_bad_rows_stop_it_or_are_counted(sets: list[str]) -> None:
    Path("t1.png").unlink()
    one = ["--set", "table", "--data", "t.csv", "--at", "1"]
    run("good", *one, fails="1 of 4 images have no file: t1.png")
    assert not sets  # found before any model is loaded
    assert "1 of 4 images have no file" in run("good", *one, "--skip-missing")
    with Path("t.csv").open("a") as file:
        file.write("t9.png,\n")
    said = run("good", *one, "--skip-missing", fails="t.csv: line 6: caption is empty")
    assert "--skip-rows" in said
    assert "1 row left out" in run("good", *one, "--skip-missing", "--skip-rows")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["good"], "give a --data for each --set"),
        (["good", "--data", "t.csv"], "t.csv looks like --set table; the sets are dci, docci, folder, goal,"),
        (["good", "--data", "docci"], "docci looks like --set docci; the sets are"),
        (["good", "--data", "nothing"], "there are 0 --set and 1 --data; the sets are"),
        (["good", "--set", "docci"], "there are 1 --set and 0 --data"),
        (["--set", "docci", "--data", "docci"], "name a MODEL"),
        (["good", "--set", "doccy", "--data", "docci"], "there is no set 'doccy'"),
        (["good", "--set", "docci", "--data", "docci", "--split", "a", "--split", "b"], "one --split for each --set"),
        (["good", "--set", "docci", "--data", "docci", "--option", "caption=both"], "none of these sets takes it"),
        (["good", "--set", "docci", "--data", "docci", "--at", "0"], "--at wants whole numbers"),
        (["good", "--set", "docci", "--data", "docci", "--curve", "x"], "--curve needs --epochs"),
        (["good", "bad", "--epochs", "run", "--set", "docci", "--data", "docci"], "at most one MODEL"),
        (["--epochs", "docci", "--set", "docci", "--data", "docci"], "holds no checkpoints"),
        (["--epochs", "nothing", "--set", "docci", "--data", "docci"], "no such folder"),
        (["--epochs", "docci", "--set", "docci", "--data", "docci", "--json", "x"], "leave out --json"),
        (["good", "--set", "docci", "--data", "docci", "--train-set", "docci"], "give a --train-data"),
        (["good", "--set", "docci", "--data", "docci", "--train-split", "train"], "needs --train-set"),
        (["good", "--set", "docci", "--data", "docci", "--trained", "a", "--trained", "b"], "give a --trained for each model"),
        (["good", "--set", "docci", "--data", "docci", "--detail"], "--detail is for several models"),
        (["good", "--set", "docci", "--data", "docci", "--set", "table", "--data", "t.csv", "--twins", "x"], "about one set"),
        (["good", "--set", "docci", "--data", "nothing"], "no such file or folder"),
        (["good", "bad", "--patch", "p", "--set", "docci", "--data", "docci"], "--patch mends one MODEL"),
        (["good", "--epochs", "run", "--patch", "p", "--set", "docci", "--data", "docci"], "--patch mends one MODEL"),
        (["good", "--strength", "2", "--set", "docci", "--data", "docci"], "--strength needs --patch"),
        (["good", "--gate", "--set", "docci", "--data", "docci"], "--gate needs --patch"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, sets: list[str]) -> None:
    run(*arguments, fails=message)
    assert not sets


def test_a_folder_of_own_images_and_its_table(sets: list[str]) -> None:
    (Path("photos")).mkdir()
    for k in range(4):
        Path(f"t{k}.png").rename(f"photos/t{k}.png")
        made.write(Path(f"photos/t{k}.txt"), f"Table caption {k}\n")
    one = ["--data", "photos", "--at", "1", "--json", "r.json"]
    run("weak-10", "--set", "folder", *one)
    first = json.loads(Path("r.json").read_text())
    assert first["counts"]["image_retrieval_recall@1"] == 4
    Path("t.csv").rename("photos/captions.csv")
    run("weak-10", "--set", "table", *one)
    second = json.loads(Path("r.json").read_text())
    assert second["gallery"] == first["gallery"]
    assert second["metrics"] == first["metrics"]


def test_help_ends_with_an_example() -> None:
    shown = RUN.invoke(app, ["evaluate", "dense", "--help"]).output
    assert "clipmend evaluate dense scenes --set scenes" in shown
