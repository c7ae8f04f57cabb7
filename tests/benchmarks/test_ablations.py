"""The ablations: what is fitted, how it is summed up, and (slow) a tiny run from scenes to page."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import clipmend

ROOT = Path(__file__).parents[2]
MARKS = "head\n\n<!-- ablations: begin -->\nold\n<!-- ablations: end -->\n\ntail\n"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("ablations")


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("ablations_page")


def found(choice: dict[str, list[float]], lcd: list[float], peak: int, scenes: int = 1200) -> dict[str, Any]:
    """What a run writes, with the choice of the ECN by variant and seed; everything else is the same for all."""
    rest = {
        "exclusion/auroc/standard": 0.9,
        "negated_retrieval/image_retrieval_recall@5": 0.7,
        "retrieval/image_retrieval_recall@5": 0.89,
    }
    base = {
        "choice/acc/standard": 0.25,
        "retrieval/image_retrieval_recall@5": 0.9,
        "negated_retrieval/image_retrieval_recall@5": 0.5,
    }
    parts = {"published": "main", "direct": "main", "no-pool": "parts"}
    return {
        "settings": {"scenes": scenes, "steps": 200, "test_scenes": 400},
        "diagnosis": {
            "peak": peak,
            "relative_lcd": {str(k): {"value": v, "low": None, "high": None, "count": 1} for k, v in enumerate(lcd, 1)},
        },
        "variants": {name: {"label": name, "part": parts.get(name, "peaks")} for name in choice},
        "backbone": {"metrics": base, "counts": {"choice/acc/standard": 321}, "intervals": {"choice/acc/standard": [0.2, 0.31]}},
        "fits": [
            {
                "variant": name,
                "seed": seed,
                "metrics": {**rest, "ecn/choice/acc/standard": value},
                "counts": {},
                "seconds": {"all": 60.0},
            }
            for name, values in choice.items()
            for seed, value in enumerate(values)
        ],
    }


def cells(text: str, row: str) -> list[list[str]]:
    """The cells of every table row that begins with ``row``."""
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith(f"| {row} |")]


def test_interval_is_students_t(page: Any) -> None:
    # Three fits: 4.303 standard errors. s = .01 exactly.
    assert page.half_width([0.90, 0.91, 0.92]) == pytest.approx(4.303 * 0.01 / 3**0.5)
    assert page.half_width([0.4, 0.6]) == pytest.approx(12.706 * 0.1)
    assert page.with_interval([0.90, 0.91, 0.92]) == "91.0 ± 2.5"
    assert page.with_interval([0.9]) == "90.0"
    assert page.with_interval([]) == ""
    assert page.with_interval([0.01, 0.01, 0.01], signed=True) == "**+1.0 ± 0.0**"
    assert page.with_interval([-0.01, 0.01, 0.03], signed=True) == "+1.0 ± 5.0"


def test_tables(page: Any, tmp_path: Path) -> None:
    made = found({"published": [0.9, 0.91, 0.92], "direct": [0.95, 0.96, 0.97], "no-pool": [0.8, 0.9, 0.7]}, [1.0, 2.0], 2)
    text = page.write_page(made, None)
    assert cells(text, "backbone")[0][1] == "25.0 (20.0–31.0)"
    assert cells(text, "published")[0][1] == "91.0 ± 2.5"
    assert cells(text, "*n*")[0][1] == "321"
    # .7 of .5 to .9 is half of the gap; plain recall lost a point.
    closed = cells(text, "published")[2]
    assert closed[1:5] == ["70.0 ± 0.0", "50.0 ± 0.0", "89.0 ± 0.0", "-1.0 ± 0.0"]
    # Paired by seed: +5 each time is certain, what goes up and down is not.
    assert cells(text, "direct")[-1][1] == "**+5.0 ± 0.0**"
    assert not cells(text, "no-pool")[-1][1].startswith("**")
    assert "no results" not in text
    assert "no results" in page.write_page({**made, "settings": {**made["settings"], "steps": 6}}, None)
    with pytest.raises(ValueError, match="nothing was fitted"):
        page.write_page({**made, "fits": []}, None)


@pytest.mark.parametrize(("best", "same"), [(2, True), (3, False)])
def test_does_the_best_peak_agree_with_relative_lcd(page: Any, best: int, same: bool) -> None:
    choice = {name: [0.8, 0.82] for name in ("peak-1", "published", "peak-3")}
    choice["published" if best == 2 else "peak-3"] = [0.95, 0.96]
    text = page.write_page(found(choice, [1.0, 1.9, 1.2], 2), None)
    line = re.search(r"- choice, ECN: .*", text)
    assert line is not None
    assert f"best at layer {best}, {'the' if same else 'not the'} layer where relative LCD is largest (2)" in line[0]
    assert f"best in {2 if same else 0} of 2 seeds" in line[0]


def test_page_is_written_between_its_marks(page: Any, tmp_path: Path) -> None:
    made = found({"peak-1": [0.8, 0.7], "published": [0.9, 0.95]}, [1.0, 1.9], 2)
    target = tmp_path / "page.md"
    target.write_text(MARKS, encoding="utf-8")
    for _ in range(2):  # again over its own
        page.write_page(made, target)
        text = target.read_text(encoding="utf-8")
        assert text.startswith("head\n")
        assert text.endswith("\ntail\n")
        assert "old" not in text
        assert text.count("### Every peak layer") == 1
    plot = tmp_path / "images" / "ablations-peaks.png"
    assert plot.stat().st_size < 150_000
    Image.open(plot).verify()
    target.write_text("no marks\n", encoding="utf-8")
    with pytest.raises(ValueError, match="marks"):
        page.write_page(made, target)
    assert target.read_text(encoding="utf-8") == "no marks\n"


def test_variants(script: Any) -> None:
    diagnosis: Any = SimpleNamespace(layers=[None] * 6, peak=4, anchor=2, scn_layers=(4, 6))
    made = script.variants(diagnosis)
    configs = {name: clipmend.PeakPatchConfig(**variant.changes) for name, variant in made.items()}
    assert all(c.text_only_weight == 0 for c in configs.values())
    assert {name for name, c in configs.items() if c.use_direct} == {"direct", "direct-released"}
    peaks = [c.peak for name, c in configs.items() if made[name].part == "peaks"]
    assert [*peaks, configs["published"].peak] == [1, 2, 3, 5, 6, 4]
    assert len({repr(c) for c in configs.values()}) == len(made)


def test_page_of_the_documentation_has_its_marks_and_pictures(page: Any) -> None:
    text = (ROOT / "docs" / "ablations.md").read_text(encoding="utf-8")
    assert text.count(page.BEGIN) == text.count(page.END) == 1
    for name, most in (("ablations-peaks.png", 150_000), ("ablations-search.png", 200_000)):
        assert f"images/{name}" in text
        assert (ROOT / "docs" / "images" / name).stat().st_size < most


@pytest.mark.slow
def test_tiny_run(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work, out, target = tmp_path / "work", tmp_path / "out.json", tmp_path / "page.md"
    size = ["--scenes", "40", "--steps", "2", "--test-scenes", "16", "--work", str(work), "--json", str(out)]
    script.main([*size, "--seeds", "0", "--variants", "backbone", "rivals", "scn-only", "published"])
    made = {path: path.read_bytes() for path in (work / "results").glob("*.json")}
    assert {path.stem for path in made} == {"backbone", "rivals", "scn-only-seed0", "published-seed0"}

    # The SCN alone leaves every embedding where it was.
    read = json.loads(out.read_text(encoding="utf-8"))
    fits = {fit["variant"]: fit["metrics"] for fit in read["fits"]}
    for key, value in read["backbone"]["metrics"].items():
        if not key.startswith("choice/"):
            assert fits["scn-only"][key] == pytest.approx(value, abs=1e-9)
    assert fits["scn-only"]["ecn/choice/acc/standard"] == read["backbone"]["metrics"]["choice/acc/standard"]
    assert fits["scn-only"]["kept"] == pytest.approx(1, abs=1e-6)
    assert fits["published"]["kept"] < 1 - 1e-6

    # What is there is not made again; what is not is.
    script.main([*size, "--seeds", "0", "1", "--variants", "backbone", "rivals", "scn-only"])
    assert all(path.read_bytes() == content for path, content in made.items())
    assert (work / "results" / "scn-only-seed1.json").exists()
    with pytest.raises(ValueError, match="--work"):
        script.main([*size, "--steps", "3", "--variants", "backbone"])
    with pytest.raises(SystemExit):
        script.main([*size, "--variants", "nonsense"])
    assert "nonsense" in capsys.readouterr().err

    target.write_text(MARKS, encoding="utf-8")
    script.main(["--table", "--json", str(out), "--page", str(target)])
    text = target.read_text(encoding="utf-8")
    assert "no results" in text
    assert all(rival in text for rival in read["rivals"])
    script.main(["--work", str(work), "--test-scenes", "16", "--pictures", "scenes", "--page", str(target)])
    assert Image.open(tmp_path / "images" / "ablations-search.png").size[0] > 600
