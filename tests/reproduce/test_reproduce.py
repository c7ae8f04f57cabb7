"""``clipmend reproduce peakpatch`` on a miniature, from folders to table, with a random-weight CLIP saved as a checkpoint."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import clipmend
from backbones import tiny
from clipmend.cli.app import app
from clipmend.negation import PeakPatch
from clipmend.reproduce import plan as planning
from clipmend.reproduce import run as running
from clipmend.reproduce.inputs import find_inputs, look_at
from clipmend.reproduce.miniature import Miniature, write_miniature
from clipmend.reproduce.plan import Rates, make_plan, work_of
from clipmend.reproduce.published import PUBLISHED, TABLES, configuration
from clipmend.reproduce.report import rows_of, write_report
from clipmend.reproduce.run import Options, reproduce

runner = CliRunner()
SMALL = {"hidden": 16, "context": 8, "batch_size": 8, "question_batch": 4, "steps": 2, "eval_every": 2}
CHANGES: dict[str, dict[str, Any]] = {
    "released": {**SMALL, "pretrain_steps": 1},
    "truthful": {**SMALL, "text_only_sets": 64, "text_only_batch": 32},
}


@pytest.fixture(scope="module")
def mini(tmp_path_factory: pytest.TempPathFactory) -> Miniature:
    return write_miniature(tmp_path_factory.mktemp("mini") / "m", 24, 8, size=32)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    tokenizer = tiny.clip_tokenizer()
    return tiny.saved(tmp_path_factory.mktemp("clip") / "tiny", tiny.clip_model(tokenizer), tokenizer, tiny.clip_processor())


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Speeds are measured for a moment only."""
    measure = planning.measure_rates
    monkeypatch.setattr(planning, "measure_rates", lambda *a, **k: measure(*a, **{**k, "seconds": 0.05}))


def arguments(mini: Miniature, model: str, out: Path, *more: object) -> list[str]:
    given = ["--coco", mini.coco, "--voc", mini.voc, "--negbench", mini.negbench, "--model", model, "-o", out, *more]
    return ["reproduce", "peakpatch", *map(str, given)]


def run(*given: str) -> str:
    result = runner.invoke(app, list(given), env={"COLUMNS": "200"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


def failure(*given: str) -> str:
    result = runner.invoke(app, list(given), env={"COLUMNS": "200"})
    assert isinstance(result.exception, ValueError | OSError), (result.exception, result.output)
    return str(result.exception)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(CHANGES), encoding="utf-8")
    return path


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_from_folders_to_table_and_again(mini: Miniature, checkpoint: str, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = run(*arguments(mini, checkpoint, out, "--config", config))
    assert "multiple choice, COCO" in output
    assert "published (arXiv 2607.23271)" in output
    assert "nowhere: chosen" in output  # what is not known of the configuration is said
    with (out / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = {(r["table"], r["row"], r["measure"]): r for r in rows if r["source"] == "measured"}
    for table in TABLES.values():
        for row in ("backbone", "released", "truthful"):
            measure = "all" if table.task == "choice" else "R@5"
            found = measured[table.name, row, measure]
            assert float(found["low"]) <= float(found["value"]) <= float(found["high"])
    printed = {(r["table"], r["row"], r["measure"]): float(r["value"]) for r in rows if r["source"].startswith("published")}
    assert printed["COCO_val_mcq_llama3.1_rephrased", "PeakPatch", "negative"] == 63.2
    assert not set(printed) & set(measured)
    for objective in CHANGES:
        assert PeakPatch.from_pretrained(out / "patches" / objective).config.objective == objective
    content = json.loads((out / "table.json").read_text(encoding="utf-8"))
    assert content["fits"]["released"]["config"]["use_direct"] is False
    assert content["plan"]["training_images"] == 24
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and not p.name.startswith("table.")}
    again = run(*arguments(mini, checkpoint, out, "--config", config))
    assert "multiple choice, COCO, %" in again
    assert "released: multiple choice" not in again  # no step was taken
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and not p.name.startswith("table.")}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_killed_anywhere_it_goes_on_to_the_same_table(
    mini: Miniature, checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = clipmend.load(checkpoint)
    inputs = find_inputs(mini.coco, mini.voc, mini.negbench)
    options = Options(("released",), changes=CHANGES)
    whole = reproduce(encoder, inputs, tmp_path / "whole", options)
    for name in ("negate", "extract_image_features", "fit", "evaluate_choice", "evaluate_retrieval"):
        with monkeypatch.context() as patched:
            patched.setattr(running, name, _failing_once(getattr(running, name)))
            with pytest.raises(KeyboardInterrupt):
                reproduce(encoder, inputs, tmp_path / "parts", options)
        if name == "extract_image_features":  # and in the middle of the fit
            with pytest.raises(KeyboardInterrupt):
                reproduce(encoder, inputs, tmp_path / "parts", options, say=_interrupted_at_step)
    again = reproduce(encoder, inputs, tmp_path / "parts", options)
    assert again.made == whole.made[-len(again.made) :]  # what came before the last interruption was not made again
    assert "results/backbone-coco_choice.json" not in again.made
    assert [(r.table, r.label, r.values) for r in rows_of(again)] == [(r.table, r.label, r.values) for r in rows_of(whole)]
    assert reproduce(encoder, inputs, tmp_path / "parts", options).made == []


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_second_objective_goes_on_from_the_first(mini: Miniature, checkpoint: str, tmp_path: Path) -> None:
    """Both are in the table, side by side, and what the first run measured is not measured again."""
    out, config = tmp_path / "out", tmp_path / "config.json"
    config.write_text(json.dumps({"released": CHANGES["released"]}), encoding="utf-8")
    run(*arguments(mini, checkpoint, out, "--config", config, "--objective", "released"))
    assert _measured_rows(out) == {"backbone", "released", "released, ECN alone"}
    first = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and p.parent.name in ("results", "released")}
    assert len(first) > 8
    config.write_text(json.dumps({"truthful": CHANGES["truthful"]}), encoding="utf-8")
    output = run(*arguments(mini, checkpoint, out, "--config", config, "--objective", "truthful", "--no-pretraining"))
    both = ["backbone", "released", "released, ECN alone", "truthful", "truthful, ECN alone"]
    assert _measured_rows(out) == set(both)
    assert "released: multiple choice" not in output
    assert "truthful: multiple choice" in output
    assert first == {p: p.stat().st_mtime_ns for p in first}
    content = json.loads((out / "table.json").read_text(encoding="utf-8"))
    assert list(content["fits"]) == ["released", "truthful"]
    labels = [r["row"] for r in content["rows"] if r["source"] == "measured" and r["table"] == TABLES["coco_choice"].name]
    assert labels == both
    # The first again, alone: nothing is made, both are shown; with other settings it is refused, since it was fitted with these.
    config.write_text(json.dumps(CHANGES), encoding="utf-8")
    before = {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and not p.name.startswith("table.")}
    run(*arguments(mini, checkpoint, out, "--config", config, "--objective", "released"))
    assert _measured_rows(out) == set(both)
    assert before == {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and not p.name.startswith("table.")}
    for name, more in (("released", ["--no-pretraining"]), ("truthful", ["--config", tmp_path / "none.json"])):
        (tmp_path / "none.json").write_text("{}", encoding="utf-8")
        said = failure(*arguments(mini, checkpoint, out, "--config", config, "--objective", name, *more))
        assert "holds a run of something else" in said


def _measured_rows(out: Path) -> set[str]:
    with (out / "table.csv").open(encoding="utf-8") as file:
        return {row["row"] for row in csv.DictReader(file) if row["source"] == "measured"}


def test_a_folder_of_an_older_version_keeps_its_settings(mini: Miniature, checkpoint: str, tmp_path: Path) -> None:
    """Its run.json does not say which fits were begun: the settings of both are as they stand there."""
    encoder, inputs = clipmend.load(checkpoint), find_inputs(mini.coco, mini.voc, mini.negbench)
    running._claim(tmp_path / "out", encoder, inputs, Options(("released",)))
    path = tmp_path / "out" / "run.json"
    told = json.loads(path.read_text(encoding="utf-8"))
    assert told.pop("objectives") == ["released"]
    path.write_text(json.dumps({**told, "changes": {}}), encoding="utf-8")
    for objective in CHANGES:
        with pytest.raises(ValueError, match="changes"):
            running._claim(tmp_path / "out", encoder, inputs, Options((objective,), changes=CHANGES))
    running._claim(tmp_path / "out", encoder, inputs, Options(("truthful",)))
    path.write_text('{"changes": 3}', encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged"):
        running._claim(tmp_path / "out", encoder, inputs, Options())


def _interrupted_at_step(text: str) -> None:
    if text.lstrip().startswith("step 2"):
        raise KeyboardInterrupt


def _failing_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Does half of its work, where it has halves, and is interrupted."""

    def interrupted(*arguments: Any, **options: Any) -> Any:
        if function.__name__ == "negate":
            function(*arguments, **options)
        raise KeyboardInterrupt

    return interrupted


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_folder_of_another_run_is_refused(mini: Miniature, checkpoint: str, tmp_path: Path) -> None:
    encoder, inputs = clipmend.load(checkpoint), find_inputs(mini.coco, mini.voc, mini.negbench)
    options = Options(("released",), changes=CHANGES)
    running._claim(tmp_path / "out", encoder, inputs, options)
    running._claim(tmp_path / "out", encoder, inputs, options)
    with pytest.raises(ValueError, match="seed: 0 there, 1 now"):
        reproduce(encoder, inputs, tmp_path / "out", Options(("released",), changes=CHANGES, seed=1))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match="holds no such run"):
        reproduce(encoder, inputs, tmp_path / "mine", options)
    with pytest.raises(ValueError, match="objectives are"):
        Options(("both",))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_dry_run_writes_nothing_and_says_what_is_missing(mini: Miniature, checkpoint: str, config: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = run(*arguments(mini, checkpoint, out, "--config", config, "--dry-run"))
    assert "nothing was run" in output
    assert "24 images, 120 captions" in output
    assert "assumed 10 TFLOP/s" in output or torch.cuda.is_available()
    assert not out.exists()
    copy = tmp_path / "copy"
    shutil.copytree(mini.coco.parent, copy)
    broken = Miniature(copy / "coco", copy / "voc", copy / "negbench")
    next((copy / "coco" / "val2017").iterdir()).unlink()
    (copy / "negbench" / "images" / "COCO_val_retrieval.csv").unlink()
    told = failure(*arguments(broken, checkpoint, out, "--config", config, "--dry-run"))
    assert "1 of 8 images are missing" in told
    assert "COCO_val_retrieval.csv" in told
    assert not out.exists()
    run(*arguments(broken, checkpoint, out, "--config", config, "--dry-run", "--skip-missing"))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_missing_images_and_tables_can_be_skipped_and_are_counted(mini: Miniature, checkpoint: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(mini.coco.parent, copy)
    sorted((copy / "coco" / "val2017").iterdir())[0].unlink()
    trained = sorted((copy / "coco" / "train2017").iterdir())[0]
    content = trained.read_bytes()
    trained.unlink()
    for name in ("VOC2007_mcq_llama3.1_rephrased", "COCO_val_retrieval"):
        (copy / "negbench" / "images" / f"{name}.csv").unlink()
    encoder, inputs = clipmend.load(checkpoint), find_inputs(copy / "coco", copy / "voc", copy / "negbench")
    assert inputs.absent == ["voc_choice", "coco_retrieval"]
    options = Options(("released",), changes=CHANGES)
    with pytest.raises(ValueError, match=r"image 1: 000000000001\.jpg: not found under"):
        reproduce(encoder, inputs, tmp_path / "out", options)
    empty = running.Reproduction(tmp_path, "m")
    with pytest.raises(FileNotFoundError, match="1 of 8 test images not found"):
        running._test_vectors("coco", encoder, inputs, tmp_path / "vectors", options, empty, lambda text: None)
    lenient = Options(("released",), changes=CHANGES, skip_missing=True)
    done = reproduce(encoder, inputs, tmp_path / "out", lenient)
    assert set(done.results["backbone"]) == {"coco_choice", "coco_negated"}
    assert done.results["backbone"]["coco_choice"]["skipped"] == 3
    assert any("VOC2007" in note for note in done.notes)
    assert any("1 of 8 test images" in note for note in done.notes)
    assert any("released: 1 images whose file is missing left out" in note for note in done.notes)
    files = write_report(done)
    whole = [file.read_bytes() for file in files]
    again = reproduce(encoder, inputs, tmp_path / "out", lenient)
    assert again.made == []
    assert [file.read_bytes() for file in write_report(again)] == whole, "notes too: the same command, the same table"
    # All are there now: a fit without some of them must not pass for one of all.
    trained.write_bytes(content)
    for options in (Options(("released",), changes=CHANGES), lenient):
        if options.skip_missing:
            assert any("1 images whose file is missing" in n for n in reproduce(encoder, inputs, tmp_path / "out", options).notes)
        else:
            with pytest.raises(ValueError, match=r"released were made without images that were missing.*--skip-missing"):
                reproduce(encoder, inputs, tmp_path / "out", options)
    # Features may be deleted; then other test images under the same names are measured, and not the kept results shown.
    shutil.rmtree(tmp_path / "out" / "features")
    pictures = sorted((copy / "coco" / "val2017").iterdir())
    first, last = pictures[0].read_bytes(), pictures[-1].read_bytes()
    pictures[0].write_bytes(last)
    pictures[-1].write_bytes(first)
    other = reproduce(encoder, inputs, tmp_path / "out", lenient)
    assert {name for name in other.made if "backbone" in name} == {
        "results/backbone-coco_choice.json", "results/backbone-coco_negated.json"
    }  # fmt: skip


def test_printed_rows_of_a_fit_that_was_not_run_are_there_all_the_same(tmp_path: Path) -> None:
    result = {"metrics": {"acc": 0.5}, "intervals": {"acc": [0.4, 0.6]}, "counts": {"acc": 10}}
    done = running.Reproduction(tmp_path, "m", {"backbone": {"coco_choice": result}, "truthful": {"coco_choice": result}})
    rows = rows_of(done)
    assert [r.label for r in rows if r.measured] == ["backbone", "truthful"]
    printed = [r for r in rows if not r.measured]
    assert {"CLIP ViT-B/32", "PeakPatch"} <= {r.label for r in printed}
    assert len({(r.label, r.source) for r in printed}) == len(printed)
    assert all(r.source.startswith("published (") for r in printed)
    write_report(done)
    content = json.loads((tmp_path / "table.json").read_text())
    with (tmp_path / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    markdown = (tmp_path / "table.md").read_text().splitlines()
    for row in content["rows"]:
        shown = [line for line in markdown if line.startswith(f"| {row['row']} |") and line.endswith(f"| {row['source']} |")]
        assert len(shown) == 1
        for heading, value in row["values"].items():
            (line,) = [x for x in lines if (x["row"], x["source"], x["measure"]) == (row["row"], row["source"], heading)]
            assert float(line["value"]) == pytest.approx(value, abs=0.005)
            assert f"| {value:.1f}" in shown[0]


def test_what_is_not_there_is_named(mini: Miniature, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no such folder"):
        find_inputs(tmp_path / "no", mini.voc, mini.negbench)
    with pytest.raises(FileNotFoundError, match="captions_train2014"):
        find_inputs(tmp_path / "empty", mini.voc, mini.negbench)
    with pytest.raises(FileNotFoundError, match="Annotations"):
        find_inputs(mini.coco, tmp_path / "empty", mini.negbench)
    with pytest.raises(FileNotFoundError, match="none of NegBench's tables"):
        find_inputs(mini.coco, mini.voc, tmp_path / "empty")


def test_training_on_test_images_is_noticed(mini: Miniature, checkpoint: str, tmp_path: Path) -> None:
    inputs = find_inputs(mini.coco, mini.voc, mini.negbench, split="val2017")
    counts = look_at(inputs)
    assert len(counts.shared) == 8
    assert "test images too" in failure(*arguments(mini, checkpoint, tmp_path / "out", "--split", "val2017", "--dry-run"))
    assert look_at(find_inputs(mini.coco, mini.voc, mini.negbench)).shared == []


def test_counts_are_those_of_the_files(mini: Miniature) -> None:
    counts = look_at(find_inputs(mini.coco, mini.voc, mini.negbench))
    assert (counts.images, counts.originals, counts.test_images) == (24, 72, 16)
    assert counts.questions == {"coco_choice": 24, "voc_choice": 24}
    assert counts.options == 192
    assert counts.queries == 80
    assert counts.missing == 0
    assert look_at(find_inputs(mini.coco, mini.voc, mini.negbench), limit=10).images == 10


class TwelveBlocks:
    """Enough of CLIP ViT-B/32 for a configuration."""

    name, num_text_layers, text_width, embed_dim, logit_scale = "ViT-B/32", 12, 512, 512, 100.0


def test_the_released_configuration_is_the_published_one() -> None:
    config = configuration("released", TwelveBlocks(), 240_000)  # type: ignore[arg-type]
    assert (config.anchor, config.peak, config.scn_layers) == (6, 8, (8, 12))
    patch_parameters = sum(p.numel() for p in _networks(config))
    assert patch_parameters == 4_728_833 + 493_825
    assert config.steps == -(-10 * 216_000 // 1024)
    assert config.pretrain_steps == -(-20 * 216_000 // 1024)
    assert configuration("released", TwelveBlocks(), 240_000, pretrain=False).pretrain_steps == 0  # type: ignore[arg-type]
    changed = configuration("truthful", TwelveBlocks(), 240_000, changes={"peak": 7, "steps": 5})  # type: ignore[arg-type]
    assert (changed.peak, changed.scn_layers, changed.steps, changed.epochs) == (7, (7, 12), 5, None)
    with pytest.raises(ValueError, match="objective"):
        configuration("both", TwelveBlocks(), 1)  # type: ignore[arg-type]


def _networks(config: Any) -> list[torch.Tensor]:
    from clipmend.negation import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork

    ecn = EmbeddingCorrectionNetwork(
        config.text_width, config.embed_dim, config.hidden, config.heads, config.dropout, config.use_anchor, config.use_pool,
        config.eos_only, config.use_direct,
    )  # fmt: skip
    scn = ScoreCorrectionNetwork(config.embed_dim, len(config.scn_layers), config.context, config.bound)
    return [*ecn.parameters(), *scn.parameters()]


def test_published_rows_name_tables_and_columns_that_exist() -> None:
    from clipmend.reproduce.report import headings

    for row in PUBLISHED:
        assert row.source
        for table, values in row.values.items():
            assert set(values) <= set(headings(table))


def test_the_plan_adds_up(mini: Miniature, tmp_path: Path) -> None:
    counts = look_at(find_inputs(mini.coco, mini.voc, mini.negbench))
    configs = {"released": configuration("released", TwelveBlocks(), counts.originals, changes={"steps": 10, "pretrain_steps": 0})}  # type: ignore[arg-type]
    work = work_of(counts, configs)
    assert work.texts["released, training"] == 2 * 72
    assert work.rows == 10 * (2 * 1024 + 4 * 1024)
    assert work.texts["evaluation"] == 192 + 80 + 2 * 192 + 80
    rates = Rates("cpu", images=10.0, texts=100.0, decoded=50.0, tokens=12.0, step=0.001, gather=0.0005)
    plan = make_plan(counts, configs, {"cpu": rates}, tmp_path / "not" / "there", cpu_flops=1e10)
    assert plan.hours["cpu"]["features"] == pytest.approx((24 / 10 + 144 / 100) / 3600)
    assert plan.hours["cpu"]["training"] == pytest.approx(work.rows * 0.0015 / 3600)
    assert plan.hours["gpu"]["training"] == pytest.approx(work.rows * (0.001 / 1000 + 0.0005) / 3600)
    assert "gpu" in plan.assumed
    assert plan.disk > 144 * (2 * 512 * 14 + 4 * 512 * 3)
    both = make_plan(counts, configs, {"cuda": rates, "cpu": rates}, tmp_path, cpu_flops=1e10)
    assert set(both.hours) == {"cuda", "cpu"}
    assert not both.assumed
    assert np.isfinite(planning.matmul_rate(64, 0.01))


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON"), ("[]", "expected an object"), ('{"released": 1}', "expected an object under"), ('{"seed": 1}', "--seed")],
)
def test_a_config_that_is_none_is_named(mini: Miniature, checkpoint: str, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content, encoding="utf-8")
    assert said in failure(*arguments(mini, checkpoint, tmp_path / "out", "--config", path))
