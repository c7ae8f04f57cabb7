"""The position lens shows an encoder that reads the first sentence only, and acquits one that reads them all."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tests.data import dense_made as made
from tests.evaluation.fakes import LookupEncoder

from clipmend.backbones.base import LongTextsWarning
from clipmend.data.dense import DenseData
from clipmend.data.sentences import split_sentences
from clipmend.evaluation import PositionLens, evaluate_positions, plot_positions, position_changes
from clipmend.evaluation.caption_changes import CHANGES, change_captions

TEXT = "A dog sits. It is brown. The sky is blue. A tree stands left. It rains."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("swapped", "It is brown. A dog sits. The sky is blue. A tree stands left. It rains."),
        ("first-and-fourth", "A tree stands left. It is brown. The sky is blue. A dog sits. It rains."),
        ("fourth", "It is brown. The sky is blue. A tree stands left. A dog sits. It rains."),
        ("no-first", "It is brown. The sky is blue. A tree stands left. It rains."),
        ("first", "A dog sits."),
        ("last", "It rains."),
        ("filler-1", f"This is a photo. {TEXT}"),
        ("filler-3", f"This is a photo. This is a photo. This is a photo. {TEXT}"),
    ],
)
def test_each_change_says_what_it_should(name: str, expected: str) -> None:
    change = next(change for change in position_changes() if change.name == name)
    found = change_captions([TEXT], change)
    assert found.texts == [expected]
    assert found.unchanged == 0


def test_filler_of_ones_own_is_taken_in_turn() -> None:
    change = position_changes(["first"], fillers=(3,), filler=["Look at this.", "Nice."])[0]
    assert change_captions(["A dog."], change).texts == ["Look at this. Nice. Look at this. A dog."]


@settings(max_examples=100, deadline=None)
@given(words=st.lists(st.sampled_from(["One", "Two", "Three", "Four"]), min_size=1, max_size=6), seed=st.integers(0, 5))
def test_a_random_order_is_another_order_of_the_same_sentences(words: list[str], seed: int) -> None:
    caption = " ".join(f"{word} cats." for word in words)
    found = change_captions([caption, "An intruder. It hides.", caption], CHANGES["shuffled"], seed=seed)
    assert sorted(split_sentences(found.texts[0])) == sorted(split_sentences(caption))
    assert found.texts[0] == found.texts[2]  # by the caption, not by where it stands
    assert found.texts[1] == "It hides. An intruder."
    if len(set(words)) == 1:
        assert found.texts[0] == caption
    assert found.unchanged == 2 * (found.texts[0] == caption)


def test_every_order_but_the_given_one_is_as_likely() -> None:
    counts: dict[str, int] = {}
    for seed in range(500):
        (text,) = change_captions(["Cats sit. Dogs run. Hens fly."], CHANGES["shuffled"], seed=seed).texts
        counts[text] = counts.get(text, 0) + 1
    assert len(counts) == 5
    assert min(counts.values()) > 60  # 100 each on average, standard deviation 9


def test_captions_too_short_keep_their_text_to_the_letter() -> None:
    captions = ["A dog.\n It  sits.", "A dog. It sits. It barks. It runs."]
    found = change_captions(captions, CHANGES["fourth"])
    assert found.texts == [captions[0], "It sits. It barks. It runs. A dog."]
    assert found.unchanged == 1
    assert change_captions(["A dog.", "", "Wow"], CHANGES["no-first"]).unchanged == 3
    assert change_captions(["Same here. Same here."], CHANGES["swapped"]).unchanged == 1


def vector(sentence: str) -> np.ndarray:
    seed = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:8], "little")
    rows = np.random.default_rng(seed).normal(size=256)
    return rows / np.linalg.norm(rows)


class Reader(LookupEncoder):
    """Sees every sentence of a picture's own caption, and of a text those that ``reads`` picks."""

    def __init__(self, captions: Sequence[str], reads: Callable[[list[str]], list[str]], limit: int = 10**6) -> None:
        own = {f"{k}.png": sum(vector(s) for s in split_sentences(text)) for k, text in enumerate(captions)}
        super().__init__(images=own, name="reader")  # type: ignore[arg-type]
        self.reads, self.limit = reads, limit

    def encode_texts(self, texts: Any, **options: Any) -> torch.Tensor:
        self.calls["texts"] += len(texts)
        long = [text for text in texts if len(text.split()) > self.limit]
        if long:
            warnings.warn(LongTextsWarning("cut", len(long)), stacklevel=2)
        return self._rows([sum(vector(s) for s in self.reads(split_sentences(text))) for text in texts], True)


KINDS = ["dog", "cat", "cow", "hen", "fox", "owl"]


def data(folder: Path, count: int = 24) -> DenseData:
    captions = [
        f"Number {k} is here. A {KINDS[k % 6]} called Nr{k} eats. The wall has {k} bricks. The sun is up. It cost {k} euros."
        for k in range(count)
    ]
    for k in range(count):
        made.picture(folder / f"{k}.png", k)
    ids = [str(k) for k in range(count)]
    images = [folder / f"{k}.png" for k in range(count)]
    return DenseData("drawn", "test", images, captions, np.arange(count), ids, [f"{k}#0" for k in ids])


def changes_of(lens: PositionLens, measure: str) -> dict[str, float]:
    return {view.name: view.change.differences[measure].difference for view in lens.views if view.change is not None}


@pytest.mark.parametrize("measure", ["image_retrieval_recall@1", "text_retrieval_recall@1"])
def test_an_encoder_of_first_sentences_is_found_out(measure: str, tmp_path: Path) -> None:
    test = data(tmp_path)
    encoder = Reader(test.captions, lambda sentences: sentences[:1])
    lens = evaluate_positions(encoder, test, samples=200)
    assert encoder.calls["images"] == len(test.images)  # once for all changes
    assert lens["as-they-are"].result.metrics[measure] == 1.0
    found = changes_of(lens, measure)
    assert found["first"] == 0.0
    # All that it reads is "This is a photo." or "The sun is up.", whatever the picture: one text finds its picture by chance, and
    # texts tie, which counts against it.
    chance = 1 / 24 if measure.startswith("image") else 0.0
    for name in ("filler-1", "filler-3", "first-and-fourth"):
        assert found[name] == pytest.approx(chance - 1)
    for name in ("swapped", "fourth", "no-first", "last"):  # each of them still names the picture, by another sentence
        assert found[name] == 0.0


def test_an_encoder_of_all_sentences_is_acquitted_of_order(tmp_path: Path) -> None:
    test = data(tmp_path)
    lens = evaluate_positions(Reader(test.captions, lambda sentences: sentences), test, samples=200)
    for measure in ("image_retrieval_recall@1", "text_retrieval_recall@1", "image_retrieval_recall@5"):
        found = changes_of(lens, measure)
        assert [found[name] for name in ("swapped", "first-and-fourth", "fourth", "shuffled", "filler-1")] == [0.0] * 5


def test_a_model_of_summaries_loses_what_the_summary_says(tmp_path: Path) -> None:
    """Only opening sentences tell the pictures apart: without them nobody could do better, and the lens says why."""
    test = data(tmp_path, 12)
    test.captions = [f"Number {k} is here. A wall has {k // 6} bricks." for k in range(12)]
    lens = evaluate_positions(Reader(test.captions, lambda sentences: sentences), test, samples=200)
    view = lens["no-first"]
    assert view.result.metrics["image_retrieval_recall@1"] == pytest.approx(2 / 12)  # one picture for each of the two texts
    assert view.result.metrics["text_retrieval_recall@1"] == 0.0
    assert view.shared == 12  # six captions each
    assert lens["first"].shared == lens["as-they-are"].shared == 0
    assert lens["fourth"].unchanged == 12
    assert changes_of(lens, "image_retrieval_recall@1")["fourth"] == 0.0


def test_the_paired_difference_is_that_of_the_queries(tmp_path: Path) -> None:
    test = data(tmp_path)
    rng = np.random.default_rng(0)
    noisy = Reader(test.captions, lambda sentences: sentences[:2])
    for name in list(noisy.images):
        noisy.images[name] = 0.35 * np.asarray(noisy.images[name]) + rng.normal(size=256) * 0.25  # type: ignore[assignment]
    lens = evaluate_positions(noisy, test, samples=400)
    plain, changed = lens["as-they-are"].result, lens["no-first"].result
    a, b = (np.asarray(result.text_ranks) <= 1 for result in (plain, changed))
    assert 0 < a.mean() < 1
    view = lens["no-first"].change
    assert view is not None
    found = view.differences["image_retrieval_recall@1"]
    assert found.difference == pytest.approx(b.mean() - a.mean())
    assert found.low <= found.difference <= found.high
    spread = (b.astype(float) - a).std() / np.sqrt(len(a))
    assert found.high - found.low == pytest.approx(2 * 1.96 * spread, rel=0.35)
    again = evaluate_positions(noisy, test, samples=400)
    assert again.to_dict() == lens.to_dict()


def test_what_is_cut_and_what_is_written(tmp_path: Path) -> None:
    test = data(tmp_path)
    words = len(test.captions[0].split())
    lens = evaluate_positions(Reader(test.captions, lambda sentences: sentences, limit=words), test, samples=100)
    cut = {view.name: view.result.truncated for view in lens.views}
    assert cut["filler-1"] == cut["filler-3"] == 24
    assert {cut[name] for name in cut if not name.startswith("filler")} == {0}
    written = json.loads(lens.save(tmp_path / "positions.json").read_text())
    assert [view["change"] for view in written["views"]] == ["as-they-are", "filler-1", "filler-3", *CHANGES]
    filler = written["views"][1]
    assert filler["truncation"]["share"] == 1.0
    assert filler["unchanged"] == 0
    assert set(filler["differences"]) == set(filler["metrics"]) == set(filler["difference_intervals"])
    assert written["gallery"]["sha256"] == test.gallery_digest(test.digests())
    assert "differences" not in written["views"][0]
    console = Console(width=200, record=True, file=(tmp_path / "shown").open("w"))
    console.print(lens.table())
    shown = console.export_text()
    for text in ("text → image", "image → text", "3 × filler in front", "first moved to 4th", "R@5", "100.0 %", "24 images"):
        assert text in shown


def test_pictures_of_one_model_and_of_two(tmp_path: Path) -> None:
    test = data(tmp_path)
    lenses = [
        evaluate_positions(Reader(test.captions, reads), test, samples=50, model=name)
        for name, reads in (("all", lambda s: s), ("first", lambda s: s[:1]))
    ]
    assert lenses[0].plot(tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    drawn = plot_positions(lenses, tmp_path / "new" / "two.svg").read_text()
    assert drawn.count("as they are") == 4  # two models, two directions
    assert not [path.name for path in (tmp_path / "new").iterdir() if path.suffix == ".part"]
    other = evaluate_positions(Reader(test.captions, lambda s: s), test, changes=[CHANGES["first"]], samples=50)
    with pytest.raises(ValueError, match="different changes"):
        plot_positions([lenses[0], other], tmp_path / "x.png")
    with pytest.raises(ValueError, match="no position lens"):
        plot_positions([], tmp_path / "x.png")


def test_missing_images_and_one_image(tmp_path: Path) -> None:
    test = data(tmp_path, 3)
    encoder = Reader(test.captions, lambda sentences: sentences)
    test.images[1].unlink()
    with pytest.raises(FileNotFoundError, match="1 of 3 images have no file"):
        evaluate_positions(encoder, test)
    lens = evaluate_positions(encoder, test, on_missing="skip", digests=["a", "b", "c"], samples=20)
    assert any("left out with their captions" in note for note in lens.notes)
    assert len(lens.views[0].result.image_ranks) == 2
    test.images[2].unlink()
    alone = evaluate_positions(encoder, test, on_missing="skip", samples=20)
    assert alone.table().row_count == 2 * len(alone.views) + 2
    with pytest.raises(ValueError, match="too small for recall"):
        alone.plot(tmp_path / "x.png")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"names": ["second"]}, "there is no change 'second'; there are swapped"),
        ({"fillers": (0,)}, "not 0 times"),
        ({"filler": [" "]}, "none of them empty"),
        ({"filler": []}, "one sentence or more"),
        ({"names": [], "fillers": ()}, "name a change"),
    ],
)
def test_changes_that_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        position_changes(**options)


def test_two_changes_of_one_name_are_refused(tmp_path: Path) -> None:
    test = data(tmp_path, 2)
    with pytest.raises(ValueError, match="two changes have one name"):
        evaluate_positions(Reader(test.captions, lambda s: s), test, changes=[CHANGES["first"], CHANGES["first"]])
    with pytest.raises(KeyError, match="no view 'last'"):
        evaluate_positions(Reader(test.captions, lambda s: s), test, changes=[CHANGES["first"]], samples=5)["last"]
