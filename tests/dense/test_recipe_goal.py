"""The recipe goal: its loss against a slow one, what each term changes, boxes and sentences at their limits, end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from clipmend.data.dense.collection import Segment
from clipmend.dense import Pairs, finetune, make_recipe
from clipmend.dense.batches import Preparer
from clipmend.dense.boxes import Frames, clip_box, crop_box, patch_coverage
from clipmend.dense.recipes import Example, Joined, Moment
from clipmend.dense.recipes.goal import best_parts, find_sentence
from dense import small_training as small

NOW = Moment(0, 10, 0.0)


# ---- the loss -----------------------------------------------------------------------------------------------------------------


def batch(parts: int = 2, rows: int = 5) -> Joined:
    """Five pairs, two places for parts each; not all are taken, and some boxes and sentences are not to be seen."""
    generator = torch.Generator().manual_seed(4)
    unit = lambda *shape: F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)  # noqa: E731
    words = torch.ones(rows, 9, dtype=torch.bool)
    words[:, 0] = False  # the start
    words[:, 7:] = False  # end and padding
    there = torch.tensor([[1, 1], [1, 0], [0, 0], [1, 1], [1, 1]]).float()[:, :parts]
    view = torch.tensor(
        [
            [[0.0, 0.0, 0.5, 0.5], [0.1, 0.2, 0.7, 0.9]],
            [[0.9, 0.9, 1.3, 1.4], [0.0] * 4],
            [[0.0] * 4, [0.0] * 4],
            [[-0.4, 0.2, -0.1, 0.8], [0.4, 0.4, 0.41, 0.41]],  # the first is outside what is seen
            [[0.0, 0.0, 1.0, 1.0], [0.3, 0.0, 0.3001, 1.0]],
        ]
    )[:, :parts]
    spans = torch.tensor([[[0, 2], [2, 5]], [[4, 6], [0, 0]], [[0, 0], [0, 0]], [[0, 0], [5, 90]], [[1, 2], [6, 6]]])[:, :parts]
    outputs = {
        "image": unit(rows, 6), "text": unit(rows, 6), "image_tokens": unit(rows, 9, 6), "text_tokens": unit(rows, 9, 6),
        "image/part": unit(rows, parts, 6), "text/sentence": unit(rows, parts, 6),
        "logit_scale": torch.tensor(7.0, dtype=torch.float64),
    }  # fmt: skip
    numbers = {
        "part_there": there, "part_view": view, "part_words": spans,
        "part_box": torch.arange(rows * parts * 4).reshape(rows, parts, 4),
        "part_text": torch.arange(rows * parts).reshape(rows, parts) + 100,
    }  # fmt: skip
    return Joined(outputs, torch.arange(rows), torch.arange(rows), {"text_words": words}, numbers)


def slow_terms(b: Joined, gamma: float = 0.0, same: tuple[tuple[int, int], ...] = ()) -> dict[str, float]:
    """GOAL in plain lines; ``same``: pairs of flat part numbers that are no negatives of each other."""

    def softmax(images: Tensor, texts: Tensor, gamma: float, same: tuple[tuple[int, int], ...]) -> float:
        total = 0.0
        n = len(images)
        for forth in (True, False):
            for i in range(n):
                denominator = 0.0
                for j in range(n):
                    if j != i and ((i, j) in same or (j, i) in same):
                        continue
                    s = float(images[i] @ texts[j]) if forth else float(texts[i] @ images[j])
                    margin = 0.0 if i == j else gamma * float(texts[i] @ texts[j])
                    denominator += math.exp(7.0 * (s + margin))
                total += math.log(denominator) - 7.0 * float(images[i] @ texts[i])
        return total / (2 * n)

    places = [(n, k) for n in range(5) for k in range(2) if b.numbers["part_there"][n, k]]
    parts = torch.stack([b.outputs["image/part"][n, k] for n, k in places])
    sentences = torch.stack([b.outputs["text/sentence"][n, k] for n, k in places])
    patch, text = [], []
    for place, (n, k) in enumerate(places):
        left, top, right, bottom = b.numbers["part_view"][n, k].double().tolist()
        pooled = torch.zeros(6, dtype=torch.float64)
        for row in range(3):
            for column in range(3):
                across = max(0.0, min(right, (column + 1) / 3) - max(left, column / 3))
                down = max(0.0, min(bottom, (row + 1) / 3) - max(top, row / 3))
                pooled += across * down * b.outputs["image_tokens"][n, 3 * row + column]
        if pooled.norm() > 0:
            patch.append((1 - float(pooled / pooled.norm() @ parts[place])) ** 2)
        begin, end = b.numbers["part_words"][n, k].tolist()
        inside = b.outputs["text_tokens"][n][1:7][begin:end]
        if len(inside):
            mean = inside.mean(0)
            text.append((1 - float(mean / mean.norm() @ sentences[place])) ** 2)
    assert (len(places), len(patch), len(text)) == (7, 6, 5)  # the fixture has what is left out
    return {
        "global": softmax(b.image, b.text, gamma, ()), "parts": 0.5 * softmax(parts, sentences, 0.0, same),
        "patches": sum(patch) / len(patch), "words": sum(text) / len(text),
    }  # fmt: skip


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_loss_is_the_slow_one(gamma: float) -> None:
    b = batch()
    found = make_recipe("goal", gamma=gamma, parts=2).losses(b, NOW)
    wanted = slow_terms(b, gamma)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(wanted, rel=1e-6)
    other = slow_terms(b, 0.5 - gamma)
    assert abs(other["global"] - wanted["global"]) > 1e-3  # the margin is in the global term,
    assert other["parts"] == wanted["parts"]  # and there alone


@pytest.mark.parametrize("name", ["segment_weight", "patch_weight", "text_weight"])
def test_each_term_changes_the_sum(name: str) -> None:
    b = batch()
    whole = sum(make_recipe("goal", parts=2).losses(b, NOW).values())
    without = sum(make_recipe("goal", parts=2, **{name: 0.0}).losses(b, NOW).values())
    assert abs(whole - without) > 1e-2


def test_repeated_parts_are_no_negatives() -> None:
    b = batch()
    plain = float(make_recipe("goal", parts=2).losses(b, NOW)["parts"])
    b.numbers["part_text"][3, 0] = b.numbers["part_text"][0, 1]  # one sentence twice: flat parts 1 and 3
    found = float(make_recipe("goal", parts=2).losses(b, NOW)["parts"])
    assert found == pytest.approx(slow_terms(b, same=((1, 3),))["parts"], rel=1e-6)
    assert abs(found - plain) > 1e-3
    b = batch()
    b.image_ids[1] = 0  # two captions of one image, one box: flat parts 0 and 2
    b.numbers["part_box"][1, 0] = b.numbers["part_box"][0, 0]
    found = float(make_recipe("goal", parts=2).losses(b, NOW)["parts"])
    assert found == pytest.approx(slow_terms(b, same=((0, 2),))["parts"], rel=1e-6)
    assert abs(found - plain) > 1e-3
    b.image_ids[1] = 1  # the same box of another image is another part
    assert float(make_recipe("goal", parts=2).losses(b, NOW)["parts"]) == pytest.approx(plain)


def test_a_batch_without_parts_is_the_global_term() -> None:
    b = batch()
    b.numbers["part_there"].zero_()
    found = make_recipe("goal", parts=2).losses(b, NOW)
    assert float(found["global"]) > 0
    assert [float(found[name]) for name in ("parts", "patches", "words")] == [0.0, 0.0, 0.0]
    off = make_recipe("goal", segment_weight=0.0, patch_weight=0.0, text_weight=0.0)
    assert list(off.losses(b, NOW)) == ["global"]
    assert not off.tokens()


@pytest.mark.parametrize(
    ("values", "said"),
    [({"parts": 0}, "parts is 0"), ({"choose": "some"}, "choose is 'some'"), ({"patch_weight": -1.0}, "patch_weight is -1.0")],
)
def test_fields_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_recipe("goal", **values)


# ---- boxes --------------------------------------------------------------------------------------------------------------------


def test_boxes_at_the_border_and_of_one_pixel() -> None:
    assert clip_box((-5, 2, 500, 9), (40, 30)) == (0, 2, 40, 9)
    assert clip_box((39, 29, 40, 30), (40, 30)) == (39, 29, 40, 30)
    assert clip_box((40, 0, 50, 10), (40, 30)) is None
    assert clip_box((3, 3, 3, 9), (40, 30)) is None
    image = Image.new("RGB", (40, 30))
    image.putpixel((39, 29), (255, 0, 0))
    corner = crop_box(image, (39, 29, 40, 30))
    assert corner.size == (1, 1)
    assert corner.getpixel((0, 0)) == (255, 0, 0)
    assert crop_box(image, (0, 29, 40, 30)).size == (40, 5)  # widened to one eighth
    assert crop_box(image, (39, 0, 40, 30)).size == (4, 30)
    assert crop_box(Image.new("RGB", (100, 2)), (0, 0, 100, 1)).size == (100, 2)  # no more than there is


def test_coverage_of_patches() -> None:
    boxes = torch.tensor(
        [[0.0, 0.0, 0.5, 0.5], [0.25, 0.0, 0.75, 0.5], [0.5, 0.5, 0.5001, 0.5001], [2.0, 2.0, 3.0, 3.0], [-1.0, -1.0, 2.0, 2.0]],
        dtype=torch.float64,
    )
    wanted = torch.tensor([[1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0.25] * 4], dtype=torch.float64)
    assert_close(patch_coverage(boxes, 4), wanted)
    with pytest.raises(ValueError, match="6 patches are no square"):
        patch_coverage(boxes, 6)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("size", [(200, 100), (70, 300), (33, 32), (32, 32), (1200, 900), (9, 14)])
def test_what_an_encoder_sees_is_found_out(kind: str, size: tuple[int, int], encoders: dict[str, Any]) -> None:
    """CLIP sees the middle square, SigLIP everything."""
    width, height = size
    wanted = np.array([0.0, 0.0, 1.0, 1.0])
    if kind == "clip":
        side = min(size)
        wanted = np.array([(width - side) / 2 / width, (height - side) / 2 / height, (width + side) / 2 / width, 0])
        wanted[3] = (height + side) / 2 / height
    found = np.array(Frames(encoders[kind].prepare_image)(size))
    assert np.abs(found - wanted).max() < 0.035  # half a pixel of 32, and rounding to whole pixels


def test_an_image_of_one_pixel_is_seen_whole(encoders: dict[str, Any]) -> None:
    assert Frames(encoders["clip"].prepare_image)((1, 1)) == (0.0, 0.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "clip": clipmend.load(small.clip_folder(folder / "clip"), device="cpu"),
        "siglip": clipmend.load(small.siglip_folder(folder / "siglip"), device="cpu"),
    }


def test_the_parts_of_an_example() -> None:
    parts = (
        Segment("", "worst", (0, 0, 5, 5), -1.0), Segment("", "unscored", (1, 0, 5, 5)), Segment("", "best", (2, 0, 50, 5), 0.5),
        Segment("", "without box", None, 9.0), Segment("", "second", (3, 0, 5, 5), 0.4),
    )  # fmt: skip
    example = Example(3, Image.new("RGB", (20, 10)), "a caption", segments=parts)
    rng = np.random.default_rng(0)
    assert best_parts(example, 2, "best", rng) == [((2, 0, 20, 5), "best"), ((3, 0, 5, 5), "second")]
    assert [text for _, text in best_parts(example, 9, "best", rng)] == ["best", "second", "worst", "unscored"]
    drawn = {tuple(text for _, text in best_parts(example, 1, "random", rng)) for _ in range(60)}
    assert drawn == {("worst",), ("unscored",), ("best",), ("second",)}
    outside = Example(3, Image.new("RGB", (20, 10)), "a caption", segments=(Segment("", "far", (25, 0, 30, 5)),))
    with pytest.raises(ValueError, match=r"pair 3 \('a caption'\): the box \(25, 0, 30, 5\) lies outside its image, .* 20 x 10"):
        best_parts(outside, 1, "best", rng)


# ---- sentences ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sentence", "wanted"),
    [
        ("A cat sits.", "A cat sits."),
        ("a  cat\nsits", "A cat sits"),
        ("A red Car!", "A red car"),
        ("cat", "cat"),
        ("ca", None),
        ("A dog", None),
        (".", None),
    ],
)
def test_a_sentence_is_found_in_its_caption(sentence: str, wanted: str | None) -> None:
    text = "Two cats. A cat sits. A red car."
    found = find_sentence(text, sentence)
    assert (text[slice(*found)] if found else None) == wanted


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_words_of_a_sentence(kind: str, encoders: dict[str, Any]) -> None:
    """The tokens marked are those of the sentence, also where it is cut, and none where it lies behind the last position."""
    encoder = encoders[kind]
    caption = "a dog. no cat" if kind == "clip" else "a dog. no"
    parts = (Segment("", caption.partition(". ")[2], (0, 0, 8, 8), 1.0), Segment("", "elsewhere", (0, 0, 8, 8), 0.5))
    image = Image.new("RGB", (16, 16))
    pairs = Pairs(
        "few", [image] * 4, [caption, f"{'x ' * 60}. no cat", "one", "two"], np.arange(4), list("abcd"), segments=[parts] * 4
    )
    preparer = Preparer(encoder, pairs, make_recipe("goal", parts=3), whole_length=kind == "siglip", seed=0)
    made = [preparer.example(0, row) for row in range(2)]
    _, masks, numbers = preparer.collate(made)
    spans = numbers["part_words"]
    begin, end = spans[0, 0].tolist()
    ids = torch.tensor(made[0]["text"])
    words = ids[masks["text_words"][0][: len(ids)]].tolist()
    alone = torch.tensor(preparer.ids_of(parts[0].caption))
    alone = alone[preparer.words(alone[None], torch.ones_like(alone[None], dtype=torch.bool))[0]]
    assert words[begin:end][-len(alone) :] == alone.tolist()
    assert end - begin - len(alone) == (kind == "siglip")  # whose tokenizer has the space before the sentence as a token
    assert end == len(words)
    assert spans[0, 1].tolist() == [0, 0]  # no such sentence
    assert numbers["part_there"][0].tolist() == [1, 1, 0]
    begin, end = spans[1, 0].tolist()
    assert begin == end == masks["text_words"][1].sum()  # behind the last position


# ---- end to end ---------------------------------------------------------------------------------------------------------------


def pairs_with_parts() -> Pairs:
    """24 pictures; a few without parts, one with a sentence that its caption lacks, one with one pixel."""
    found = small.pairs()
    segments: list[tuple[Any, ...]] = []
    for k, caption in enumerate(found.captions):
        first, _, second = caption.partition(" by ")
        if k % 6 == 5:
            segments.append(())
        else:
            segments.append(
                (
                    Segment("", first, (4 * (k % 5), 0, 4 * (k % 5) + 16, 20), 0.5),
                    Segment("", second if k % 6 else "nothing of it", (31, 31, 32, 32), 0.7),
                )
            )
    found.segments = segments
    return found


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return small.clip_folder(tmp_path_factory.mktemp("models") / "clip")


def test_end_to_end(clip: str) -> None:
    def run(**values: Any) -> dict[str, Tensor]:
        settings = small.config("goal", {"parts": 2, **values}, steps=3, choose="last", micro_batches=values.pop("micro", 1))
        return small.weights(finetune(clip, pairs_with_parts(), settings, device="cpu").model)

    notes: list[str] = []
    settings = small.config("goal", {"parts": 2}, steps=3, choose="last")
    whole = small.weights(finetune(clip, pairs_with_parts(), settings, device="cpu", on_start=notes.extend).model)
    assert any("4 of 24 images have no part with a box" in note for note in notes)
    for name in ("segment_weight", "patch_weight", "text_weight"):
        other = run(**{name: 0.0})
        assert any((other[key] - whole[key]).abs().max() > 1e-4 for key in whole), name


def test_micro_batches_give_the_same(clip: str) -> None:
    def run(pieces: int) -> dict[str, Tensor]:
        settings = small.config("goal", {"gamma": 0.5}, steps=2, choose="last", micro_batches=pieces)
        return small.weights(finetune(clip, pairs_with_parts(), settings, device="cpu").model)

    whole, parts = run(1), run(3)
    for name, value in whole.items():
        assert_close(parts[name], value, atol=3e-5, rtol=1e-4)


def test_a_siglip_too(tmp_path: Path) -> None:
    settings = small.config("goal", steps=1, choose="last")
    done = finetune(small.siglip_folder(tmp_path / "siglip"), pairs_with_parts(), settings, device="cpu")
    assert done.steps == 1


def test_data_without_parts_are_refused(clip: str) -> None:
    with pytest.raises(ValueError, match=r"pairs has none\. Make them with: clipmend data segments"):
        finetune(clip, small.pairs(), small.config("goal"), device="cpu")
    off = {"segment_weight": 0.0, "patch_weight": 0.0, "text_weight": 0.0}
    assert finetune(clip, small.pairs(), small.config("goal", off, steps=1), device="cpu").steps == 1


def test_other_parts_are_other_data() -> None:
    first, second = pairs_with_parts(), pairs_with_parts()
    assert first.digest() == second.digest() != small.pairs().digest()
    assert second.segments is not None
    second.segments[0] = second.segments[0][:1]
    assert first.digest() != second.digest()
