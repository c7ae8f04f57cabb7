"""``clipmend benchmark generation`` over random-weight pipelines: start to table, killed and resumed, and what it refuses."""

from __future__ import annotations

import csv
import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from clipmend.data.records import Caption
from clipmend.generation.benchmark import load_pipeline, run_generation
from clipmend.generation.benchmark_prompts import noun_prompts, prompts_called, read_prompts
from clipmend.negation.attach import attachment_of
from clipmend.negation.mismatch import MismatchError
from generation import tiny_pipelines as tiny

diffusers = pytest.importorskip("diffusers")
PROMPTS = [
    Caption("a dog", -1, "affirmative", ("dog",)),
    Caption("a photo without a cat", -1, "negative", (), ("cat",)),
    Caption("a dog and no cat", -1, "hybrid", ("dog",), ("cat",)),
]
FAST = {"num_inference_steps": 1, "height": 32, "width": 32}


class Brightness:
    """A judge that sees a thing where the picture is bright enough for it, and counts what it was asked."""

    fingerprint = "brightness, 1"

    def __init__(self, broken_after: int | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.broken_after = broken_after

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        if self.broken_after is not None and len(self.asked) >= self.broken_after:
            raise KeyboardInterrupt
        self.asked += [(image_path.name, thing) for thing in things]
        level = float(np.asarray(Image.open(image_path)).mean()) / 255
        return [level if thing == "cat" else 1 - level for thing in things]


@pytest.fixture(scope="module")
def case() -> tiny.Case:
    return tiny.sdxl()


def run(case: tiny.Case, out: Path, judge: Any = None, **options: Any) -> Any:
    patches = options.pop("patches", None)
    patches = {"own": case.patch()} if patches is None else patches
    settings = {"prompts": PROMPTS, "seeds": (0, 1), "settings": FAST, "device": "cpu", **options}
    return run_generation(case.pipeline, patches, judge=judge or Brightness(), out=out, **settings)


def test_start_to_table(case: tiny.Case, tmp_path: Path) -> None:
    judge = Brightness()
    report = run(case, tmp_path, judge)
    assert report.methods == ["plain", "+ own", "negative prompt"]
    assert len(report.rows) == 3 * 3 * 2
    assert attachment_of(case.pipeline) is None
    by = {(row.method, row.prompt, row.seed): row for row in report.rows}
    pictures = {key: np.asarray(Image.open(row.image)) for key, row in by.items()}
    assert not np.array_equal(pictures["plain", 2, 0], pictures["+ own", 2, 0])
    assert not np.array_equal(pictures["plain", 2, 0], pictures["plain", 2, 1])
    assert np.array_equal(pictures["plain", 0, 0], pictures["negative prompt", 0, 0])  # nothing excluded: the same picture
    assert not np.array_equal(pictures["plain", 1, 0], pictures["negative prompt", 1, 0])
    plain = case.run("a dog and no cat", seed=1, **FAST)
    assert np.abs(pictures["plain", 2, 1] / 255 - plain[0].numpy()).max() < 0.01  # what the pipeline draws by itself

    score = report.scores["plain", "hybrid"]
    expected = [
        float(row.answers["dog"] >= 0.5 and row.answers["cat"] < 0.5)
        for row in report.rows
        if (row.method, row.prompt) == ("plain", 2)
    ]
    assert score.hits.tolist() == expected
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "29.2" in text
    assert "47.6" in text
    lines = list(csv.DictReader((tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()))
    assert {line["prompts"] for line in lines} == {"affirmative", "exclusion", "hybrid", "negated", ""}
    assert json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["settings"]["num_inference_steps"] == 1
    assert Image.open(tmp_path / "sheet.png").width > 3 * 192


def test_a_second_run_draws_and_asks_nothing(case: tiny.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(case, tmp_path)
    first = (tmp_path / "table.md").read_bytes()
    monkeypatch.setattr(type(case.pipeline), "prepare_latents", None)  # drawing would fail
    judge = Brightness()
    run(case, tmp_path, judge)
    assert judge.asked == []
    assert (tmp_path / "table.md").read_bytes() == first


def test_killed_while_judging_and_gone_on_with(case: tiny.Case, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(case, tmp_path / "a", Brightness(broken_after=5), patches={})
    (answers,) = (tmp_path / "a" / "answers").iterdir()
    answers.write_bytes(answers.read_bytes()[:-9])  # a line that was being written
    pictures = sorted((tmp_path / "a" / "images").rglob("*.png"))
    pictures[0].write_bytes(pictures[0].read_bytes()[:40])
    judge = Brightness()
    run(case, tmp_path / "a", judge, patches={})
    run(case, tmp_path / "b", patches={})
    assert (tmp_path / "a" / "table.md").read_text() == (tmp_path / "b" / "table.md").read_text()
    total = len({line for line in answers.read_text().splitlines() if line.endswith("}")})
    assert 0 < len(judge.asked) < total


def test_another_patch_or_setting_is_drawn_anew(case: tiny.Case, tmp_path: Path) -> None:
    run(case, tmp_path, patches={})
    before = set((tmp_path / "images").rglob("*.png"))
    run(case, tmp_path, patches={}, settings={**FAST, "num_inference_steps": 2})
    after = set((tmp_path / "images").rglob("*.png"))
    assert before < after
    run(case, tmp_path, strength=0.5)
    assert len(set((tmp_path / "images").rglob("*.png")) - after) == 6
    assert "strength 0.5" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_pipelines_without_negative_prompt(tmp_path: Path) -> None:
    case, said = tiny.unclip(), []
    steps = {"prior_num_inference_steps": 2, "decoder_num_inference_steps": 2, "super_res_num_inference_steps": 2}
    report = run(case, tmp_path, settings=steps, seeds=(0,), say=said.append)
    assert report.methods == ["plain", "+ own"]
    assert any("takes no negative_prompt" in line for line in said)


def test_refused_before_anything_is_drawn(case: tiny.Case, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="token states"):
        run_generation(tiny.stable_diffusion_1(), {}, prompts=PROMPTS, judge=Brightness(), out=tmp_path)
    with pytest.raises(ValueError, match="gives image embeddings and no images"):
        run_generation(tiny.kandinsky_prior().pipeline, {}, prompts=PROMPTS, judge=Brightness(), out=tmp_path)
    other = tiny.kandinsky_prior()
    other.pipeline.text_encoder = tiny.text_encoder(seed=3)
    with pytest.raises(MismatchError):
        run(case, tmp_path, patches={"other": other.patch()})
    with pytest.raises(ValueError, match="takes no steps; it takes"):
        run(case, tmp_path, settings={"steps": 3})
    with pytest.raises(ValueError, match="set by the benchmark itself"):
        run(case, tmp_path, settings={"generator": None})
    with pytest.raises(ValueError, match="seeds must be different"):
        run(case, tmp_path, seeds=(1, 1))
    with pytest.raises(ValueError, match="no prompts"):
        run(case, tmp_path, prompts=[])
    assert list(tmp_path.iterdir()) == []


def test_judges_that_say_something_else(case: tiny.Case, tmp_path: Path) -> None:
    class Broken(Brightness):
        def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
            return [2.0] * len(things)

    with pytest.raises(ValueError, match="one probability a thing"):
        run(case, tmp_path, Broken(), patches={})


def test_a_prompt_that_the_pipeline_fails_at_is_named_and_the_rest_kept(
    case: tiny.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = type(case.pipeline).__call__

    def failing(self: Any, prompt: str, **options: Any) -> Any:
        if prompt == "a dog and no cat":
            raise RuntimeError("out of memory")
        return call(self, prompt, **options)

    failing.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    monkeypatch.setattr(type(case.pipeline), "__call__", failing)
    with pytest.raises(ValueError, match=r"failed at prompt 3 \('a dog and no cat', seed 0, plain\): RuntimeError: out of memory"):
        run(case, tmp_path, patches={}, seeds=(0,))
    assert len(list((tmp_path / "images").rglob("*.png"))) == 2


def test_a_patch_comes_off_where_the_pipeline_fails(case: tiny.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: value.clone() for name, value in case.encoder.state_dict().items()}

    def failing(self: Any, hidden: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        raise RuntimeError("broken in the middle")

    run(case, tmp_path, patches={}, negative_prompt=False, seeds=(0,))
    drawn = set((tmp_path / "images").rglob("*.png"))
    with monkeypatch.context() as patched:
        patched.setattr(type(case.pipeline.unet), "forward", failing)
        with pytest.raises(ValueError, match=r"prompt 1 .*\+ own.*broken in the middle.*kept"):
            run(case, tmp_path, negative_prompt=False, seeds=(0,))
    assert attachment_of(case.pipeline) is None
    assert all(torch.equal(value, kept[name]) for name, value in case.encoder.state_dict().items())
    assert set((tmp_path / "images").rglob("*.png")) == drawn
    assert len(run(case, tmp_path, negative_prompt=False, seeds=(0,)).rows) == 6


def test_a_judge_that_fails_is_told_with_the_image(case: tiny.Case, tmp_path: Path) -> None:
    class Failing(Brightness):
        def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
            raise RuntimeError("no memory")

    with pytest.raises(ValueError, match=r"the judge failed at .*\.png, asked for dog: RuntimeError: no memory"):
        run(case, tmp_path, Failing(), patches={}, negative_prompt=False, seeds=(0,))


def test_images_of_one_colour_are_told_of(case: tiny.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = run(case, tmp_path / "a", patches={}, negative_prompt=False, seeds=(0,))
    assert report.blank == {"plain": 0}
    assert "of one colour" not in report.markdown()
    monkeypatch.setattr(type(case.pipeline.vae), "decode", lambda self, z, **options: (torch.full((len(z), 3, 32, 32), -1.0),))
    report = run(case, tmp_path / "b", patches={}, negative_prompt=False, seeds=(0,))
    assert report.blank == {"plain": 3}
    assert "plain: 3 images are of one colour" in report.markdown()
    assert json.loads((tmp_path / "b" / "results.json").read_text(encoding="utf-8"))["blank"] == {"plain": 3}


@pytest.mark.parametrize("threshold", [float("nan"), 0.0, 50.0])
def test_thresholds_and_prompts_are_checked_before_anything_is_drawn(case: tiny.Case, tmp_path: Path, threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold is a probability"):
        run(case, tmp_path, threshold=threshold)
    with pytest.raises(ValueError, match=r"prompt 2 \('hello'\) asks for nothing"):
        run(case, tmp_path, prompts=[PROMPTS[0], Caption("hello", -1)])
    assert list(tmp_path.iterdir()) == []


# ---- prompts ------------------------------------------------------------------------------------------------------------------


def test_prompts_of_nouns() -> None:
    prompts = noun_prompts(40, seed=2)
    assert [prompt.form for prompt in prompts] == ["affirmative"] * 40 + ["negative"] * 40 + ["hybrid"] * 40
    assert len({prompt.text for prompt in prompts}) == 120
    assert noun_prompts(10, seed=2)[:10] == prompts[:10]
    assert all(not set(prompt.asserts) & set(prompt.denies) for prompt in prompts)
    assert all(len(prompt.denies) == (prompt.form != "affirmative") for prompt in prompts)
    assert prompts_called("nouns:3") == noun_prompts(3)
    with pytest.raises(ValueError, match="how many"):
        prompts_called("nouns:many")


def test_prompts_of_files(tmp_path: Path) -> None:
    table = tmp_path / "prompts.csv"
    table.write_bytes('\ufeffprompt,asserts,denies\r\n"a dog, no cat","[""dog""]","[""cat""]"\r\na dog,"[""dog""]",\r\n'.encode())
    assert read_prompts(table) == [
        Caption("a dog, no cat", -1, "hybrid", ("dog",), ("cat",)),
        Caption("a dog", -1, "affirmative", ("dog",)),
    ]
    text = tmp_path / "prompts.txt"
    text.write_text("a street without cars\n\na dog\n", encoding="utf-8")
    assert [(p.asserts, p.denies) for p in read_prompts(text)] == [(("street",), ("car",)), (("dog",), ())]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prompt,asserts,denies\na dog,\"['dog']\",\"['dog']\"\n", "line 2: dog is both"),
        ("prompt,asserts,denies\na dog,,\n", "line 2: the prompt asks for nothing"),
        ("prompt\na dog\na dog\n", "line 3: the same prompt as on line 2"),
        ("prompt,asserts,denies\na dog,dog,\n", "line 2: asserts is no list"),
        ("caption\na dog\n", "prompt"),
        ("prompt,denies\na dog and no cat,\"['cat']\"\n", "the column denies needs the other"),
        ("prompt,asserts\na dog,\"['dog']\"\n", "the column asserts needs the other"),
    ],
)
def test_broken_prompt_files(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_prompts(path)


def test_text_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes("a château\n".encode("latin-1"))
    (tmp_path / "p.jsonl").write_text('{"prompt": "a cup"}\n')
    with pytest.raises(ValueError, match=r"p\.txt: not UTF-8"):
        read_prompts(tmp_path / "p.txt")
    with pytest.raises(ValueError, match=r"p\.jsonl: prompts come as a table"):
        read_prompts(tmp_path / "p.jsonl")


# ---- pipelines by name, and the command ---------------------------------------------------------------------------------------


def test_pipelines_by_name(tmp_path: Path) -> None:
    tiny.stable_unclip().pipeline.save_pretrained(tmp_path / "unclip")  # of a kind that no automatic class lists
    tiny.sdxl().pipeline.save_pretrained(tmp_path / "sdxl")
    assert type(load_pipeline(str(tmp_path / "unclip"))).__name__ == "StableUnCLIPPipeline"
    assert type(load_pipeline(str(tmp_path / "sdxl"))).__name__ == "StableDiffusionXLPipeline"


def test_without_diffusers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"clipmend\[generate\]"):
        load_pipeline("sdxl")


def test_half_precision_carries_the_checked_patch(tmp_path: Path) -> None:
    own = tiny.sdxl()
    patch = own.patch()
    report = run(own, tmp_path, patches={"own": patch}, seeds=(0,), dtype=torch.bfloat16, negative_prompt=False)
    by = {(row.method, row.prompt): np.asarray(Image.open(row.image)) for row in report.rows}
    assert own.encoder.dtype == torch.bfloat16
    assert not np.array_equal(by["plain", 2], by["+ own", 2])
    assert attachment_of(own.pipeline) is None


def test_the_command(case: tiny.Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from clipmend.cli.app import app

    case.pipeline.save_pretrained(tmp_path / "sdxl")
    loaded = load_pipeline(str(tmp_path / "sdxl"))
    own = tiny.Case(loaded, "text_encoder_2", "unet", case.argument, case.run)
    own.patch().save_pretrained(tmp_path / "patch")
    (tmp_path / "prompts.txt").write_text("a dog\na photo without a cat\n", encoding="utf-8")
    (tmp_path / "bright_judge.py").write_text(
        "import numpy as np\nfrom PIL import Image\n\n\nclass Judge:\n    fingerprint = 'bright'\n\n"
        "    def judge(self, image_path, things):\n"
        "        return [float(np.asarray(Image.open(image_path)).mean()) / 255] * len(things)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [
        *("benchmark", "generation", "--pipeline", "sdxl", "--patches", "patch", "--prompts", "prompts.txt", "-o", "out"),
        *("--judge", "bright_judge:Judge", "--seeds", "1", "--device", "cpu"),
        *("--set", "num_inference_steps=1", "height=32", "width=32"),
    ]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "written: out/table.md" in result.output
    assert "+ patch" in (tmp_path / "out" / "table.md").read_text(encoding="utf-8")
    bad = CliRunner().invoke(app, [*arguments, "--set", "height"])
    assert bad.exit_code != 0
