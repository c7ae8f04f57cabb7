"""What preflight counts, on data in which it is known."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from clipmend.cli.app import app
from clipmend.data import Caption, NegationData
from clipmend.data.preflight import CHECKS, long_texts, preflight
from clipmend.data.readers import Record, read
from data.readers.made import MCQ_HEADER, MCQ_ROWS, coco, encoded, picture, shard, tar, voc, write
from helpers import RandomDualEncoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table with one of each trouble."""
    picture(tmp_path / "a.png")
    picture(tmp_path / "b.png", (1, 2, 3))
    (tmp_path / "copy of b.png").write_bytes((tmp_path / "b.png").read_bytes())
    (tmp_path / "cut.jpg").write_bytes(encoded()[:200])
    rows = [
        ("a.png", "A cat"),
        ("a.png", "A mat"),
        ("b.png", "A cat"),  # shared with a.png
        ("copy of b.png", "word " * 40),  # too long for 20 tokens
        ("cut.jpg", "A hat"),
        ("gone.jpg", "A bat"),
        ("gone.jpg", "A rat"),
        ("a.png", "A cat"),  # the first row again
        ("a.png", " "),
        ("a.png", "too", "many"),
    ]
    write(tmp_path / "pairs.csv", "image,caption\n" + "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows))
    return tmp_path


EXPECTED = {
    "rows_unusable": 1,
    "rows_duplicated": 1,
    "images_missing": 1,
    "images_unreadable": 1,
    "images_duplicated": 1,
    "captions_empty": 1,
    "captions_duplicated": 0,
    "captions_shared": 1,
    "captions_truncated": 1,
}


def test_every_trouble_is_counted_once(folder: Path) -> None:
    source = read(folder / "pairs.csv", image_root=folder, on_error="skip")
    report = preflight(source, RandomDualEncoder(context_length=20))
    assert {name: finding.count for name, finding in report.findings.items()} == EXPECTED
    assert list(report.findings) == list(CHECKS)
    assert (report.records, report.images, report.captions) == (8, 5, 8)
    assert not report.ok
    examples = {name: finding.examples for name, finding in report.findings.items()}
    assert examples["images_missing"] == [f"gone.jpg ({folder / 'pairs.csv'}: line 7)"]
    assert examples["images_duplicated"] == ["copy of b.png is b.png"]
    assert "cut.jpg: is truncated" in examples["images_unreadable"][0]
    assert "line 10: caption is empty" in examples["captions_empty"][0]
    assert "line 11: 3 fields" in examples["rows_unusable"][0]
    assert "line 5: 'word word" in examples["captions_truncated"][0]


@pytest.mark.parametrize("workers", [1, 7])
def test_the_report_does_not_depend_on_the_threads(folder: Path, workers: int) -> None:
    reports = [preflight(read(folder / "pairs.csv", image_root=folder, on_error="skip"), workers=w).to_dict() for w in (2, workers)]
    assert reports[0] == reports[1]
    assert "captions_truncated" not in reports[0]["findings"], "no encoder, no count"


def test_without_decoding_only_the_files_are_looked_for(folder: Path) -> None:
    report = preflight(read(folder / "pairs.csv", on_error="skip"), image_root=folder, decode=False)
    assert "images_unreadable" not in report.findings
    assert "images_duplicated" not in report.findings
    assert report.findings["images_missing"].count == 1


def test_a_limit_is_said(folder: Path) -> None:
    report = preflight(read(folder / "pairs.csv", image_root=folder), limit=3)
    assert (report.records, report.complete, report.ok) == (3, False, True)
    assert "the first" in str(report.table().title)
    with pytest.raises(ValueError, match="limit must be at least 1"):
        preflight([], limit=0)


def test_questions_share_options_but_hold_none_twice(tmp_path: Path) -> None:
    picture(tmp_path / "000000000001.jpg")
    picture(tmp_path / "000000000002.jpg", (0, 0, 0))
    name = "COCO_val_mcq_llama3.1_rephrased.csv"
    good = preflight(read(write(tmp_path / name, MCQ_HEADER + MCQ_ROWS), image_root=tmp_path))
    assert good.ok
    assert (good.questions, good.images, good.captions) == (3, 2, 12)
    assert "its place must not count" in good.notes[0]
    twice = MCQ_ROWS.replace("No dog is there", "A dog")
    bad = preflight(read(write(tmp_path / name, MCQ_HEADER + twice), image_root=tmp_path))
    assert bad.findings["captions_duplicated"].count == 1


def test_sound_data_of_every_kind_is_ok(tmp_path: Path) -> None:
    assert preflight(read(coco(tmp_path / "coco"))).ok
    assert preflight(read(voc(tmp_path / "voc"), split="test")).ok
    report = preflight(read(shard(tmp_path / "a.tar")))
    assert report.ok
    assert report.images == 3


def test_images_held_by_the_data(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar",
        {"1.jpg": encoded(), "1.txt": b"a", "2.jpg": encoded(), "2.txt": b"b", "3.jpg": encoded()[:150], "3.txt": b"c"},
    )
    report = preflight(read(path))
    assert report.findings["images_duplicated"].examples == ["a.tar/2.jpg is a.tar/1.jpg"]
    assert "a.tar: 3: a.tar/3.jpg: is truncated" in report.findings["images_unreadable"].examples[0]


def test_data_for_a_fit(tmp_path: Path) -> None:
    images = [Image.new("RGB", (4, 4), "red"), str(tmp_path / "gone.png"), Image.new("RGB", (4, 4), "red")]
    captions = [Caption("a red thing", 0), Caption(" ", 0), Caption("no car", -1, "negative", denies=("car",))]
    report = preflight(NegationData(images, [frozenset()] * 3, captions, name="mine"))
    assert report.source == "mine"
    counts = {name: finding.count for name, finding in report.findings.items() if finding.count}
    assert counts == {"images_missing": 1, "images_duplicated": 1, "captions_empty": 1}


def test_long_texts_by_tokenizer_and_by_passes() -> None:
    class Tower:
        def tokenise(self, texts: list[str]) -> object:
            return type("T", (), {"long": [k for k, text in enumerate(texts) if len(text.split()) > 18]})()

    texts = ["a " * 30, "b", "c", "d " * 19, "e " * 18, "f", "g " * 50]
    encoder = RandomDualEncoder(context_length=20)
    assert long_texts(encoder, texts) == [0, 3, 6]
    encoder.tower = Tower()  # type: ignore[attr-defined]
    assert long_texts(encoder, texts) == [0, 3, 6]
    assert long_texts(RandomDualEncoder(context_length=20), ["a"]) == []


def test_names_that_no_terminal_can_show(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 [red].png")
    report = preflight([Record(name, ("a",), where="here"), Record("b\n.png", ("b",), where="there")], image_root=tmp_path)
    assert report.findings["images_missing"].examples == [r"caf\xe9 [red].png (here)", r"b\n.png (there)"]
    report.write_json(tmp_path / "deep" / "report.json")
    assert json.loads((tmp_path / "deep" / "report.json").read_text())["findings"]["images_missing"]["count"] == 2
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["report.json"]


# The command

runner = CliRunner()


def test_the_command_prints_and_writes_the_report(folder: Path) -> None:
    out = folder / "report.json"
    arguments = ["data", "check", str(folder / "pairs.csv"), "--image-root", str(folder), "-o", str(out)]
    result = runner.invoke(app, arguments, env={"COLUMNS": "140"})
    assert result.exit_code == 0, result.output
    assert "8 rows, 5 images, 8 captions" in result.output
    assert "copy of b.png is b.png" in result.output
    counts = {name: finding["count"] for name, finding in json.loads(out.read_text())["findings"].items()}
    assert counts == {name: count for name, count in EXPECTED.items() if name != "captions_truncated"}
    assert runner.invoke(app, [*arguments, "--strict"]).exit_code == 1


def test_the_command_passes_options_to_the_reader(tmp_path: Path) -> None:
    voc(tmp_path)
    good = runner.invoke(app, ["data", "check", f"voc:{tmp_path}", "--split", "test", "--option", "difficult=present", "--strict"])
    assert good.exit_code == 0, good.output
    assert "taken as present" in good.output
    for wrong, message in (("hard=1", "takes no hard"), ("difficult", "write it as NAME=VALUE")):
        result = runner.invoke(app, ["data", "check", f"voc:{tmp_path}", "--option", wrong])
        assert isinstance(result.exception, ValueError)
        assert message in str(result.exception)


def test_the_command_has_an_example() -> None:
    result = runner.invoke(app, ["data", "check", "--help"], env={"COLUMNS": "120", "TERM": "dumb"})
    assert "Example" in result.output
    assert "clipmend data check coco:coco/" in result.output


def test_a_folder_of_photographs_alone(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    (tmp_path / "cut.jpg").write_bytes(encoded()[:200])
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())
    report = preflight(read(tmp_path, on_error="skip"))
    counts = {name: finding.count for name, finding in report.findings.items() if finding.count}
    assert counts == {"images_unreadable": 1, "images_duplicated": 1}
    assert (report.records, report.images, report.captions) == (3, 3, 0)


@pytest.mark.parametrize("maker", ["scenes", "negate"])
def test_our_own_captions_are_sound(tmp_path: Path, maker: str) -> None:
    run = CliRunner()
    assert run.invoke(app, ["scenes", str(tmp_path / "w"), "--count", "12", "--size", "16", "--seed", "3"]).exit_code == 0
    table = tmp_path / "w" / "captions.csv"
    if maker == "negate":
        assert run.invoke(app, ["data", "negate", str(tmp_path / "w"), "-o", str(tmp_path / "n")]).exit_code == 0
        table = tmp_path / "n" / "captions.csv"
    result = run.invoke(app, ["data", "check", str(table), "--strict"])
    assert result.exit_code == 0, result.output
    assert "captions are about no image" in result.output
    report = preflight(read(table), RandomDualEncoder(context_length=4))
    assert report.images == 12
    rows = list(read(table))
    assert any(not record.image for record in rows)
    long = {record.captions[0] for record in rows if len(record.captions[0].split()) > 2}
    assert report.findings["captions_truncated"].count == len(long), "each text once, with an image or without"


def test_captions_about_no_image_are_no_duplicates(tmp_path: Path) -> None:
    picture(tmp_path / "a.png")
    rows = "".join(f'{image},no cat,negative,no,[],"[""cat""]",true\n' for image in ("a.png", "", "", "a.png"))
    write(tmp_path / "captions.csv", "image,caption,form,wording,asserts,denies,complete\n" + rows)
    report = preflight(read(tmp_path / "captions.csv"))
    assert {name: finding.count for name, finding in report.findings.items() if finding.count} == {"rows_duplicated": 1}
    assert report.records == 4


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """Records of somebody's own, with what neither a file nor a report can hold."""
    records = [Record("\ud800.jpg", ("a \udfff",)), Record("a\0.jpg", ("b",)), Record("x" * 5000, ("c",))]
    report = preflight(records, image_root=tmp_path)
    assert report.findings["images_missing"].count == 3
    report.write_json(tmp_path / "r.json")
    from rich.console import Console

    with open(tmp_path / "out.txt", "w", encoding="utf-8") as file:
        Console(file=file).print(report.table())
