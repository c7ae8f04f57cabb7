"""Longer tables of positions: the formula, live models, saved models, kept rows, Long-CLIP's own files."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    CLIPModel,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPTokenizer,
    CLIPVisionModel,
)

import clipmend
from backbones import plain_clip, tiny
from clipmend.backbones.activation import ActivationWarning
from clipmend.backbones.base import LongTextsWarning
from clipmend.backbones.positions import find_positions, set_token_limit
from clipmend.backbones.weights import read_checkpoint
from clipmend.dense import Stretched, keep_rows_fixed, stretch, stretch_positions

NEAR = {"atol": 1e-6, "rtol": 0.0}
LONG = "a b c d e f g h i j " * 20  # 200 letters, each a token


# The formula


def published(p: Tensor) -> Tensor:
    """Long-CLIP's own lines for 77 rows: three formulas, row by row."""
    rows = [p[i] for i in range(20)]
    rows += [((4 - r) * p[20 + k] + r * p[21 + k]) / 4 for k in range(56) for r in range(4)]
    rows += [p[76] + (r / 4) * (p[76] - p[75]) for r in range(4)]
    return torch.stack(rows)


def plain(p: Tensor, length: int, keep: int) -> Tensor:
    """The docstring's three lines, in fractions."""
    rows, old = [p[i] for i in range(keep)], len(p)
    for i in range(keep, length):
        x = keep + (i - keep) / Fraction(length - keep, old - keep)
        k = min(int(x), old - 2)
        rows.append(p[k] + float(x - k) * (p[k + 1] - p[k]))
    return torch.stack(rows)


def random_table(rows: int, width: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_77_to_248_is_long_clip_s_own(dtype: torch.dtype) -> None:
    table = random_table(77, 16, dtype=dtype)
    longer = stretch_positions(table)
    assert longer.shape == (248, 16)
    assert torch.equal(longer, published(table))  # bit for bit
    assert torch.equal(longer[:20], table[:20])
    assert torch.equal(longer[20::4], table[20:])


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    old = draw(st.integers(2, 40))
    length = draw(st.integers(old, 200))
    return old, length, draw(st.integers(0, old if length == old else old - 1))


@settings(deadline=None, max_examples=150)
@given(sizes(), st.integers(0, 1000))
def test_any_sizes(case: tuple[int, int, int], seed: int) -> None:
    old, length, keep = case
    table = random_table(old, seed=seed)
    longer = stretch_positions(table, length, keep)
    assert longer.shape == (length, 5)
    assert torch.equal(longer[:keep], table[:keep])
    if length == old:
        assert torch.equal(longer, table)
        return
    assert_close(longer, plain(table, length, keep), atol=1e-12, rtol=1e-12)
    if (length - keep) % (old - keep) == 0:  # a whole factor: every such row is an old one, exactly
        assert torch.equal(longer[keep :: (length - keep) // (old - keep)], table[keep:])
    # A table on a line stays on it, at the places where the new rows stand.
    line = torch.arange(old, dtype=torch.float64)[:, None]
    places = [float(i) if i < keep else keep + (i - keep) * (old - keep) / (length - keep) for i in range(length)]
    assert_close(stretch_positions(line, length, keep)[:, 0], torch.tensor(places, dtype=torch.float64), atol=1e-9, rtol=0)


@settings(deadline=None, max_examples=60)
@given(sizes(), st.floats(-3, 3), st.floats(-3, 3))
def test_linear_in_the_table(case: tuple[int, int, int], a: float, b: float) -> None:
    old, length, keep = case
    one, two = random_table(old, seed=1), random_table(old, seed=2)
    together = stretch_positions(a * one + b * two, length, keep)
    assert_close(together, a * stretch_positions(one, length, keep) + b * stretch_positions(two, length, keep), atol=1e-11, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_tables_are_computed_in_float32(dtype: torch.dtype) -> None:
    table = random_table(77, 16, dtype=dtype)
    longer = stretch_positions(table)
    assert longer.dtype == dtype
    assert torch.equal(longer, stretch_positions(table.float()).to(dtype))
    assert torch.equal(longer[:20], table[:20])
    assert not torch.equal(longer, published(table))  # in its own arithmetic it would round at every step


def test_gradients_flow() -> None:
    table = random_table(9, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda t: stretch_positions(t, 20, 4), (table,))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 76}, "76 positions are fewer than the 77"),
        ({"keep": -1}, r"keep=-1 is outside 0\.\.77"),
        ({"keep": 78}, r"keep=78 is outside 0\.\.77"),
        ({"keep": 77}, "all 77 rows kept there is none to stretch to 248; keep at most 76"),
        ({"table": torch.zeros(77)}, r"matrix \[L, W\], not torch.float32 of \[77\]"),
        ({"table": torch.zeros(77, 2, dtype=torch.int64)}, "not torch.int64"),
        ({"table": torch.full((77, 2), float("nan"))}, "not finite"),
        ({"table": torch.zeros(1, 2), "keep": 0}, "one row has no direction"),
    ],
)
def test_what_cannot_be_stretched_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stretch_positions(**{"table": torch.zeros(77, 2), **change})


def test_import_stays_light() -> None:
    code = "import sys, clipmend.dense; assert 'stretch' in dir(clipmend.dense); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# Live models

FAMILIES = [CLIPModel, CLIPTextModel, CLIPTextModelWithProjection]


def live(family: Any, legacy: bool = False) -> Any:
    full = tiny.clip_model(tiny.clip_tokenizer(), legacy=legacy)
    if family is CLIPModel:
        return full
    part = family(full.config.text_config).eval()
    state = {name: tensor for name, tensor in full.state_dict().items() if name.startswith("text_")}
    if family is CLIPTextModel:
        state = {name.removeprefix("text_model."): tensor for name, tensor in state.items() if name.startswith("text_model.")}
    part.load_state_dict(state)
    return part


def embed(model: Any, tokenizer: Any, texts: list[str]) -> Tensor:
    inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        if hasattr(model, "get_text_features"):
            return model.get_text_features(**inputs).pooler_output
        output = model(**inputs)
        return output.text_embeds if hasattr(output, "text_embeds") else output.pooler_output


def parameters(model: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("legacy", [False, True])
def test_save_and_open_in_plain_transformers(family: Any, legacy: bool, tmp_path: Path) -> None:
    model, tokenizer = live(family, legacy), tiny.clip_tokenizer()
    short = ["a dog", "", "no cat", "a b c d e f g h i j k l m n o"]  # at most 17 tokens of 20
    assert max(len(ids) for ids in tokenizer(short)["input_ids"]) <= 20
    plain_short, old = embed(model, tokenizer, short), parameters(model)
    tokenizer(LONG, truncation=True)  # leaves a truncation to 40 in the tokenizer, which would be saved
    done = stretch(model, 248, tokenizer=tokenizer)
    assert done == Stretched(40, 248, 20)
    assert done.factor == pytest.approx(228 / 20)
    changed = [name for name, tensor in parameters(model).items() if not torch.equal(tensor, old.get(name, torch.zeros(0)))]
    assert [name.endswith("position_embedding.weight") for name in changed] == [True]
    assert_close(embed(model, tokenizer, short), plain_short, **NEAR)

    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened, info = family.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    opened.eval()
    text = getattr(opened.config, "text_config", opened.config)
    assert text.max_position_embeddings == 248
    for kind in (AutoTokenizer, CLIPTokenizer):
        read = kind.from_pretrained(tmp_path)
        assert read.model_max_length == 248
        ids = read(LONG, truncation=True)["input_ids"]
        assert len(ids) == 202
        assert ids[-1] == read.eos_token_id
        assert len(read(LONG * 2, truncation=True)["input_ids"]) == 248
    # Through the tokenizers library alone too, which obeys what was saved.
    from tokenizers import Tokenizer

    assert len(Tokenizer.from_file(str(tmp_path / "tokenizer.json")).encode(LONG)) == 202
    texts = [*short, LONG + "x", LONG + "y z"]
    found = embed(opened, read, texts)
    assert torch.equal(found, embed(model, tokenizer, texts))
    assert_close(found[:4], plain_short, **NEAR)
    assert (found[4] - found[5]).abs().max() > 1e-4  # read to the end


def test_positions_past_the_kept_ones_change() -> None:
    model, tokenizer = live(CLIPModel), tiny.clip_tokenizer()
    texts = ["a b c d e f g h i j k l m n o p q r s t"]  # 22 tokens: two past the kept ones
    before = embed(model, tokenizer, texts)
    stretch(model, 248, tokenizer=tokenizer)
    assert (embed(model, tokenizer, texts) - before).abs().max() > 1e-4


def test_stretching_twice_and_not_at_all() -> None:
    model, tokenizer = live(CLIPModel), tiny.clip_tokenizer()
    table = find_positions(model).table
    assert stretch(model, 40, 40) == Stretched(40, 40, 40)
    assert find_positions(model).table is table  # an optimiser's parameter stays the same
    stretch(model, 80, 10, tokenizer)
    stretch(model, 150, 10, tokenizer)
    assert torch.equal(find_positions(model).table, stretch_positions(stretch_positions(table, 80, 10), 150, 10))
    assert tokenizer.model_max_length == model.config.text_config.max_position_embeddings == 150
    assert model.text_model.embeddings.position_ids.tolist() == [list(range(150))]
    assert model.text_model.embeddings.position_embedding.num_embeddings == 150


@pytest.mark.parametrize("trained", [True, False])
def test_dtype_and_gradients_stay(trained: bool) -> None:
    model = live(CLIPModel).to(torch.bfloat16).requires_grad_(trained)
    stretch(model, 60)
    table = find_positions(model).table
    assert table.dtype == torch.bfloat16
    assert table.requires_grad == trained
    assert table.is_leaf
    assert {name for name, _ in model.named_buffers()} == {name for name, _ in live(CLIPModel).named_buffers()}


def test_what_has_no_such_table_is_refused() -> None:
    siglip = tiny.siglip_model(len(tiny.siglip_tokenizer()))
    before = parameters(siglip)
    with pytest.raises(ValueError, match=r"SigLIP, cannot be stretched: it attends to its padding"):
        stretch(siglip)
    assert all(torch.equal(tensor, before[name]) for name, tensor in siglip.state_dict().items())
    with pytest.raises(ValueError, match="SigLIP"):
        stretch(siglip.text_model)
    with pytest.raises(ValueError, match="BertModel cannot be stretched: only"):
        stretch(tiny.bert_model(30))
    with pytest.raises(ValueError, match="only transformers' and open_clip's CLIPs"):
        stretch(CLIPVisionModel(tiny.clip_model(tiny.clip_tokenizer()).config.vision_config))
    with pytest.raises(TypeError, match="not a str"):
        stretch("openai/clip-vit-base-patch32")
    model = live(CLIPModel)
    with pytest.raises(TypeError, match="a dict is no tokenizer"):
        stretch(model, tokenizer={})
    assert find_positions(model).length == 40  # nothing was changed
    with pytest.raises(ValueError, match="30 positions are fewer than the 40"):
        stretch(model, 30)


def test_an_encoder_is_sent_back(tmp_path: Path) -> None:
    model, tokenizer = live(CLIPModel), tiny.clip_tokenizer()
    encoder = clipmend.load(model, tokenizer=tokenizer, processor=tiny.clip_processor())
    with pytest.raises(TypeError, match="stretch its model, then load that"):
        stretch(encoder)
    with pytest.warns(LongTextsWarning, match="1 of 2 texts exceed 40 tokens") as caught:
        encoder.encode_texts([LONG, "a dog"])
    assert caught[0].message.count == 1
    stretch(encoder.model, tokenizer=tokenizer)
    longer = clipmend.load(model, tokenizer=tokenizer, processor=tiny.clip_processor())
    longer.encode_texts([LONG, "a dog"], on_long="error")
    assert longer.context_length == 248


def test_a_padding_to_the_old_length_becomes_one_to_the_new() -> None:
    tokenizer = tiny.clip_tokenizer()
    tokenizer.backend_tokenizer.enable_padding(length=40, pad_id=3, pad_token="x")
    set_token_limit(tokenizer, 90)
    assert (tokenizer.backend_tokenizer.padding["length"], tokenizer.backend_tokenizer.padding["pad_id"]) == (90, 3)
    assert tokenizer("a", padding="max_length", return_tensors="pt")["input_ids"].shape == (1, 90)


# Kept rows


def train(model: Any, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    end = model.config.text_config.eos_token_id
    ids = torch.randint(0, end - 1, (2, 60), generator=torch.Generator().manual_seed(0))
    ids[:, -1] = end  # pooled there, so that every row has a gradient
    for _ in range(steps):
        optimizer.zero_grad()
        model.get_text_features(input_ids=ids).pooler_output.square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", ["AdamW", "SGD"])
def test_kept_rows_stay_bit_for_bit(kind: str) -> None:
    model = live(CLIPModel)
    stretch(model, 60)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=1e-3, weight_decay=0.1)
    train(model, optimizer)  # leaves moments behind, which would go on moving every row
    table = find_positions(model).table
    before = table.detach().clone()
    with keep_rows_fixed(model, 20, optimizer):
        train(model, optimizer)
        assert torch.equal(table[:20], before[:20])
        assert (table[20:] != before[20:]).any(1).all()
        assert not table.grad[:20].any()
    train(model, optimizer)
    assert (table[:20] != before[:20]).any(1).all()  # let go again


def test_the_gradient_alone_is_enough_without_decay_or_memory() -> None:
    model = live(CLIPModel)
    stretch(model, 60)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    table = find_positions(model).table
    before = table.detach().clone()
    held = keep_rows_fixed(model, 7)
    train(model, optimizer)
    assert torch.equal(table[:7], before[:7])
    assert (table[7:] != before[7:]).any(1).all()
    with torch.no_grad():
        table[:7] = 0
    held.restore()
    assert torch.equal(table[:7], before[:7])
    held.remove()


def test_an_infinite_gradient_becomes_no_nan() -> None:
    model = live(CLIPModel)
    table = find_positions(model).table
    keep_rows_fixed(model, 20)
    (table.sum() * float("inf")).backward()
    assert not table.grad[:20].any()
    assert table.grad[20:].isinf().all()


def test_rows_that_cannot_be_kept() -> None:
    model = live(CLIPModel)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with pytest.raises(ValueError, match=r"keep=41 is outside 0\.\.40"):
        keep_rows_fixed(model, 41)
    stretch(model, 60)
    with pytest.raises(ValueError, match="make it after the model was stretched"):
        keep_rows_fixed(model, 20, optimizer)
    with pytest.raises(ValueError, match="takes no gradient"):
        keep_rows_fixed(model.requires_grad_(False), 20)


# Long-CLIP's own files

TOKENIZER = tiny.clip_tokenizer()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of 40 positions."""
    return tiny.saved(tmp_path_factory.mktemp("m") / "model", tiny.clip_model(TOKENIZER), TOKENIZER, tiny.clip_processor())


def long_state(rows: int = 248) -> dict[str, Tensor]:
    """OpenAI's names and a second table, all of it in half precision as their training writes the most."""
    state = plain_clip.random_state(vocabulary=len(TOKENIZER), positions=rows)
    return state | {"positional_embedding_res": random_table(rows, 32, seed=9, dtype=torch.float32) * 0.1}


@pytest.mark.parametrize("form", ["flat", "wrapped", "half", "text"])
def test_long_clip_files(folder: str, tmp_path: Path, form: str) -> None:
    state = long_state()
    if form == "half":
        state = {name: tensor.half() for name, tensor in state.items()}
    saved: dict[str, Any] = dict(state)
    if form == "wrapped":
        saved = {"epoch": 3, "state_dict": {f"module.{name}": tensor for name, tensor in state.items()}}
    elif form == "text":
        side = ("token_", "positional_", "transformer.", "ln_final", "text_projection")
        saved = {f"text.{name}" if name.startswith(side) else name: tensor for name, tensor in state.items()}
    torch.save(saved, tmp_path / "longclip-B.pt")
    encoder = clipmend.load(folder, device="cpu", weights=tmp_path / "longclip-B.pt")
    assert encoder.context_length == 248
    one, two = state.pop("positional_embedding"), state.pop("positional_embedding_res")
    kept, trained = torch.zeros(248, 1), torch.zeros(248, 1)  # the two masks of their code
    kept[:20], trained[20:] = 1, 1
    state["positional_embedding"] = one * kept + two * trained
    state = {name: tensor.float() for name, tensor in state.items()}
    texts = ["a dog", LONG, LONG * 2, "a b c d e f g h i j k l m n o p q r s t u v"]
    ids = [TOKENIZER(text, truncation=True, max_length=248)["input_ids"] for text in texts]
    assert [len(row) for row in ids[1:]] == [202, 248, 24]
    expected = torch.stack([plain_clip.encode_text(state, row, plain_clip.quick_gelu) for row in ids])
    with pytest.warns(LongTextsWarning, match="1 of 4 texts exceed 248"):
        assert_close(encoder.encode_texts(texts, normalize=False), expected, atol=1e-5, rtol=0)


def test_long_clip_s_layout_says_which_gelu(tmp_path: Path) -> None:
    torch.save(long_state(), tmp_path / "longclip-B.pt")
    found = read_checkpoint(tmp_path / "longclip-B.pt")
    assert found.positions == 248
    assert found.activation is not None
    assert found.activation.quick_gelu
    assert "positional_embedding_res" not in found.weights
    gelu = tiny.saved(tmp_path / "gelu", tiny.clip_model(TOKENIZER, act="gelu"), TOKENIZER, tiny.clip_processor())
    with pytest.warns(ActivationWarning, match="Long-CLIP's own files"):
        clipmend.load(gelu, device="cpu", weights=tmp_path / "longclip-B.pt")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no first", "has Long-CLIP's second table of positions, positional_embedding_res, but not the first"),
        ("shapes", r"positional_embedding is \[248, 32\] and positional_embedding_res is \[77, 32\]"),
        ("short", "has 20 rows; Long-CLIP keeps 20"),
        ("nan", "positional_embedding_res is not finite"),
        ("huge", r"positional_embedding_res states 3,200,000,000 numbers"),
        ("width", r"position_embedding\.weight is \[248, 16\], not \[248, 32\]"),
        ("missing", r"1 weights are missing: text_model\.final_layer_norm\.bias"),
        ("damaged", r"longclip\.pt is damaged"),
        ("siglip", "is in Long-CLIP's layout, for texts of 248 tokens: .*SigLIP"),
    ],
)
def test_broken_long_clip_files(folder: str, tmp_path: Path, how: str, message: str) -> None:
    state, path = long_state(), tmp_path / "longclip.pt"
    if how == "no first":
        del state["positional_embedding"]
    elif how == "shapes":
        state["positional_embedding_res"] = torch.zeros(77, 32)
    elif how == "short":
        state |= {"positional_embedding": torch.zeros(20, 32), "positional_embedding_res": torch.zeros(20, 32)}
    elif how == "nan":
        state["positional_embedding_res"][3, 3] = float("nan")  # in a row that is not even used
    elif how == "huge":
        state["positional_embedding_res"] = torch.zeros(1).expand(10**8, 32)
    elif how == "width":
        state |= {"positional_embedding": torch.zeros(248, 16), "positional_embedding_res": torch.zeros(248, 16)}
    elif how == "missing":
        del state["ln_final.bias"]
    torch.save(state, path)
    if how == "damaged":
        path.write_bytes(path.read_bytes()[:2000])
    elif how == "siglip":
        tokenizer = tiny.siglip_tokenizer()
        folder = tiny.saved(tmp_path / "s", tiny.siglip_model(len(tokenizer)), tokenizer, tiny.siglip_processor())
    with pytest.raises(ValueError, match=message):
        clipmend.load(folder, device="cpu", weights=path)


# Full size


@pytest.mark.slow
def test_vit_b_32(tmp_path: Path) -> None:
    from transformers import CLIPConfig

    tokenizer = tiny.clip_tokenizer()
    tokenizer.model_max_length = 77
    text = {name: getattr(tokenizer, name) for name in ("eos_token_id", "bos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    model = CLIPModel(CLIPConfig(text_config=text)).eval()
    assert model.config.text_config.max_position_embeddings == 77
    table = find_positions(model).table.detach().clone()
    short = ["a dog", "no cat", "a b c d e f g h i j k l m n o p q r"]
    assert max(len(ids) for ids in tokenizer(short)["input_ids"]) == 20
    before = embed(model, tokenizer, short)
    stretch(model, tokenizer=tokenizer)
    assert torch.equal(find_positions(model).table, published(table))
    for part in (model, tokenizer, tiny.clip_processor()):
        part.save_pretrained(tmp_path)
    del model
    opened = CLIPModel.from_pretrained(tmp_path).eval()
    read = AutoTokenizer.from_pretrained(tmp_path)
    assert AutoImageProcessor.from_pretrained(tmp_path) is not None
    assert len(read(LONG, truncation=True)["input_ids"]) == 202
    assert_close(embed(opened, read, short), before, **NEAR)
    assert embed(opened, read, [LONG]).isfinite().all()
