import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.evaluation.fakes import LookupEncoder
from typer.testing import CliRunner

import clipmend
import clipmend.negation
from clipmend.cli.app import app, main

RUN = CliRunner(env={"COLUMNS": "160", "TERM": "dumb"})
KINDS = ("cat", "dog")


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images (three cats, three dogs, each with an axis of its own) and every table about them."""
    root = tmp_path / "test data"
    (root / "images").mkdir(parents=True)
    scenes, choice, plain, negated = [], [], [], []
    for i in range(6):
        kind, other = KINDS[i % 2], KINDS[1 - i % 2]
        name = f"images/{i}.png"
        Image.new("RGB", (8, 8)).save(root / name)
        scenes.append({"image": name, "objects": [{"kind": kind}]})
        parse = [{"asserts": [kind], "denies": []}, {"asserts": [], "denies": [kind]}]
        choice.append([name, 0, f"a {kind}", f"no {kind}", "positive", json.dumps(parse)])
        parse = [{"asserts": [], "denies": [other]}, {"asserts": [], "denies": [kind]}]
        choice.append([name, 0, f"no {other}", f"no {kind}", "negative", json.dumps(parse)])
        plain.append([name, repr([f"a {kind}, {i}"]), json.dumps([{"asserts": [kind]}])])
        negated.append([name, repr([f"a {kind}, {i}, no {other}"]), json.dumps([{"asserts": [kind], "denies": [other]}])])
    (root / "scenes.jsonl").write_text("\n".join(map(json.dumps, scenes)))
    options = ["image_path", "correct_answer", "caption_0", "caption_1", "correct_answer_template", "parse"]
    write_csv(root / "choice.csv", options, choice)
    write_csv(root / "retrieval.csv", ["filepath", "captions", "parse"], plain)
    write_csv(root / "negated_retrieval.csv", ["filepath", "captions", "parse"], negated)
    write_csv(root / "exclusion.csv", ["query", "absent", "wording"], [[f"no {k}", k, "no"] for k in KINDS])
    write_csv(root / "pairs.csv", ["kind", "positive", "contrast"], [["negation", f"a {k}", f"no {k}"] for k in KINDS])
    return root


def vector(text: str, mended: bool) -> list[float]:
    """Axis 0 cat, axis 1 dog, axes 2 to 7 one an image; "no X" lies with X unless mended."""
    row = np.zeros(8)
    for part in text.split(", "):
        if part.isdigit():
            row[2 + int(part)] += 1
        for k, kind in enumerate(KINDS):
            if kind in part:
                row[k] += (-1 if mended else 1) if part.startswith("no") else 1
    return row.tolist()


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """``clipmend.load`` and ``PeakPatch.from_pretrained`` give lookup encoders; what they were asked for is listed."""
    asked: list[tuple[Any, ...]] = []
    texts = {f"a {k}": None for k in KINDS} | {f"no {k}": None for k in KINDS} | {f"a photo of a {k}": None for k in KINDS}
    texts |= {f"a {KINDS[i % 2]}, {i}": None for i in range(6)} | {"a photo": None}
    texts |= {f"a {KINDS[i % 2]}, {i}, no {KINDS[1 - i % 2]}": None for i in range(6)}

    def encoder(mended: bool) -> LookupEncoder:
        images = {f"{i}.png": vector(f"a {KINDS[i % 2]}, {i}", False) for i in range(6)}
        rows = {t: vector(t, mended) if t != "a photo" else [1.0] * 8 for t in texts}
        return LookupEncoder(rows, images, name="fake + patch" if mended else "fake", unit=True)

    class Patch:
        @classmethod
        def from_pretrained(cls, name: str) -> "Patch":
            asked.append(("patch", name))
            return cls()

        def apply(self, plain: Any, strength: float = 1.0, gate: bool | None = None) -> LookupEncoder:
            asked.append(("apply", plain.name, strength))
            return encoder(strength > 0)

    def load(name: str, device: str | None = None, dtype: Any = None) -> LookupEncoder:
        asked.append(("load", name, device))
        return encoder(False)

    monkeypatch.setattr(clipmend, "load", load, raising=False)
    monkeypatch.setattr(clipmend.negation, "PeakPatch", Patch, raising=False)
    return asked


def run(*arguments: Any) -> str:
    result = RUN.invoke(app, ["evaluate", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_choice(folder: Path, models: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "out" / "choice.json"
    text = run("choice", "fake", "--data", folder / "choice.csv", "--json", out)
    assert "acc_negative" in text
    content = json.loads(out.read_text())
    assert content["metrics"] == {"acc": 0.0, "acc_affirmative": 0.0, "acc_negative": 0.0}  # "a cat" ties with "no cat"
    assert content["counts"]["acc"] == 12
    assert content["model"] == "fake"
    assert models == [("load", "fake", None)]


def test_choice_with_a_patch_shows_the_difference(folder: Path, models: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "choice.json"
    arguments = ["--data", folder / "choice.csv", "--image-root", folder, "--patch", "my-patch", "--json", out, "--device", "cpu"]
    text = run("choice", "fake", *arguments)
    heading = next(line for line in text.splitlines() if "backbone" in line)
    assert "mended" in heading
    assert "difference" in heading
    content = json.loads(out.read_text())
    assert content["differences"]["acc"] == 1.0
    assert content["difference_intervals"]["acc"] == [pytest.approx(0.2), 1.0]  # of few questions
    assert (content["second"]["model"], content["second"]["pretrained"]) == ("fake", "my-patch")
    assert models == [("patch", "my-patch"), ("load", "fake", "cpu"), ("apply", "fake", 1.0)]
    run("choice", "fake", *arguments, "--strength", "0", "--no-compare-backbone")
    alone = json.loads(out.read_text())
    assert alone["metrics"]["acc"] == 0.0
    assert alone["pretrained"] == "my-patch (strength 0)"


def test_retrieval(folder: Path, models: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    text = run(
        "retrieval", "fake", "--data", folder / "retrieval.csv", "--at", "1,3,50", "--patch", "p", "--rerank", 2, "--json", out
    )
    content = json.loads(out.read_text())["second"]
    assert content["metrics"]["image_retrieval_recall@1"] == 1.0
    assert "image_retrieval_recall@50" not in content["metrics"]
    assert "R@50 left out" in " ".join(text.split())


def test_exclusion_finds_the_annotation_beside(folder: Path, models: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "e.json"
    run("exclusion", "fake", "--data", folder / "exclusion.csv", "--patch", "p", "--json", out, "--over", "kinds")
    content = json.loads(out.read_text())
    assert content["first"]["metrics"]["auroc"] == 0.0
    assert content["second"]["metrics"]["auroc"] == 1.0
    assert content["resampled_over"] == "kinds"
    (folder / "scenes.jsonl").rename(tmp_path / "labels.jsonl")
    with pytest.raises(ValueError, match="--presence"):
        run("exclusion", "fake", "--data", folder / "exclusion.csv")
    arguments = ["--presence", tmp_path / "labels.jsonl", "--image-root", folder]
    assert "auroc/kind=cat" in run("exclusion", "fake", "--data", folder / "exclusion.csv", *arguments, "--detail")


def test_all_with_baselines(folder: Path, models: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "all.json"
    text = run("all", "fake", "--data", folder, "--patch", "p", "--baselines", folder, "--json", out)
    assert "query arithmetic" in " ".join(text.split())
    content = json.loads(out.read_text())
    assert set(content) == {
        "backbone",
        "query arithmetic",
        "rule-based projection",
        "negation direction",
        "negation direction, projected",
        "mended",
        "differences",
    }
    assert set(content["mended"]) == {"choice", "retrieval", "negated_retrieval", "exclusion", "presence"}
    assert content["query arithmetic"]["exclusion"]["metrics"]["auroc"] == 1.0
    assert content["query arithmetic"]["exclusion"]["pretrained"].startswith("weight ")
    assert content["differences"]["exclusion"]["differences"]["auroc"] == 1.0
    assert content["differences"]["retrieval"]["differences"]["image_retrieval_recall@1"] == 0.0


def test_all_without_patch_shows_every_table(folder: Path, models: list[Any]) -> None:
    (folder / "scenes.jsonl").unlink()
    text = run("all", "fake", "--data", folder)
    assert "Multiple choice" in text
    assert "Exclusion" not in text


def test_skip_missing(folder: Path, models: list[Any]) -> None:
    (folder / "images" / "3.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 6 images \(images/3\.png\) not found under"):
        run("choice", "fake", "--data", folder / "choice.csv")
    assert "2 of 12 questions skipped" in " ".join(run("choice", "fake", "--data", folder / "choice.csv", "--skip-missing").split())


def test_mistakes_are_one_line(
    folder: Path, models: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "choice.csv").write_text("image_path,correct_answer\nx,0\n")
    for arguments, message in (
        (["choice", "fake", "--data", str(folder / "choice.csv")], "column correct_answer_template"),
        (["choice", "fake", "--data", str(folder / "none.csv")], "No such file"),
        (["retrieval", "fake", "--data", str(folder / "retrieval.csv"), "--at", "five"], "--at wants whole numbers"),
        (["all", "fake", "--data", str(folder / "images")], "is there; make them with"),
        (["exclusion", "fake", "--data", str(folder / "exclusion.csv"), "--over", "queries"], "images or kinds"),
        (["choice", "fake", "--data", "x", "--no-scn", "--strength", "2"], "--strength and --no-scn need --patch"),
        (["retrieval", "fake", "--data", "x", "--rerank", "5"], "--rerank needs --patch"),
        (["exclusion", "fake", "--data", "x", "--scn"], "--scn needs --patch"),
        (["all", "fake", "--data", "x", "--no-compare-backbone"], "--no-compare-backbone needs --patch"),
    ):
        monkeypatch.setattr(sys, "argv", ["clipmend", "evaluate", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 1
        shown = capsys.readouterr().err
        assert shown.startswith("error: ")
        assert shown.count("\n") == 1
        assert message in " ".join(shown.split())


def test_a_patch_without_a_score_correction(folder: Path, models: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LookupEncoder, "corrects_scores", property(lambda encoder: False))
    for arguments, option in (
        (["retrieval", "fake", "--data", folder / "retrieval.csv", "--rerank", 2], "--rerank"),
        (["exclusion", "fake", "--data", folder / "exclusion.csv", "--scn"], "--scn"),
        (["all", "fake", "--data", folder, "--rerank", 2], "--rerank"),
    ):
        with pytest.raises(ValueError, match=f"{option} asks for a score correction, and this patch has none"):
            run(*arguments, "--patch", "p")


def test_only_what_corrects_scores_is_put_in_order_again(
    folder: Path, models: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LookupEncoder, "corrects_scores", property(lambda encoder: "patch" in encoder.name))
    out = tmp_path / "r.json"
    run("retrieval", "fake", "--data", folder / "retrieval.csv", "--patch", "p", "--rerank", 2, "--json", out)
    content = json.loads(out.read_text())
    told = [any("put in order" in note for note in content[which]["notes"]) for which in ("first", "second")]
    assert told == [False, True]


@pytest.mark.parametrize("command", ["choice", "retrieval", "exclusion", "all"])
def test_help_has_an_example(command: str) -> None:
    text = run(command, "--help")
    assert "Example" in text
    assert f"clipmend evaluate {command}" in text


@pytest.mark.parametrize("how", ["patch", "baselines", "plain"])
def test_wordings_are_folded_unless_asked_for(folder: Path, models: list[Any], tmp_path: Path, how: str) -> None:
    queries = [[f"no {k}", k, wording] for k in KINDS for wording in ("no", "without", "zero", "minus")]
    write_csv(folder / "exclusion.csv", ["query", "absent", "wording"], queries)
    out = tmp_path / "all.json"
    options = {"patch": ["--patch", "p"], "baselines": ["--patch", "p", "--baselines", folder], "plain": []}[how]
    folded = run("all", "fake", "--data", folder, *options, "--json", out)
    assert "wording=" not in folded
    one_line = " ".join(folded.split())
    assert "4 wordings apart" in one_line
    assert "--wordings shows each" in one_line
    side = "mended" if how != "plain" else "backbone"
    assert "auroc/wording=zero" in json.loads(out.read_text())[side]["exclusion"]["metrics"]
    shown = run("all", "fake", "--data", folder, *options, "--wordings")
    assert "auroc/wording=zero" in shown
    assert "wordings apart" not in " ".join(shown.split())
    assert "auroc/wording=zero" in run("exclusion", "fake", "--data", folder / "exclusion.csv")
