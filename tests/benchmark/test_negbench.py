"""The runner on NegBench in miniature: every table, resuming after a kill, broken files, what the tables say."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.benchmark.made import encoder, negbench, patch_of
from typer.testing import CliRunner

import clipmend
from clipmend.benchmark import published_rows, run_negbench
from clipmend.benchmark.store import ResultStore, VectorStore, pack, unpack
from clipmend.cli.app import app
from clipmend.cli.benchmark import _spread
from clipmend.data.readers.negbench import TABLES
from clipmend.data.scenes.tables import write_scenes
from clipmend.evaluation import compare

COCO = "COCO_val_mcq_llama3.1_rephrased"
NEGATED = "COCO_val_negated_retrieval_llama3.1_rephrased_affneg_true"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return negbench(tmp_path_factory.mktemp("negbench") / "data")


@pytest.fixture(scope="module")
def tune(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "drawn"
    write_scenes(folder, count=9, size=32, seed=77, split="train")
    return folder


def run(made: Path, out: Path, models: Any = None, patches: Any = (), **options: Any) -> Any:
    options.setdefault("image_roots", [made / "pictures", made / "clips"])
    return run_negbench(models or [encoder()], patches, data=made, out=out, **options)


def test_every_table_every_method(tmp_path: Path, tune: Path) -> None:
    made = negbench(tmp_path / "data", videos=True)
    model = encoder()
    patch = patch_of(model, tmp_path / "patch")
    lines: list[str] = []
    report = run(
        made, tmp_path / "out", [model], [patch], rivals=["arithmetic", "projection", "direction"], validation=tune,
        zeroshot=[_classes(tmp_path / "classes")], pairs=[tune / "pairs.csv"], judge=str(made / "presence.csv"),
        say=lines.append, ks=(1, 3),
    )  # fmt: skip
    costs = ["zeroshot/classes", "pairs/drawn", f"respected/{NEGATED}"]  # the annotation is of pictures
    assert set(report.names) == {*TABLES, *costs}
    labels = [f"random{rest}" for rest in ("", f" + {patch}", " + query arithmetic", " + rule-based projection")]
    labels += ["random + negation direction", "random + negation direction, projected"]
    for name in report.names:
        assert [r.label for r in report.of(name)] == labels
    notes = [line for line in lines if line.startswith("note: ")]
    assert len(lines) - len(notes) == len(report.runs) == 6 * 15
    few = next(note for note in notes if note.startswith(f"note: {COCO}: few items (n = "))
    assert "by chance alone a share is off by up to" in few
    asked = len(report.of(COCO)[0].result.correct)
    caution = f"rows were printed elsewhere, for the models they name, on 5,914 questions; here there are {asked}; only the others"
    assert any(note.startswith(f"note: {COCO}: published {caution}") for note in notes)
    assert model.image_passes == 13  # pictures, nine clips, classes, pairs, tuning: once, whatever the tables and methods
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    assert len(content) == len(report.runs)
    for entry in content:
        assert {"dataset", "model", "pretrained", "task", "metrics", "language", "counts", "intervals"} <= set(entry)
    mended = next(e for e in content if e["dataset"] == COCO and e["pretrained"] == str(patch))
    assert mended["benchmark"]["method"] == "patch"
    assert "acc" in mended["differences"]["differences"]
    rival = next(e for e in content if e["dataset"] == COCO and e["pretrained"].startswith("rule-based"))
    assert "anchor" in rival["pretrained"]
    table = (tmp_path / "out" / "table.md").read_text()
    assert "PeakPatch, ViT-B/32, *published*" in table
    assert table.index("## What it costs") < table.index("### COCO_val_retrieval")
    assert "Not measured" not in table
    of_coco = table[table.index(f"### {COCO}\n") :].partition("\n### ")[0]
    assert f"Note: *published* {caution}" in of_coco
    assert "Note: few items (n = " in of_coco
    with (tmp_path / "out" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {r["source"].partition(":")[0] for r in rows} == {"measured", "published"}
    assert next(r for r in rows if r["method"] == "CLIPGlasses, CLIP")["high"] == "35.9"
    assert (tmp_path / "out" / "plot.png").read_bytes()[:4] == b"\x89PNG"


def _classes(folder: Path) -> Path:
    from PIL import Image

    for k, name in enumerate(("red_cup", "dog")):
        (folder / name).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (8, 8), (40 * k, 30 * n, 90)).save(folder / name / f"{n}.png")
    return folder


def test_a_second_run_measures_what_is_new_only(made: Path, tmp_path: Path) -> None:
    model = encoder()
    out = tmp_path / "out"
    first = run(made, out, [model])
    kept = {path: path.read_bytes() for path in (out / "runs").rglob("*.json")}
    assert len(kept) == len(first.runs) == 9
    again = encoder()
    patch = patch_of(again, tmp_path / "patch")
    second = run(made, out, [again], [patch])
    assert again.image_passes == 0
    assert [r.kept for r in second.runs] == [True, False] * 9
    assert all(path.read_bytes() == content for path, content in kept.items())
    texts = again.texts_seen
    third = run(made, out, [again], [patch])
    assert again.texts_seen == texts
    assert all(r.kept for r in third.runs)
    assert third.rows() == second.rows()  # also the paired differences, from what was kept
    strong = run(made, out, [again], [patch], strength=0.5, only=[COCO])
    assert [r.kept for r in strong.runs] == [True, False]
    other = run(made, out, [encoder(1, "other")], only=[COCO])
    assert not any(r.kept for r in other.runs)


def test_changed_files_are_measured_anew(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(made, data)
    run(data, tmp_path / "out", only=["choice"])
    table = data / "images" / f"{COCO}.csv"
    lines = table.read_text().splitlines()
    table.write_text("\n".join(lines[:-1]) + "\n")
    (data / "pictures" / "000000.png").write_bytes((data / "pictures" / "000001.png").read_bytes())
    again = run(data, tmp_path / "out", only=["choice"])
    assert not any(r.kept for r in again.runs)
    assert again.of(COCO)[0].result.measures()["acc"].count == 8


SCRIPT = """
import os, signal, sys
sys.path[:0] = {paths!r}
from tests.benchmark.made import encoder
from clipmend.benchmark import run_negbench
lines = []
def say(line):
    lines.append(line)
    print(line, flush=True)
    if len(lines) == {stop}:
        os.kill(os.getpid(), signal.SIGKILL)
run_negbench([encoder()], {patches!r}, data={data!r}, out={out!r}, image_roots=[{pictures!r}], say=say)
"""


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL is POSIX")
def test_a_killed_run_goes_on(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    patch = patch_of(encoder(), tmp_path / "patch")
    root = Path(__file__).parents[2]

    def go(stop: int) -> subprocess.CompletedProcess[str]:
        script = SCRIPT.format(
            paths=[str(root), str(root / "tests")], stop=stop, patches=[str(patch)], data=str(made), out=str(out),
            pictures=str(made / "pictures"),
        )  # fmt: skip
        return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)

    first = go(5)
    assert first.returncode == -signal.SIGKILL
    assert not (out / "table.md").exists()
    done = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*.json")}
    assert len(done) == 5
    second = go(-1)
    assert second.returncode == 0, second.stderr
    lines = [line for line in second.stdout.splitlines() if not line.startswith("note: ")]
    assert [line.endswith("(kept)") for line in lines] == [True] * 5 + [False] * 13
    assert {path: path.stat().st_mtime_ns for path in done} == done
    whole = run(made, tmp_path / "straight", [encoder()], [patch])
    with (out / "table.csv").open() as a:
        assert list(csv.DictReader(a)) == [{k: str(v) for k, v in row.items()} for row in csv.DictReader(whole.csv().splitlines())]


def test_damaged_leftovers_are_made_anew(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(made, out, only=[COCO])
    kept = next((out / "runs").rglob("*.json"))
    kept.write_text(kept.read_text()[:100])
    part = next((out / "work" / "images").rglob("*.npy"))
    part.write_bytes(part.read_bytes()[:50])
    with pytest.warns(UserWarning, match="damaged") as caught:
        report = run(made, out, only=[COCO])
    assert len(caught) == 2
    assert not report.runs[0].kept
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(made, out, only=[COCO]).runs[0].kept


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (f"{COCO}.csv", "image_path,correct_answer,caption_0\nx,0,a\n", "column correct_answer_template"),
        (f"{COCO}.csv", "", "the file is empty"),
        ("COCO_val_retrieval.csv", "filepath,captions\nx,__import__('os').getcwd()\n", r"line 2: captions is no list of texts"),
        ("COCO_val_retrieval.csv", "filepath,captions\n", "no rows below the header"),
        ("chexpert_binary_mcq.csv", "image_path,caption_0,caption_1,correct_answer\nx,a,b,7\n", "line 2: correct_answer is 7"),
        ("VOC2007_mcq_llama3.1_rephrased.csv", "\xff\xfe", "not UTF-8"),
    ],
)
def test_broken_tables_are_named_before_any_work(made: Path, tmp_path: Path, name: str, content: str, message: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(made, data)
    (data / "images" / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match=message) as raised:
        run(data, tmp_path / "out", ["no model is loaded"])
    assert name in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_missing_and_broken_images(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(made, data)
    (data / "pictures" / "000003.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 9 images .*not found under .*; try --image-root DIR"):
        run(data, tmp_path / "out", ["no model is loaded"], only=[COCO])
    (data / "pictures" / "000004.png").write_bytes(b"")
    with pytest.raises((ValueError, OSError), match=r"000004\.png"):
        run(_without_row(tmp_path / "less", data, 3), tmp_path / "out", image_roots=[data / "pictures"], only=["VOC"])
    report = run(data, tmp_path / "out", image_roots=[data / "pictures"], skip_missing=True, only=[COCO, "COCO_val_retrieval"])
    notes = " ".join(report.of(COCO)[0].result.notes)
    assert "2 of 9 questions skipped" in notes
    assert "1 images could not be read" in notes
    assert report.of(COCO)[0].result.measures()["acc"].count == 7
    shutil.rmtree(data / "pictures")
    with pytest.raises(FileNotFoundError, match="none of its 9 images"):
        run(data, tmp_path / "out", image_roots=[], skip_missing=True, only=[COCO])


def _without_row(folder: Path, data: Path, image: int) -> Path:
    """The tables of ``data`` without the rows of one image."""
    folder.mkdir()
    for table in (data / "images").glob("*.csv"):
        lines = table.read_text().splitlines()
        (folder / table.name).write_text("\n".join(line for line in lines if f"{image:06d}.png" not in line) + "\n")
    return folder


def test_refusals(made: Path, tmp_path: Path, tune: Path) -> None:
    stranger = patch_of(encoder(9), tmp_path / "patch")
    for message, options in (
        ("no models", {"models": []}),
        ("--validation", {"rivals": ["projection"]}),
        ("--rivals", {"validation": tune}),
        ("fits none of the models", {"patches": [stranger]}),
        ("no rival 'magic'", {"rivals": ["magic"], "validation": tune, "only": [COCO]}),
        ("no table is called CIFAR", {"only": ["CIFAR"]}),
        ("belong to --zeroshot", {"split": "test"}),
        ("no such table here", {"judge": str(made / "presence.csv"), "only": [COCO]}),
        ("two models are called", {"models": [encoder(), encoder()], "only": [COCO]}),
    ):
        arguments: dict[str, Any] = {"models": [encoder()], "data": made, "out": tmp_path / "out", **options}
        arguments.setdefault("image_roots", [made / "pictures"])
        with pytest.raises(ValueError, match=message):
            run_negbench(**arguments)
    with pytest.raises(FileNotFoundError, match="none of NegBench's tables"):
        run_negbench([encoder()], data=tmp_path, out=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        run_negbench([encoder()], data=made, out=tmp_path / "file")


def test_a_patch_goes_on_its_own_model(made: Path, tmp_path: Path) -> None:
    one, two = encoder(0, "one"), encoder(1, "two")
    report = run(made, tmp_path / "out", [one, two], [patch_of(two, tmp_path / "p")], only=[COCO])
    assert [r.label for r in report.runs] == ["one", "two", f"two + {tmp_path / 'p'}"]
    assert report.difference(report.runs[0]) is None
    difference = report.difference(report.runs[2])
    assert difference is not None
    assert difference.first.model == "two"


def test_known_forms_of_the_synthetic_table(made: Path, tmp_path: Path) -> None:
    report = run(made, tmp_path / "out", only=["synthetic_mcq"])
    result = report.runs[0].result
    assert set(result.details()["confusion"]) == {"affirmative", "negative", "hybrid"}
    table = (tmp_path / "out" / "table.md").read_text()
    assert "zero-shot classification (`--zeroshot DIR`)" in table  # says what was not measured
    assert "plain retrieval" in table


def test_results_belong_to_the_judge_that_gave_them(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the same name with other content is another judge."""
    monkeypatch.chdir(tmp_path)
    code = "class Detector:\n    threshold = {}\n    def judge(self, path, things):\n        return [0.0 for _ in things]\n"
    options = {"judge": "judge_of_negbench:Detector", "only": [NEGATED], "ks": (1, 3)}
    kept = []
    for threshold in (1, 1, 2):
        (tmp_path / "judge_of_negbench.py").write_text(code.format(threshold))
        sys.modules.pop("judge_of_negbench", None)
        report = run(made, tmp_path / "out", **options)
        kept.append([done.kept for done in report.runs if done.task.startswith("respected/")])
    assert kept == [[False], [True], [False]]


def test_published_rows() -> None:
    rows = published_rows()
    assert {row.table for row in rows} <= {"", *TABLES}
    assert all(0 < row.value <= 100 and row.source for row in rows)
    clip = {row.metric: row.value for row in published_rows(COCO) if row.method == "CLIP"}
    assert clip == {"acc_affirmative": 69.1, "acc_negative": 6.8, "acc_hybrid": 39.3, "acc": 39.3}
    assert next(row for row in rows if row.method == "CLIPGlasses").shown == "34.5-35.9"


def test_results_survive_their_file(made: Path, tmp_path: Path) -> None:
    report = run(made, tmp_path / "out", judge=str(made / "presence.csv"), ks=(1, 3))
    for done in report.runs:
        other = unpack(json.loads(json.dumps(pack(done.result))))
        assert type(other) is type(done.result)
        assert other.metrics == pytest.approx(done.result.metrics, nan_ok=True)
        assert all(d.difference == 0 for d in compare(done.result, other, samples=5).differences.values())
    for content in ({}, {"task": "multiple_choice"}, {"task": "captioning", "rows": {}}):
        with pytest.raises(ValueError, match="not a kept result"):
            unpack(content)
    store = ResultStore(tmp_path / "out" / "runs")
    assert store.get("never/ran", "x", "0" * 64) is None


def test_vectors_are_kept_in_parts(made: Path, tmp_path: Path) -> None:
    model = encoder()
    files = {path.name: path for path in sorted((made / "pictures").iterdir())}
    store = VectorStore(tmp_path, model, part=4)
    counts: list[int] = []
    vectors, broken = store.get(files, advance=counts.append)
    assert (counts, broken) == ([4, 4, 1], [])
    assert len(list(store.folder.glob("*.npy"))) == 3
    again = VectorStore(tmp_path, encoder())
    same, _ = again.get(files)
    assert again.encoder.image_passes == 0  # type: ignore[attr-defined]
    assert all(np.array_equal(same[name], vectors[name]) for name in files)
    assert VectorStore(tmp_path, encoder(3)).folder != store.folder
    direct = model.encode_images(list(files.values()))
    assert np.allclose(np.stack([vectors[name] for name in files]), direct, atol=1e-6)


def test_command_line(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = {"a": encoder(0, "a"), "b": encoder(1, "b")}
    monkeypatch.setattr(clipmend, "load", lambda name, device=None, dtype=None: models[name])
    patches = [patch_of(model, tmp_path / f"patch-{name}") for name, model in models.items()]
    arguments = ["benchmark", "negbench", "--models", "a", "b", "--patches", *map(str, patches), "--data", str(made)]
    arguments += ["--image-root", str(made / "pictures"), "--only", COCO, NEGATED, "--out", str(tmp_path / "out")]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert len([line for line in result.output.splitlines() if "acc " in line or "recall@5" in line]) == 8
    assert (tmp_path / "out" / "table.md").is_file()
    again = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, catch_exceptions=False)
    assert again.output.count("(kept)") == 8
    shown = CliRunner(env={"COLUMNS": "160"}).invoke(app, ["benchmark", "negbench", "--help"]).output
    assert "Example" in shown
    with pytest.raises(ValueError, match="--strength needs --patches"):
        CliRunner().invoke(app, [*arguments[:5], "--data", "x", "--out", "y", "--strength", "2"], catch_exceptions=False)


def test_options_with_several_values() -> None:
    names = ("--models", "--only")
    assert _spread(["--models", "a", "b", "--data", "x"], names) == ["--models", "a", "--models", "b", "--data", "x"]
    assert _spread(["--models=a", "--only", "x"], names) == ["--models=a", "--only", "x"]
    assert _spread(["--data", "x", "y"], names) == ["--data", "x", "y"]
    assert _spread(["--models", "a", "--models", "b", "c"], names) == ["--models", "a", "--models", "b", "--models", "c"]


def test_tables_agree_and_say_which_cut_off(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other cut-offs than the usual are shown under their own name, never beside published figures of another."""
    model = encoder()
    patch = patch_of(model, tmp_path / "patch")
    report = run(made, tmp_path / "out", [model], [patch], ks=(2, 3), only=["COCO_val_retrieval", NEGATED, COCO])
    markdown = (tmp_path / "out" / "table.md").read_text()
    with (tmp_path / "out" / "table.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["source"] == "measured"]
    content = json.loads((tmp_path / "out" / "results.json").read_text())
    for row in rows:
        entry = next(e for e in content if e["dataset"] == row["table"] and e["benchmark"]["label"] == row["method"])
        scale = 1 if row["metric"].endswith("rank") else 100
        assert float(row["value"]) == pytest.approx(scale * entry["metrics"][row["metric"]], abs=1e-3)
        assert int(row["count"]) == entry["counts"][row["metric"]]
    for table in ("COCO_val_retrieval", NEGATED):
        part = markdown.split(f"### {table}\n")[1].split("\n### ")[0].split("\n## ")[0]
        assert "text to image R@2" in part
        assert "R@3" in part
        assert "difference: text to image R@2" in part
        assert "published" not in part  # of R@1 and R@5
        for label in ("random", f"random + {patch}"):
            value = next(
                r for r in rows if (r["table"], r["method"], r["metric"]) == (table, label, "image_retrieval_recall@2")
            )["value"]  # fmt: skip
            line = next(line for line in part.splitlines() if line.startswith(f"| {label} |"))
            assert line.split("|")[2].strip().startswith(f"{float(value):.1f} (")
    assert "published" in markdown
    drawn: list[tuple[str, list[str]]] = []
    import matplotlib.figure

    save = matplotlib.figure.Figure.savefig

    def look(figure: Any, *args: Any, **options: Any) -> None:
        for axis in figure.axes:
            drawn.append((axis.get_title(loc="left"), [t.get_text() for t in axis.get_yticklabels()]))
        save(figure, *args, **options)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", look)
    report.plot(tmp_path / "plot.png")
    titles = dict(drawn)
    assert not any("(published)" in label for label in titles[f"{NEGATED}\nimage_retrieval_recall@2, %"])
    assert any("(published)" in label for label in titles[f"{COCO}\nacc, %"])


def test_a_gallery_of_one_image_shows_what_is_left(tmp_path: Path) -> None:
    made = negbench(tmp_path / "data", count=1)
    report = run(made, tmp_path / "out", only=["COCO_val_retrieval"])
    assert report.headings("COCO_val_retrieval") == {"image to text R@1": "text_retrieval_recall@1"}
    assert "| method | image to text R@1 | difference: image to text R@1 |" in (tmp_path / "out" / "table.md").read_text()
    ranks = run(made, tmp_path / "out", only=["COCO_val_retrieval"], ks=(9,))
    assert set(ranks.headings("COCO_val_retrieval")) == {"image_retrieval_median_rank", "text_retrieval_median_rank"}


def test_every_name_of_only_must_be_known(made: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no table is called VOC2012; there are .*chexpert"):
        run(made, tmp_path / "out", only=[COCO, "VOC2012"])
    assert not (tmp_path / "out").exists()


def test_an_image_of_the_same_size_is_another_image(made: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(made, data)
    for name in ("000000.png", "000001.png"):  # uncompressed, so that all have one size
        from PIL import Image

        image = Image.open(data / "pictures" / name).convert("RGB")
        image.save(data / "pictures" / name, "BMP")
    first = run(data, tmp_path / "out", image_roots=[data / "pictures"], only=[COCO])
    one, two = (data / "pictures" / name for name in ("000000.png", "000001.png"))
    assert one.stat().st_size == two.stat().st_size
    one.write_bytes(two.read_bytes())
    again = run(data, tmp_path / "out", image_roots=[data / "pictures"], only=[COCO])
    assert not first.runs[0].kept
    assert not again.runs[0].kept
