"""The recipe structxlip: its loss against a slow one, what each term changes, decay, edges, words, end to end."""

from __future__ import annotations

import builtins
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from clipmend.data.dense.collection import Segment
from clipmend.dense import finetune, make_recipe
from clipmend.dense.edges import check_edges, edge_image
from clipmend.dense.recipes import Example, Joined, Moment
from clipmend.dense.recipes.structxlip import word_windows
from clipmend.dense.structure_words import strip_appearance
from dense import small_training as small

NOW = Moment(0, 10, 0.0)
METHODS = ["opencv", "skimage"]


def need(method: str) -> None:
    pytest.importorskip({"opencv": "cv2", "skimage": "skimage"}[method], reason="needs what finds edges")


def some_edges() -> str:
    """A method that is installed here."""
    for method in METHODS:
        try:
            check_edges(method)
        except ImportError:
            continue
        return method
    pytest.skip("needs OpenCV or scikit-image")


# ---- the loss -----------------------------------------------------------------------------------------------------------------


def batch(rows: int = 5) -> Joined:
    generator = torch.Generator().manual_seed(4)
    unit = lambda *shape: F.normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)  # noqa: E731
    words = torch.ones(rows, 8, dtype=torch.bool)
    words[:, 0] = words[:, 6:] = False
    outputs = {
        "image": unit(rows, 6), "text": unit(rows, 6), "image/edges": unit(rows, 6), "text/structure": unit(rows, 6),
        "image/edge_parts": unit(rows, 2, 6), "text/structure_tokens": unit(rows, 8, 6),
        "logit_scale": torch.tensor(7.0, dtype=torch.float64),
    }  # fmt: skip
    numbers = {
        "edges_there": torch.tensor([1.0, 1, 0, 1, 1]),
        "parts_there": torch.tensor([[1.0, 1], [1, 0], [0, 0], [1, 1], [0, 1]]),
        "chunks": torch.tensor(  # the last of the fourth is behind the last position
            [[[0, 2], [1, 3], [2, 4]], [[0, 5], [0, 0], [0, 0]], [[0, 2], [0, 0], [0, 0]], [[1, 3], [9, 11], [0, 0]], [[0, 0]] * 3]
        ),
        "structure_text": torch.arange(rows) + 50,
    }
    return Joined(outputs, torch.arange(rows), torch.arange(rows), {"text/structure_words": words}, numbers)


def slow_terms(b: Joined, gamma: float = 0.0, scale: float = 7.0) -> dict[str, float]:
    """StructXLIP's terms in plain lines, weights at the start of the training."""
    texts = b.numbers["structure_text"].tolist()

    def softmax(images: Tensor, captions: Tensor, rows: list[int], gamma: float, equal: list[int]) -> float:
        total = 0.0
        for forth in (True, False):
            for i in rows:
                denominator = 0.0
                for j in rows:
                    if j != i and (b.image_ids[i] == b.image_ids[j] or equal[i] == equal[j]):
                        continue
                    s = float(images[i] @ captions[j]) if forth else float(captions[i] @ images[j])
                    denominator += math.exp(7.0 * (s + (0.0 if i == j else gamma * float(captions[i] @ captions[j]))))
                total += math.log(denominator) - 7.0 * float(images[i] @ captions[i])
        return total / (2 * len(rows))

    drawn = [n for n in range(5) if b.numbers["edges_there"][n]]
    apart = [1 - float(b.image[n] @ b.outputs["image/edges"][n]) for n in drawn]
    parts = [(n, k) for n in range(5) for k in range(2) if b.numbers["parts_there"][n, k]]
    per_caption = []
    for n in range(5):
        shares = []
        for begin, end in b.numbers["chunks"][n].tolist():
            inside = b.outputs["text/structure_tokens"][n][1:6][begin:end]
            if not len(inside) or not any(m == n for m, _ in parts):
                continue
            chunk = inside.mean(0) / inside.mean(0).norm()
            own = others = 0.0
            for m, k in parts:
                e = math.exp(scale * float(chunk @ b.outputs["image/edge_parts"][m, k]))
                if m == n:
                    own += e
                elif b.image_ids[m] != b.image_ids[n] and texts[m] != texts[n]:
                    others += e
            shares.append(-math.log(own / (own + others)))
        if shares:
            per_caption.append(sum(shares) / len(shares))
    return {
        "global": softmax(b.image, b.text, list(range(5)), gamma, b.caption_ids.tolist()),
        "structure": 0.25 * softmax(b.outputs["image/edges"], b.outputs["text/structure"], drawn, 0.0, texts),
        "consistency": 0.001 * sum(apart) / len(apart), "chunks": 0.001 * sum(per_caption) / len(per_caption),
    }  # fmt: skip


@pytest.mark.parametrize("gamma", [0.0, 0.5])
def test_the_loss_is_the_slow_one(gamma: float) -> None:
    b = batch()
    found = {name: float(value) for name, value in make_recipe("structxlip", gamma=gamma).losses(b, NOW).items()}
    assert found == pytest.approx(slow_terms(b, gamma), rel=1e-6)
    other = slow_terms(b, 0.5 - gamma)
    assert abs(other["global"] - found["global"]) > 1e-3
    assert other["structure"] == pytest.approx(found["structure"])  # the margin is in the global term alone
    hot = make_recipe("structxlip", chunk_scale=20.0).losses(b, NOW)
    assert float(hot["chunks"]) == pytest.approx(slow_terms(b, scale=20.0)["chunks"], rel=1e-6)


@pytest.mark.parametrize("name", ["structure_weight", "consistency_weight", "chunk_weight"])
def test_each_term_changes_the_sum(name: str) -> None:
    b = batch()
    whole = sum(make_recipe("structxlip").losses(b, NOW).values())
    assert abs(whole - sum(make_recipe("structxlip", **{name: 0.0}).losses(b, NOW).values())) > 1e-4


def test_repeated_ids_are_no_negatives() -> None:
    b = batch()
    before = slow_terms(b)
    b.numbers["structure_text"][1] = b.numbers["structure_text"][0]  # "a red car" and "a blue car"
    b.image_ids[4] = 3  # two captions of one image
    found = {name: float(value) for name, value in make_recipe("structxlip").losses(b, NOW).items()}
    assert found == pytest.approx(slow_terms(b), rel=1e-6)
    for name in ("global", "structure", "chunks"):
        assert abs(found[name] - before[name]) > 1e-5, name


def test_nothing_there_is_the_global_term() -> None:
    b = batch()
    for name in ("edges_there", "parts_there"):
        b.numbers[name].zero_()
    found = make_recipe("structxlip").losses(b, NOW)
    assert [float(found[name]) for name in ("structure", "consistency", "chunks")] == [0.0, 0.0, 0.0]
    off = make_recipe("structxlip", structure_weight=0.0, consistency_weight=0.0, chunk_weight=0.0)
    assert list(off.losses(b, NOW)) == ["global"]
    assert not off.tokens()


def test_the_scale_learns_from_the_global_term_alone() -> None:
    b = batch()
    scale = b.outputs["logit_scale"].requires_grad_()
    terms = make_recipe("structxlip").losses(b, NOW)
    assert terms["global"].requires_grad
    assert not any(terms[name].requires_grad for name in ("structure", "consistency", "chunks"))
    terms["global"].backward()
    assert scale.grad is not None


@pytest.mark.parametrize(("epoch", "share"), [(0, 1.0), (2, 1.0), (3.5, 0.853553), (5, 0.5), (6.5, 0.146447), (8, 0.0), (30, 0.0)])
def test_weights_fall_by_a_cosine(epoch: float, share: float) -> None:
    b, recipe = batch(), make_recipe("structxlip")
    start, now = recipe.losses(b, NOW), recipe.losses(b, Moment(5, 10, epoch))
    for name, end in (("structure", 0.7), ("consistency", 0.5), ("chunks", 0.4)):
        assert float(now[name] / start[name]) == pytest.approx(end + (1 - end) * share, rel=1e-5)
    assert float(now["global"]) == float(start["global"])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"parts": 0}, "parts is 0"), ({"edges": "sobel"}, "edges is 'sobel'"), ({"chunk_weight": -1.0}, "chunk_weight is -1.0"),
        ({"decay_end": 1.0}, r"decay_end is 1.0; it must be after decay_start, 2.0"), ({"edge_low": 210.0}, "edge_low is 210.0"),
    ],
)  # fmt: skip
def test_fields_that_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make_recipe("structxlip", **values)


# ---- edges --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_edges_are_where_the_picture_changes(method: Any) -> None:
    need(method)
    image = Image.new("RGB", (60, 40))
    image.paste((255, 255, 255), (20, 10, 45, 30))
    edges = edge_image(image, method)
    assert (edges.size, edges.mode) == ((60, 40), "RGB")
    found = np.array(edges.convert("L"))
    assert set(np.unique(found)) == {0, 255}
    assert found[20, 17:24].any()
    assert found[20, 42:48].any()
    assert not found[15:25, 26:40].any()
    assert not found[:, :15].any()
    assert edge_image(Image.new("RGB", (60, 40), "red"), method).getbbox() is None
    assert edge_image(image, method, low=255, high=255).getbbox() is not None
    assert edge_image(image.resize((600, 400)), method, size=40).size == (60, 40)
    assert edge_image(image, method, size=0).size == (60, 40)
    assert edge_image(Image.new("RGB", (1, 9)), method).size == (1, 9)  # too thin for edges


def test_both_ways_find_nearly_the_same_edges() -> None:
    need("opencv")
    need("skimage")
    picture = small.items(1)[0][0].resize((128, 128), Image.Resampling.BICUBIC)
    one, other = (np.array(edge_image(picture, method).convert("L")) > 0 for method in ("opencv", "skimage"))
    assert 0.5 < one.sum() / other.sum() < 2


def test_without_opencv_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name == "cv2":
            raise ImportError("No module named 'cv2'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'clipmend\[edges\]', or take scikit-image with edges='skimage'"):
        make_recipe("structxlip").check(small.pairs(4))
    with pytest.raises(ValueError, match="edges is 'sobel'"):
        check_edges("sobel")


# ---- words --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("an orange and a knife", "an orange and a knife"),
        ("an orange car", "a car"),
        ("a rose in a vase", "a rose in a vase"),
        ("a rose blooms", "a rose blooms"),
        ("a pink rose", "a rose"),
        ("A plum on a white plate", "A plum on a plate"),
        ("a plum dress", "a dress"),
        ("He holds a gold medal.", "He holds a gold medal."),
        ("a gold ring", "a ring"),
        ("An orange, a rose and a plum lie on the table.", "An orange, a rose and a plum lie on the table."),
        ("a boy eats an orange slowly", "a boy eats an orange slowly"),
        ("two orange trees near an orange bus", "two orange trees near a bus"),
        ("a glass of orange juice by a glass door", "a glass of orange juice by a door"),
        ("the car is orange", "the car"),
        ("The orange is ripe.", "The orange is ripe."),
        ("an orange and white cat", "a cat"),
        ("A red and white striped umbrella", "An umbrella"),
        ("The umbrella is red and white. It is old.", "The umbrella. It is old."),
        ("a bright red, very shiny car by an old brick wall", "a car by an old wall"),
        ("an orange leather chair", "a chair"),
        ("a light blue shirt and a dark-blue hat", "a shirt and a hat"),
        ("A shirt of cotton", "A shirt of cotton"),
        ("The sky is a pale blue.", "The sky is a pale blue."),
        ("a stone on the beach", "a stone on the beach"),
        ("red wine beside a black bear", "red wine beside a black bear"),
        ("A RED CAR", "A CAR"),
        ("red", "red"),
        ("a  cat\n sits", "a cat sits"),
        ("", ""),
        ("\U0001f34a!", "\U0001f34a!"),
    ],
)
def test_appearance_is_stripped_and_things_stay(text: str, wanted: str) -> None:
    assert strip_appearance(text) == wanted


def test_too_little_left_is_the_caption_itself() -> None:
    assert strip_appearance("a red car", least=2) == "a red car"
    assert strip_appearance("a red car", least=1) == "a car"


def test_windows_of_words() -> None:
    example = Example(0, Image.new("RGB", (8, 8)), "")
    assert word_windows("a cat sits", example, 3) == [(0, 2), (1, 3)]
    assert word_windows("one two three four five. six", example, 3) == [(0, 3), (1, 4), (2, 5), (5, 6)]
    assert word_windows(" ".join("x" * 11), example, 3)[:2] == [(0, 4), (1, 5)]
    twice = Example(0, Image.new("RGB", (8, 8)), "", count_words=lambda text: 2)
    assert word_windows("a cat sits", twice, 3) == [(0, 4), (2, 6)]


# ---- views and end to end -----------------------------------------------------------------------------------------------------


def test_views_of_parts_and_grids() -> None:
    method = some_edges()
    image = Image.new("RGB", (64, 40))
    image.paste((255, 255, 255), (5, 5, 20, 20))
    recipe = make_recipe("structxlip", edges=method, parts=3)
    rng = np.random.default_rng(0)
    parts = (Segment("", "a", (0, 0, 30, 30), 0.9), Segment("", "b", (63, 39, 64, 40), 0.5))
    views = recipe.views(Example(0, image, "A red box by a wall.", segments=parts), rng)
    assert views.texts == {"structure": "A box by a wall."}
    assert [crop.size for crop in views.images["edge_parts"]] == [(30, 30), (1, 1), (8, 8)]  # type: ignore[union-attr]
    assert views.numbers["parts_there"].tolist() == [1, 0, 0]  # one pixel has no edge
    assert float(views.numbers["edges_there"]) == 1
    without = recipe.views(Example(0, image, "A box."), rng)
    assert {crop.size for crop in without.images["edge_parts"]} == {(32, 20)}  # type: ignore[union-attr]
    none = make_recipe("structxlip", edges=method, grid=0).views(Example(0, image, "A box."), rng)
    assert none.numbers["parts_there"].tolist() == [0, 0, 0]
    blank = recipe.views(Example(0, Image.new("RGB", (64, 40), "red"), "A wall."), rng)
    assert float(blank.numbers["edges_there"]) == 0
    assert blank.numbers["parts_there"].tolist() == [0, 0, 0]


def test_end_to_end(tmp_path: Path) -> None:
    method = some_edges()
    clip = small.clip_folder(tmp_path / "clip")

    def run(notes: list[str] | None = None, **values: Any) -> dict[str, Tensor]:
        fields = {"edges": method, "parts": 2, "chunk_weight": 0.5, "consistency_weight": 0.5, **values}
        settings = small.config("structxlip", fields, steps=2, choose="last")
        done = finetune(clip, small.pairs(), settings, device="cpu", on_start=None if notes is None else notes.extend)
        return small.weights(done.model)

    notes: list[str] = []
    whole = run(notes)
    assert any("24 of 24 images have no part with a box: cells of a 2 x 2 grid" in note for note in notes)
    for name in ("structure_weight", "consistency_weight", "chunk_weight"):
        other = run(**{name: 0.0})
        assert any((other[key] - whole[key]).abs().max() > 1e-5 for key in whole), name
