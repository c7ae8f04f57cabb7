"""``clipmend fit`` from the outside: mistakes are one clear line, and a small fit ends in a patch that works."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import clipmend
from clipmend.cli.app import app
from clipmend.data.scenes.tables import write_scenes
from clipmend.negation import PeakPatch
from clipmend.search import ImageIndex, ImageIndexError
from helpers import RandomDualEncoder

runner = CliRunner()
SMALL = {
    "peak": 2, "anchor": 1, "hidden": 16, "heads": 4, "context": 8, "steps": 2, "batch_size": 8, "question_batch": 4,
    "text_only_sets": 96, "text_only_batch": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("fit") / "text-only", 3, 16, 1).folder


@pytest.fixture(autouse=True)
def encoder(monkeypatch: pytest.MonkeyPatch) -> RandomDualEncoder:
    encoder = RandomDualEncoder()
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: encoder)
    return encoder


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(SMALL), encoding="utf-8")
    return path


def run(*arguments: object) -> str:
    result = runner.invoke(app, ["fit", "random", *map(str, arguments)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    """The error, which must be one that the command line shows as a line."""
    result = runner.invoke(app, ["fit", "random", *map(str, arguments)])
    assert isinstance(result.exception, ValueError | OSError), result.exception
    return str(result.exception)


def test_a_fit_leaves_a_patch_and_no_work(world: Path, config: Path, tmp_path: Path, encoder: RandomDualEncoder) -> None:
    out = tmp_path / "a b" / "pätch"
    output = run("--data", world, "--config", config, "--steps", 1, "-o", out)
    assert "kept the state of step 1 of 1" in output
    patch = PeakPatch.from_pretrained(out)
    assert patch.apply(encoder).encode_texts(["a cat but no dog"]).shape == (1, 16)
    assert [p.name for p in out.parent.iterdir()] == [out.name]


def test_lines_say_what_their_numbers_are(config: Path, tmp_path: Path) -> None:
    larger = write_scenes(tmp_path / "larger", 30, 16, 1).folder
    output = run("--data", larger, "--images-only", "--config", config, "--steps", 1, "-o", tmp_path / "patch")
    legend, first = output.splitlines()[:2]
    assert legend.startswith("choice_ecn: share of held-out questions answered by cosine")
    assert "; score: mean of choice" in legend
    assert first.startswith("step 1: ")
    assert {word.rpartition("/")[2] for word in first.split()[2::2]} == {part.split(":")[0] for part in legend.split("; ")}


def test_a_fit_that_holds_nothing_out_shows_no_scores(config: Path, tmp_path: Path) -> None:
    output = run("--text-only", "--config", config, "--sets", 60, "--steps", 2, "-o", tmp_path / "patch")
    assert output.startswith("no scores: too few images or noun sets")
    assert "0.000" not in output
    assert "score" not in PeakPatch.from_pretrained(tmp_path / "patch").metrics["validation"]


def test_what_else_lies_in_the_work_folder_stays(world: Path, config: Path, tmp_path: Path) -> None:
    (tmp_path / "patch.work").mkdir()
    (tmp_path / "patch.work" / "mine.txt").write_text("mine", encoding="utf-8")
    run("--data", world, "--images-only", "--config", config, "-o", tmp_path / "patch")
    assert [p.name for p in (tmp_path / "patch.work").iterdir()] == ["mine.txt"]


def test_steps_come_before_the_epochs_of_the_config(world: Path, tmp_path: Path) -> None:
    path = tmp_path / "epochs.json"
    path.write_text(json.dumps({**SMALL, "epochs": 40}), encoding="utf-8")
    output = run("--data", world, "--images-only", "--config", path, "--steps", 1, "-o", tmp_path / "patch")
    assert "of 1," in output


def test_an_index_tells_where_images_lie(world: Path, config: Path, tmp_path: Path, encoder: RandomDualEncoder) -> None:
    ImageIndex.build(encoder, world / "images", tmp_path / "index")
    run("--text-only", "--index", tmp_path / "index", "--config", config, "-o", tmp_path / "one")
    run("--text-only", "--config", config, "-o", tmp_path / "two")
    one, two = (PeakPatch.from_pretrained(tmp_path / name).training_data for name in ("one", "two"))
    assert one != two


def test_an_index_of_another_encoder_is_refused(world: Path, config: Path, tmp_path: Path) -> None:
    for name, other in (("seed", RandomDualEncoder(seed=1)), ("size", RandomDualEncoder(embed_dim=8))):
        ImageIndex.build(other, world / "images", tmp_path / name)
        result = runner.invoke(
            app,
            [
                "fit", "random", "--text-only", "--index", str(tmp_path / name), "--config", str(config),
                "-o", str(tmp_path / "patch"),
            ],
        )  # fmt: skip
        assert isinstance(result.exception, ImageIndexError)
    assert not (tmp_path / "patch").exists()


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xef\xbb\xbfcat\r\ncat\r\n", b"\xff\xfe\x00"])
def test_a_list_of_nouns_that_is_no_list_is_named(config: Path, tmp_path: Path, content: bytes) -> None:
    nouns = tmp_path / "nouns.txt"
    nouns.write_bytes(content)
    assert str(nouns) in failure("--text-only", "--nouns", nouns, "--config", config, "-o", tmp_path / "patch")
    assert not list(tmp_path.glob("patch*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[]", "expected an object"),
        ('{"steps": "3"}', "steps must be a whole number"),
    ],
)
def test_a_config_that_is_none_is_named(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    message = failure("--text-only", "--config", path, "-o", tmp_path / "patch")
    assert str(path) in message
    assert said in message


def test_a_config_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(b"\xff{}")
    assert f"{path}: not JSON" in failure("--text-only", "--config", path, "-o", tmp_path / "patch")


def test_a_patch_that_exists_is_not_written_over(world: Path, config: Path, tmp_path: Path) -> None:
    assert "exists already" in failure("--data", world, "-o", tmp_path)
    assert "exists already" in failure("--data", world, "-o", config)


class Failing(RandomDualEncoder):
    """Gives up, or is interrupted, after so many passes over images and texts; ``None``: an image embedding is not a number."""

    def __init__(self, after: int | None, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.after, self.error = after, error

    def _count(self) -> None:
        if self.after is not None and self.image_passes + self.text_passes >= self.after:
            raise self.error("no further")

    def encode_images(self, images: Any, **options: Any) -> torch.Tensor:
        self._count()
        rows = super().encode_images(images, **options)
        return rows if self.after is not None else rows * float("nan")

    def text_states(self, *arguments: Any, **options: Any) -> Any:
        self._count()
        return super().text_states(*arguments, **options)


@pytest.mark.parametrize("encoder_of", [lambda: Failing(None), lambda: Failing(0), lambda: Failing(0, KeyboardInterrupt)])
@pytest.mark.parametrize("work", [None, "new/work"])
def test_a_fit_that_fails_early_leaves_nothing(
    world: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoder_of: Callable[[], Failing], work: str | None
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: encoder_of())
    where = [] if work is None else ["--work", home / work]
    result = runner.invoke(app, ["fit", "random", *map(str, ["--data", world, "--config", config, "-o", home / "patch", *where])])
    assert result.exit_code != 0
    assert list(home.iterdir()) == []


def test_a_fit_that_fails_late_keeps_what_it_made_and_goes_on(
    world: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--data", world, "--images-only", "--config", config, "-o", tmp_path / "patch"]
    stopped = Failing(1)  # the images are one pass: the captions fail
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: stopped)
    assert "no further" in failure(*arguments)
    features = tmp_path / "patch.work" / "features"
    assert [p.name for p in features.iterdir()] == ["images"]
    whole = RandomDualEncoder()
    monkeypatch.setattr(clipmend, "load", lambda *_, **__: whole)
    run(*arguments)
    assert whole.image_passes == 0  # taken from the work folder
    assert sorted(p.name for p in tmp_path.iterdir()) == ["patch", "small.json"]


def test_nouns_that_no_training_would_read_are_refused(world: Path, config: Path, tmp_path: Path) -> None:
    nouns = tmp_path / "nouns.txt"
    nouns.write_text("\n".join(f"thing{k}" for k in range(9)), encoding="utf-8")
    given = ["--data", world, "--config", config, "--nouns", nouns, "-o", tmp_path / "patch"]
    assert "--nouns has no use" in failure(*given, "--images-only")
    assert "--nouns has no use" in failure(*given, "--objective", "released")


def test_a_work_folder_that_is_a_file_is_named(world: Path, config: Path, tmp_path: Path) -> None:
    assert "--work wants a folder" in failure("--data", world, "--work", config, "-o", tmp_path / "patch")


def test_sets_belong_to_a_fit_with_noun_sets(world: Path, config: Path, tmp_path: Path, encoder: RandomDualEncoder) -> None:
    refused = failure("--data", world, "--images-only", "--sets", 64, "-o", tmp_path / "patch")
    assert "--images-only leaves out" in refused
    run("--data", world, "--config", config, "--sets", 64, "-o", tmp_path / "patch")
    assert PeakPatch.from_pretrained(tmp_path / "patch").config.text_only_sets == 64


def test_folders_for_tests_and_for_the_other_objective_are_refused(world: Path, config: Path, tmp_path: Path) -> None:
    """What :mod:`clipmend.data.purpose` refuses, before the encoder is loaded; a note is on standard error."""
    reserved = tmp_path / "reserved"
    shutil.copytree(world, reserved)
    table = reserved / "captions.csv"
    lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
    image = lines[1].partition(",")[0]
    table.write_text("".join([*lines, f'{image},a scene sans cat,negative,sans,[],"[""cat""]",true\n']), encoding="utf-8")
    given = ["--data", reserved, "--images-only", "--config", config, "-o", tmp_path / "patch"]
    assert "1 captions with reserved wordings (sans)" in failure(*given)
    assert not (tmp_path / "patch").exists()
    result = runner.invoke(app, ["fit", "random", *map(str, given), "--allow-reserved"])
    assert result.exit_code == 0, result.output
    assert "tests with reserved wordings say nothing" in result.stderr.replace("\n", " ")
    (reserved / "data.json").write_text(json.dumps({"reading": "released"}), encoding="utf-8")
    other = [*given[:-1], tmp_path / "other", "--allow-reserved"]
    assert "--objective released" in failure(*other)
    assert "--allow-reserved is about" in failure("--text-only", "--allow-reserved", "-o", tmp_path / "third")
