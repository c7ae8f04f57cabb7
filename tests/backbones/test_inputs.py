"""What encoders are given by mistake or in haste: lists of the wrong things, other types, devices that are not there."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

import clipmend
from backbones import tiny

NEAR = {"atol": 1e-5, "rtol": 0.0}
FAMILIES = ["clip", "siglip", "bert"]
PIXELS = np.zeros((4, 4, 3), np.uint8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("inputs")
    clip, siglip, bert = tiny.clip_tokenizer(), tiny.siglip_tokenizer(), tiny.bert_tokenizer()
    return {
        "clip": tiny.saved(root / "clip", tiny.clip_model(clip), clip, tiny.clip_processor()),
        "siglip": tiny.saved(root / "siglip", tiny.siglip_model(len(siglip)), siglip, tiny.siglip_processor()),
        "bert": tiny.saved(root / "bert", tiny.bert_model(len(bert)), bert),
    }


@pytest.fixture(scope="module")
def encoder(folders: dict[str, str]) -> Any:
    return clipmend.load(folders["clip"], device="cpu")


@pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dtype", "least"), [("float16", 0.9999), ("bfloat16", 0.999), (torch.float64, 0.999999)])
def test_other_precisions(folders: dict[str, str], family: str, dtype: Any, least: float) -> None:
    whole = clipmend.load(folders[family], device="cpu")
    cast = clipmend.load(folders[family], device="cpu", dtype=dtype)
    assert cast.fingerprint == whole.fingerprint
    pairs = [(cast.encode_texts(tiny.TEXTS), whole.encode_texts(tiny.TEXTS))]
    if family != "bert":
        pairs.append((cast.encode_images(tiny.images()), whole.encode_images(tiny.images())))
    for found, expected in pairs:
        assert found.dtype == torch.float32
        assert (found * expected).sum(1).min() > least
    states = cast.text_states(tiny.TEXTS, [1, 2], token_layers=[2])
    assert {states.tokens.dtype, states.pooled.dtype, states.eos.dtype, cast.project(states).dtype} == {torch.float32}


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", np.float16, torch.bool, 7])
def test_precisions_that_nothing_runs_in(folders: dict[str, str], dtype: Any) -> None:
    with pytest.raises(ValueError, match="not a floating-point type that an encoder runs in"):
        clipmend.load(folders["clip"], device="cpu", dtype=dtype)


@pytest.mark.parametrize("device", ["nonsense", "", "meta", "cuda:99", "xpu:99", 3.5])
def test_devices_that_are_not_there(folders: dict[str, str], device: Any) -> None:
    for name in (folders["clip"], "scenes", "minilm"):
        with pytest.raises(ValueError, match=r"device '.*' cannot be used: .*'cpu'"):
            clipmend.load(name, device=device)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ("a.png", r"not one path: write \[path\]"),
        (Path("a.png"), r"not one path: write \[path\]"),
        (b"a.png", r"not one path"),
        (Image.new("RGB", (4, 4)), r"not one image: write \[image\]"),
        (io.BytesIO(), r"not one image: write \[image\]"),
        (PIXELS, r"not an ndarray of numbers.*Image\.fromarray"),
        (torch.zeros(2, 3, 4, 4), r"not a Tensor of numbers.*Image\.fromarray"),
        (None, "a list of images, not a NoneType"),
        (3, "a list of images, not an int"),
        ([Image.new("L", (4, 4)), PIXELS], r"image 1 is an ndarray.*Image\.fromarray"),
        ([torch.zeros(3, 4, 4)], "image 0 is a Tensor"),
        ([None], "image 0 is a NoneType"),
        ([b"\x89PNG"], r"image 0 is a bytes.*io\.BytesIO"),
    ],
)
def test_what_is_no_list_of_images(encoder: Any, images: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        encoder.encode_images(images)


def test_a_wrong_image_is_named_before_any_work(encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "_encode_image_batch", lambda _: pytest.fail("work began"))
    with pytest.raises(TypeError, match="image 40 is an int"):
        encoder.encode_images([*tiny.images() * 13, tiny.images()[0], 5], batch_size=4)


def test_lists_of_images_of_every_kind(encoder: Any, tmp_path: Path) -> None:
    pictures = tiny.images()
    expected = encoder.encode_images(pictures)
    paths = [tmp_path / f"{k}.png" for k in range(3)]
    buffers = []
    for path, picture in zip(paths, pictures, strict=True):
        picture.save(path)
        buffers.append(io.BytesIO(path.read_bytes()))
    for same in (tuple(pictures), (picture for picture in pictures), paths, np.array([str(p) for p in paths]), iter(buffers)):
        assert_close(encoder.encode_images(same, batch_size=2), expected, **NEAR)
    assert_close(encoder.encode_images([pictures[1]] * 5, batch_size=2), expected[[1] * 5], **NEAR)
    assert encoder.encode_images([]).shape == encoder.encode_images(iter([])).shape == (0, 24)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "HSV", "LAB", "I", "I;16", "F"])
def test_modes_of_images(encoder: Any, mode: str) -> None:
    source = tiny.images()[0]
    picture = Image.new(mode, (40, 30)) if mode in ("I;16", "LAB") else source.convert(mode)
    vector = encoder.encode_images([picture])
    assert torch.isfinite(vector).all()
    if mode in ("L", "RGBA"):
        assert_close(vector, encoder.encode_images([picture.convert("RGB")]), **NEAR)


@pytest.mark.parametrize("blank", ["", "  ", "\n\u3000"])
def test_an_empty_text_is_named_by_its_row(encoder: Any, blank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `clipmend encode` has it; what the model makes of nothing is to be had from its states."""
    assert torch.isfinite(encoder.text_states([blank, "a dog"], [1]).embedding).all()
    monkeypatch.setattr(encoder, "_states", lambda *_: pytest.fail("work began"))
    for method in (encoder.encode_texts, encoder.prepare_texts):
        with pytest.raises(ValueError, match=r"text 1 is empty: remove what is empty"):
            method(["a dog", blank])
        with pytest.raises(ValueError, match=r"text 0, 1, 2, \.\.\. \(5 in all\) is empty"):
            method([blank] * 5 + ["a dog"])


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("a dog", TypeError, r"not one string: write \[text\]"),
        (b"a dog", TypeError, "not one string"),
        (None, TypeError, "a list of texts, not a NoneType"),
        (4, TypeError, "a list of texts, not an int"),
        (["a dog", float("nan")], TypeError, "text 1 is float, not a string: nan"),
        ([b"a dog"], TypeError, "text 0 is bytes"),
        (torch.zeros(2), TypeError, "text 0 is Tensor"),
        (["fine é", "half \ud83d"], ValueError, "text 1 is no valid Unicode"),
    ],
)
@pytest.mark.parametrize("method", ["encode_texts", "prepare_texts", "text_states"])
def test_what_is_no_list_of_texts(encoder: Any, method: str, texts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        getattr(encoder, method)(texts, *([[1]] if method == "text_states" else []))


@pytest.mark.parametrize("family", FAMILIES)
def test_lists_of_texts_of_every_kind(folders: dict[str, str], family: str) -> None:
    encoder = clipmend.load(folders[family], device="cpu")
    texts = ["a dog", "no cat", "a dog"]
    expected = encoder.encode_texts(texts)
    for same in (tuple(texts), (text for text in texts), np.array(texts), iter(texts)):
        assert_close(encoder.encode_texts(same, batch_size=2), expected, **NEAR)  # type: ignore[arg-type]
    assert expected[0].equal(expected[2])
    assert encoder.encode_texts([]).shape == (0, encoder.embed_dim)
    nothing = encoder.text_states(iter([]), [1, 2])  # type: ignore[arg-type]
    assert nothing.pooled.shape == (0, 2, 32)
    assert encoder.project(nothing).shape == (0, 2, encoder.embed_dim)
    assert encoder.encode_texts(["a\0b"]).isfinite().all()


def test_layers(encoder: Any) -> None:
    expected = encoder.text_states(["a dog"], [1, 2]).pooled
    for same in (np.array([1, 2]), iter([1, 2]), (1, 2)):
        assert_close(encoder.text_states(["a dog"], same).pooled, expected)
    assert_close(encoder.text_states(["a dog"], [2, 2]).pooled, expected[:, [1, 1]])
    with pytest.raises(TypeError, match="float"):  # 1.5 is no layer, and surely not the first
        encoder.text_states(["a dog"], [1.5])


def test_scores_of_given_embeddings(encoder: Any) -> None:
    vectors, texts = encoder.encode_images(tiny.images()), ["a dog", "no cat"]
    expected = encoder.score(vectors, texts)
    assert_close(encoder.score(vectors.double(), texts), expected, **NEAR)
    assert_close(encoder.score(vectors.half(), texts), expected, atol=2e-3, rtol=0)
    array = vectors.numpy().copy()
    array.flags.writeable = False  # as memory-mapped features are
    assert_close(encoder.score(array, texts), expected, **NEAR)
    assert_close(encoder.score(vectors, texts, pairs=[[2, 1], [0, 0]]), expected[[2, 0], [1, 0]], **NEAR)
    assert encoder.score(vectors[:0], texts).shape == encoder.score([], texts).shape == (0, 2)
    assert encoder.score(vectors, []).shape == (3, 0)
    for wrong in (vectors[0], torch.zeros(2, 5), array[:, :5]):
        with pytest.raises(ValueError, match=r"must be \[N, 24\], not \["):
            encoder.score(wrong, texts)
    with pytest.raises(ValueError, match=r"pairs must be \[P, 2\]"):
        encoder.score(vectors, texts, pairs=torch.tensor([0, 1]))


@pytest.mark.parametrize("argument", ["tokenizer", "processor", "preprocess"])
def test_arguments_are_not_dropped_in_silence(folders: dict[str, str], argument: str) -> None:
    given = {argument: tiny.clip_processor()}
    for name in ("scenes", "photos", "minilm", "open_clip:ViT-B-32", *([folders["bert"]] if argument == "processor" else [])):
        with pytest.raises(ValueError, match=f"no use for {argument}="):
            clipmend.load(name, device="cpu", **given)
    with pytest.raises(ValueError, match="no use for preprocess="):
        clipmend.load(folders["clip"], device="cpu", preprocess=tiny.clip_processor())


@pytest.mark.parametrize("name", ["photos:", "photos:  "])
def test_photos_without_a_classifier(name: str) -> None:
    with pytest.raises(ValueError, match="names no classifier"):
        clipmend.load(name)


@pytest.mark.parametrize("name", ["scenes ", "a b", "a\0b", "x" * 400, "openai/"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(OSError, match="cannot load") as caught:
        clipmend.load(name, device="cpu")
    assert "cannot be reached" not in str(caught.value)  # with a network it would be as wrong
