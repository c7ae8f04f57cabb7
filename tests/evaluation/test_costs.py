"""What a gain costs, and what the first hits show: zero-shot classification, minimal pairs, judged hits."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.evaluation.fakes import LookupEncoder
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from clipmend.data.records import Caption
from clipmend.data.scenes.tables import write_scenes
from clipmend.evaluation import (
    LabelledImages,
    OracleJudge,
    PairItem,
    compare,
    evaluate_pairs,
    evaluate_respect,
    evaluate_zeroshot,
    load_judge,
    read_image_pairs,
    read_labelled,
    wilson,
)
from clipmend.evaluation.judge_identity import judge_identity
from clipmend.evaluation.zeroshot import read_class_names, read_templates
from helpers import RandomDualEncoder

AXES = {"cat": [1.0, 0, 0], "dog": [0, 1.0, 0], "bus": [0, 0, 1.0]}


def classifier(template: str = "a photo of a {}.", extra: dict[str, Sequence[float]] | None = None) -> LookupEncoder:
    return LookupEncoder({template.format(name): row for name, row in AXES.items()} | (extra or {}), unit=True)


# Zero-shot


def labelled(labels: Sequence[int], classes: Sequence[str] = tuple(AXES)) -> LabelledImages:
    return LabelledImages([f"{i}.png" for i in range(len(labels))], np.array(labels), list(classes), "made")


def test_top_1_and_mean_per_class() -> None:
    images = torch.tensor([[1.0, 0.2, 0], [0.1, 1, 0], [1, 0.5, 0], [0, 0, 1]])  # cat, dog, cat, bus
    found = evaluate_zeroshot(classifier(), labelled([0, 1, 1, 2]), image_embeddings=images)
    assert found.metrics == {"acc1": 0.75, "mean_per_class_recall": pytest.approx((1 + 0.5 + 1) / 3)}
    assert found.ranks.tolist() == [1, 1, 2, 1]
    assert (found.measures()["acc1"].low, found.measures()["acc1"].high) == wilson(3, 4)
    better = evaluate_zeroshot(classifier(), labelled([0, 1, 1, 2]), image_embeddings=torch.eye(3)[[0, 1, 1, 2]])
    difference = compare(found, better, samples=200).differences["acc1"]
    assert difference.difference == 0.25
    assert difference.low < 0 < 0.25 < difference.high  # of four images, chance could have it either way
    assert found.to_dict()["task"] == "zeroshot_classification"
    assert found.table().row_count == 2


def test_ties_are_wrong_and_templates_are_averaged() -> None:
    same = LookupEncoder({}, default=[1.0, 0, 0], unit=True)
    images = torch.eye(3)
    assert evaluate_zeroshot(same, labelled([0, 1, 2]), image_embeddings=images).metrics["acc1"] == 0
    texts = {"cat": [1.0, 0, 0], "a dog!": [0, 3.0, 0], "a cat!": [0, 1.0, 0], "dog": [0, 0, 1.0]}
    mixed = LookupEncoder(texts)
    classes = labelled([0], ["cat", "dog"])
    found = evaluate_zeroshot(mixed, classes, templates=["{c}", "{a}!"], image_embeddings=torch.tensor([[1.0, 1, 0]]))
    assert found.ranks.tolist() == [1]  # (cat + a cat!) / 2 lies on the image; no template alone does
    with pytest.raises(ValueError, match="no place for the class name"):
        evaluate_zeroshot(mixed, classes, templates=["a photo"])
    with pytest.raises(ValueError, match="class 'cat' is not finite"):
        evaluate_zeroshot(LookupEncoder({}, default=[math.nan, 0, 0]), classes, image_embeddings=torch.ones(1, 3))


def test_top_5_beyond_five_classes() -> None:
    classes = [f"c{i}" for i in range(7)]
    encoder = LookupEncoder({f"a photo of a {c}.": np.eye(7)[i].tolist() for i, c in enumerate(classes)})
    images = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]] * 2)
    found = evaluate_zeroshot(encoder, labelled([2, 1], classes), image_embeddings=images)
    assert (found.metrics["acc1"], found.metrics["acc5"]) == (0, 0.5)


def folders(root: Path, classes: Sequence[str] = ("tree_frog", "bus")) -> Path:
    for k, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for n in range(2):
            Image.new("RGB", (8, 8), (90 * k, 50 * n, 20)).save(root / name / f"{n}.png")
    return root


def test_class_folders(tmp_path: Path) -> None:
    root = folders(tmp_path / "with space")
    (root / "empty").mkdir()
    found = read_labelled(root)
    assert (found.classes, found.labels.tolist()) == (["bus", "tree frog"], [0, 0, 1, 1])
    assert "1 folders without images" in found.notes[0]
    assert read_labelled(root, {"bus": "coach", "tree_frog": "frog"}).classes == ["coach", "frog"]
    assert evaluate_zeroshot(RandomDualEncoder(), found).measures()["acc1"].count == 4
    for names, message in (
        (["one"], "1 class names for 2 classes"),
        ({"bus": "x"}, "1 classes have no name"),
        (["x", "x"], "two classes are called 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            read_labelled(root, names)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one class only"):
        read_labelled(folders(tmp_path / "one", ["cat"]))
    with pytest.raises(ValueError, match="holds no folders with images"):
        read_labelled(root / "bus")
    with pytest.raises(ValueError, match="has no splits"):
        read_labelled(root, split="test")
    with pytest.raises(FileNotFoundError):
        read_labelled(tmp_path / "nowhere")
    (root / "bus" / "0.png").write_bytes(b"not an image")
    with pytest.raises((ValueError, OSError), match=r"0\.png"):
        evaluate_zeroshot(RandomDualEncoder(), read_labelled(root))


def test_saved_data_sets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    pictures = [Image.new("RGB", (8, 8), (40 * k, 20, 20)) for k in range(4)]
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["red_cup", "dog"])})
    made = datasets.Dataset.from_dict({"image": pictures, "label": [0, 1, 1, 0]}, features=features)
    made.save_to_disk(str(tmp_path / "saved"))
    found = read_labelled(tmp_path / "saved")
    assert (found.classes, found.labels.tolist()) == (["red cup", "dog"], [0, 1, 1, 0])
    encoder = RandomDualEncoder()
    direct = evaluate_zeroshot(encoder, LabelledImages(found.images, found.labels, found.classes, content=pictures))
    assert evaluate_zeroshot(encoder, found).ranks.tolist() == direct.ranks.tolist()
    datasets.DatasetDict({"a": made, "b": made}).save_to_disk(str(tmp_path / "splits"))
    assert len(read_labelled(tmp_path / "splits", split="b").images) == 4
    for split, message in ((None, "several splits"), ("c", "no split 'c'")):
        with pytest.raises(ValueError, match=message):
            read_labelled(tmp_path / "splits", split=split)
    made.remove_columns("label").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(ValueError, match="no column of class labels"):
        read_labelled(tmp_path / "bare")


def test_names_and_templates(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"n01": "tench"}))
    assert read_class_names(path) == {"n01": "tench"}
    (tmp_path / "names.txt").write_text("\ufefftench\n\ngoldfish\r\n", encoding="utf-8")
    assert read_class_names(tmp_path / "names.txt") == ["tench", "goldfish"]
    path.write_text('["a {}", "the {c}"]')
    assert read_templates(path) == ["a {}", "the {c}"]
    for text in ("[1]", "{", "[]", '"x"'):
        path.write_text(text)
        for read in (read_class_names, read_templates):
            with pytest.raises(ValueError, match=r"file\.json"):
                read(path)
    (tmp_path / "empty.txt").write_text("\n")
    for read in (read_class_names, read_templates):
        with pytest.raises(ValueError, match=r"empty\.txt"):
            read(tmp_path / "empty.txt")


# Pairs


def test_pairs() -> None:
    texts = {"red": [1.0, 0], "blue": [0, 1.0], "left": [1.0, 1.0], "right": [1.0, 1.0]}
    encoder = LookupEncoder(texts, {"i.png": [1.0, 0.1]}, unit=True)
    items = [
        PairItem("i.png", "red", "blue", "attribute"),
        PairItem("i.png", "blue", "red", "attribute"),
        PairItem("i.png", "left", "right", "relation"),
    ]
    vectors = {"i.png": torch.tensor([1.0, 0.1])}
    found = evaluate_pairs(encoder, items, image_embeddings=vectors)
    assert found.metrics == {"acc": pytest.approx(1 / 3), "acc_attribute": 0.5, "acc_relation": 0.0}
    assert found.ties == 1
    assert "1 of 3 pairs tied" in found.notes[0]
    other = LookupEncoder({**texts, "left": [2.0, 0.1]}, unit=True)
    assert (
        compare(found, evaluate_pairs(other, items, image_embeddings=vectors), samples=9).differences["acc_relation"].difference
        == 1
    )
    skipped = evaluate_pairs(encoder, [*items, PairItem("gone.png", "red", "blue")], image_embeddings=vectors, on_missing="skip")
    assert skipped.measures()["acc"].count == 3
    with pytest.raises(FileNotFoundError):
        evaluate_pairs(encoder, [PairItem("gone.png", "red", "blue")], image_embeddings=vectors)
    with pytest.raises(ValueError, match="no pairs"):
        evaluate_pairs(encoder, [])


def test_pairs_of_scenes(tmp_path: Path) -> None:
    write_scenes(tmp_path / "drawn", count=10, size=32, seed=3)
    items = read_image_pairs(tmp_path / "drawn" / "pairs.csv")
    assert {item.kind for item in items} == {"negation", "attribute", "relation", "order", "count"}
    only = read_image_pairs(tmp_path / "drawn" / "pairs.csv", ["order"])
    assert {item.kind for item in only} == {"order"}
    found = evaluate_pairs(RandomDualEncoder(context_length=40), items, image_root=tmp_path / "drawn")
    assert found.measures()["acc"].count == len(items)
    for text, message in (
        ("kind,positive,contrast\nx,a,b\n", "column image is missing"),
        ("kind,positive,contrast,image\nx,a,a,i\n", "line 2: positive and contrast are the same"),
        ("kind,positive,contrast,image\nx,a,,i\n", "line 2: contrast is empty"),
    ):
        (tmp_path / "pairs.csv").write_text(text)
        with pytest.raises(ValueError, match=message):
            read_image_pairs(tmp_path / "pairs.csv")
    with pytest.raises(ValueError, match="no pair of kind colour"):
        read_image_pairs(tmp_path / "drawn" / "pairs.csv", ["colour"])


# Judged hits

NAMES = ["0.png", "1.png", "2.png", "3.png"]
FACTS = {"0.png": {"cat"}, "1.png": {"cat", "dog"}, "2.png": {"dog"}, "3.png": set[str]()}
QUERY = Caption("a cat, no dog", form="hybrid", asserts=("cat",), denies=("dog",))


def ranked(order: Sequence[int]) -> LookupEncoder:
    """An encoder for which "a cat, no dog" finds the images in this order."""
    row = np.zeros(4)
    row[list(order)] = [4.0, 3.0, 2.0, 1.0]
    return LookupEncoder({QUERY.text: row.tolist()})


def test_respected_and_fulfilled() -> None:
    judge = OracleJudge({**FACTS})
    blind = evaluate_respect(ranked([1, 2, 0, 3]), [QUERY], NAMES, judge, image_embeddings=torch.eye(4), ks=(1, 2, 4))
    assert [blind.metrics[f"respected@{k}"] for k in (1, 2, 4)] == [0, 0, 0.5]
    assert blind.metrics["respected@all"] == 0.5
    wise = evaluate_respect(ranked([0, 3, 1, 2]), [QUERY], NAMES, judge, image_embeddings=torch.eye(4), ks=(1, 2, 4))
    assert [wise.metrics[f"respected@{k}"] for k in (1, 2)] == [1, 1]
    assert [wise.metrics[f"fulfilled@{k}"] for k in (1, 2)] == [1, 0.5]  # the second shows no cat
    assert compare(blind, wise, samples=9).differences["respected@1"].difference == 1
    assert wise.table().row_count == 7
    both = evaluate_respect(ranked([0, 3, 1, 2]), [QUERY, Caption("x")], NAMES, judge, image_embeddings=torch.eye(4), ks=(1, 9))
    assert "1 of 2 queries deny nothing" in both.notes[0]
    assert "beyond the gallery" in both.notes[1]


def test_ties_count_against_the_model_whatever_the_order_of_the_gallery() -> None:
    judge = OracleJudge({**FACTS})
    level = LookupEncoder({QUERY.text: [1.0, 0, 0, 0]}, default=[1.0, 0, 0, 0])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [0, 3, 1, 2]):
        names = [NAMES[i] for i in order]
        found = evaluate_respect(level, [QUERY], names, judge, image_embeddings=torch.ones(4, 4) / 2, ks=(1, 2, 3, 4))
        assert [found.metrics[f"respected@{k}"] for k in (1, 2, 3, 4)] == pytest.approx([0, 0, 1 / 3, 0.5])
    # One clear winner, and the rest level up to rounding.
    rows = torch.tensor([[1.0, 0], [0.6, 0.8], [0.6, 0.8], [0.6, 0.8]])
    rows[3, 0] -= 1e-7
    near = LookupEncoder({QUERY.text: [1.0, 0]}, default=[1.0, 0])
    names = [NAMES[i] for i in (0, 3, 1, 2)]
    found = evaluate_respect(near, [QUERY], names, judge, image_embeddings=rows, ks=(1, 2, 3))
    assert [found.metrics[f"respected@{k}"] for k in (1, 2, 3)] == pytest.approx([1, 1 / 2, 1 / 3])


def test_first_hits_like_three_lines_of_numpy() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        count = int(rng.integers(2, 30))
        names = [f"{k}.png" for k in range(count)]
        facts = {name: {"cat", "dog"} if rng.random() < 0.3 else {"cat"} if rng.random() < 0.5 else {"dog"} for name in names}
        scores = rng.integers(0, 4, count) / 4
        images = torch.tensor(np.stack([scores, np.sqrt(1 - scores**2)], 1), dtype=torch.float32)
        query = Caption("q", asserts=("cat",), denies=("dog",))
        k = int(rng.integers(1, count + 1))
        found = evaluate_respect(
            LookupEncoder({"q": [1.0, 0.0]}), [query], names, OracleJudge(facts), image_embeddings=images, ks=(k,)
        )  # fmt: skip
        for measure, good in (
            ("respected", [float("dog" not in facts[n]) for n in names]), ("fulfilled", [float(facts[n] == {"cat"}) for n in names])
        ):  # fmt: skip
            worst = sorted(zip(-scores, good, strict=True))[:k]
            assert found.metrics[f"{measure}@{k}"] == pytest.approx(np.mean([g for _, g in worst]))


class Detector:
    """Sees dogs with .7, is not sure of cats, and notes what it was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, tuple[str, ...]]] = []

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        self.shown.append((Path(image_path).name, tuple(things)))
        there = FACTS[Path(image_path).name]
        return [math.nan if thing == "cat" else 0.7 if thing in there else 0.1 for thing in things]


def test_any_judge(tmp_path: Path) -> None:
    for name in NAMES:
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    judge = Detector()
    options: dict[str, Any] = {"image_embeddings": torch.eye(4), "image_root": tmp_path, "ks": (1, 2)}
    found = evaluate_respect(ranked([2, 0, 1, 3]), [QUERY, QUERY], NAMES, judge, **options)
    assert [shown[0] for shown in judge.shown] == ["0.png", "2.png"]  # once each, and only what was found
    assert found.metrics == {"respected@1": 0, "respected@2": 0.5, "fulfilled@1": 0.0, "fulfilled@2": 0.0}
    assert evaluate_respect(ranked([2, 0, 1, 3]), [QUERY], NAMES, judge, threshold=0.8, **options).metrics["respected@1"] == 1


class Wrong:
    def __init__(self, answer: list[float]) -> None:
        self.answer = answer

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [([0.5], "gave 1 numbers for 2 things"), ([0.1, 3.0], "no probability"), ([math.nan] * 2, "could tell of none")],
)
def test_wrong_judges(answer: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_respect(ranked([0, 1, 2, 3]), [QUERY], NAMES, Wrong(answer), image_embeddings=torch.eye(4))


def test_oracle_knows_what_it_knows() -> None:
    judge = OracleJudge({"a/0.png": {"cat", "red cat"}, "1.png": {"dog"}})
    said = judge.judge(Path("elsewhere/0.png"), ["cat", "red cat", "blue cat", "dog", "zebra"])
    assert said[:4] == [1, 1, 0, 0]
    assert math.isnan(said[4])
    assert all(map(math.isnan, judge.judge(Path("9.png"), ["cat"])))
    strict = OracleJudge({"0.png": {"cat"}}, vocabulary=["cat"])
    assert math.isnan(strict.judge(Path("0.png"), ["red cat"])[0])
    with pytest.raises(ValueError, match="same file name"):
        OracleJudge({"a/0.png": set(), "b/0.png": set()})
    queries = [Caption("no cat", form="negative", denies=("cat",))]
    encoder = LookupEncoder({"no cat": [1.0, 0]})
    with pytest.raises(ValueError, match="for k from 1 to 2"):
        evaluate_respect(encoder, queries, ["0.png", "1.png"], judge, image_embeddings=torch.eye(2), ks=(0,))
    with pytest.raises(ValueError, match="no query denies anything"):
        evaluate_respect(encoder, [Caption("x")], ["0.png"], judge)


def test_judges_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_scenes(tmp_path / "drawn", count=4, size=32, seed=3)
    judge = load_judge(str(tmp_path / "drawn" / "scenes.jsonl"))
    assert isinstance(judge, OracleJudge)
    colours = [thing for facts in judge.facts.values() for thing in facts if thing.startswith("red ")]
    assert colours == [] or all(map(math.isfinite, judge.judge(Path("000000.png"), colours)))
    (tmp_path / "presence.csv").write_text("image,present\n0.png,cat;dog\n1.png,\n")
    assert load_judge(str(tmp_path / "presence.csv")).judge(Path("1.png"), ["cat"]) == [0.0]
    (tmp_path / "my_detector.py").write_text(
        "class Detector:\n    def judge(self, path, things):\n        return [0.0] * len(things)\nready = Detector()\nnothing = 3\n"
        "def other():\n    return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("Detector", "ready"):
        assert list(load_judge(f"my_detector:{name}").judge(Path("x"), ["cat"])) == [0.0]
    for name, message in (
        ("my_detector:gone", "has no attribute"),
        ("no_such:x", "No module"),
        ("my_detector:other", "no method judge"),
    ):
        with pytest.raises(ValueError, match=message):
            load_judge(name)
    with pytest.raises(OSError, match="nowhere"):
        load_judge(str(tmp_path / "nowhere.csv"))


# Command line


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = tmp_path / "drawn"
    write_scenes(drawn, count=8, size=32, seed=5, split="test")
    encoder = RandomDualEncoder(context_length=60)
    monkeypatch.setattr(clipmend, "load", lambda name, device=None, dtype=None: encoder)
    runner = CliRunner(env={"COLUMNS": "160", "TERM": "dumb"})

    def run(*arguments: Any) -> dict[str, Any]:
        out = tmp_path / "out.json"
        result = runner.invoke(app, ["evaluate", *map(str, arguments), "--json", str(out)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        content = json.loads(out.read_text())
        assert isinstance(content, dict)
        return content

    assert "acc_order" in run("pairs", "m", "--data", drawn / "pairs.csv")["metrics"]
    assert set(run("pairs", "m", "--data", drawn / "pairs.csv", "--kinds", "order, count")["metrics"]) == {
        "acc", "acc_order", "acc_count"
    }  # fmt: skip
    exclusion = run("respect", "m", "--data", drawn / "exclusion.csv", "--judge", drawn / "scenes.jsonl", "--image-root", drawn)
    assert 0 <= exclusion["metrics"]["respected@5"] <= 1
    assert exclusion["unjudged"] == 0
    negated = run("respect", "m", "--data", drawn / "negated_retrieval.csv", "--judge", drawn / "scenes.jsonl", "--at", "1,3")
    assert negated["counts"]["respected@3"] == 32
    with (drawn / "negated_retrieval.csv").open() as file:  # the same texts without the parse: the rule parser reads them
        rows = [row[:2] for row in csv.reader(file)]
    with (drawn / "bare.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    bare = run("respect", "m", "--data", drawn / "bare.csv", "--judge", drawn / "scenes.jsonl", "--at", "1,3")
    assert bare["metrics"]["respected@3"] == pytest.approx(negated["metrics"]["respected@3"])
    root = folders(tmp_path / "classes")
    (tmp_path / "t.txt").write_text("{c}\nan image of {a}\n")
    found = run("zeroshot", "m", "--data", root, "--templates", tmp_path / "t.txt")
    assert found["templates"] == 2
    assert found["counts"]["acc1"] == 4
    with pytest.raises(ValueError, match="name no images"):
        run("respect", "m", "--data", drawn / "exclusion.csv", "--judge", f"{__name__}:Detector")
    for command in ("zeroshot", "pairs", "respect"):
        text = runner.invoke(app, ["evaluate", command, "--help"]).output
        assert f"clipmend evaluate {command}" in text


DETECTOR = """
import torch
from pathlib import Path

class Detector:
    threshold = 0.5
    classes = {"a": ["cat", "dog"]}

    def __init__(self, seed=0, root=Path("x")):
        torch.manual_seed(seed)
        self.model, self.root, self.cache = torch.nn.Linear(2, 2), root, object()

    def judge(self, path, things):
        return [0.0] * len(things)

class Named(Detector):
    fingerprint = "owner/model, revision 1"

class Wrong(Detector):
    fingerprint = 3
"""


def test_what_tells_one_judge_from_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file, its settings, its weights, or what it says itself; another of the same name is another."""
    monkeypatch.syspath_prepend(str(tmp_path))
    file = tmp_path / "identified_detector.py"
    file.write_text(DETECTOR)
    name = "identified_detector:Detector"
    module = sys.modules[type(load_judge(name)).__module__]
    one, same, other = (judge_identity(name, module.Detector(seed)) for seed in (0, 0, 1))
    assert one == same == json.loads(json.dumps(one))
    assert one != other, "other weights"
    assert one != judge_identity(name, module.Detector(0, Path("y"))), "another setting"
    monkeypatch.setattr(module.Detector, "classes", {"a": ["cat"]})
    assert one != judge_identity(name, module.Detector(0)), "another setting of the class"
    monkeypatch.undo()
    named = judge_identity("identified_detector:Named", module.Named(0))
    assert named == judge_identity("identified_detector:Named", module.Named(1))
    file.write_text(DETECTOR + "# changed")
    assert one != judge_identity(name, module.Detector(0)), "another file"
    assert named == judge_identity("identified_detector:Named", module.Named(0))
    with pytest.raises(ValueError, match="its fingerprint is 3"):
        judge_identity(name, module.Wrong())


def test_a_judge_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "detector_of_here.py").write_text(DETECTOR)
    (tmp_path / "lacks_something.py").write_text("import surely_not_installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    before = list(sys.path)
    assert list(load_judge("detector_of_here:Detector").judge(Path("x"), ["cat"])) == [0.0]
    for module in ("lacks_something", "nowhere_at_all"):
        with pytest.raises(ValueError, match=r"No module named '(surely_not_installed|nowhere_at_all)'"):
            load_judge(f"{module}:Detector")
    assert sys.path == before
