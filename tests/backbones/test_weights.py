"""``load(..., weights=FILE)``: whose names, whose numbers, and what is refused."""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from backbones import plain_clip, tiny
from clipmend.backbones.activation import ActivationWarning
from clipmend.backbones.layouts import convert_layout, find_layout
from clipmend.backbones.weights import read_checkpoint

NEAR = {"atol": 1e-5, "rtol": 0.0}
TOKENIZER = tiny.clip_tokenizer()


@pytest.fixture(scope="module")
def state() -> dict[str, Tensor]:
    return plain_clip.random_state(vocabulary=len(TOKENIZER))


@pytest.fixture(scope="module", params=["quick_gelu", "gelu"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A folder with config, tokenizer and image processor, without any weights, and its activation."""
    folder = tmp_path_factory.mktemp("models") / request.param
    tiny.saved(folder, tiny.clip_model(TOKENIZER, act=request.param), TOKENIZER, tiny.clip_processor())
    (folder / "model.safetensors").unlink()
    return str(folder), request.param


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quick") / "model"
    return tiny.saved(folder, tiny.clip_model(TOKENIZER), TOKENIZER, tiny.clip_processor())


@pytest.fixture(scope="module")
def gelu(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("gelu") / "model"
    return tiny.saved(folder, tiny.clip_model(TOKENIZER, act="gelu"), TOKENIZER, tiny.clip_processor())


def saved(state: dict[str, Tensor], path: Path, **entries: Any) -> Path:
    torch.save({"state_dict": state, **entries} if entries else state, path)
    return path


@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_open_clip_layout_equals_plain_lines(model: tuple[str, str], state: dict[str, Tensor], tmp_path: Path) -> None:
    folder, act_name = model
    act = plain_clip.quick_gelu if act_name == "quick_gelu" else F.gelu
    wrapped = {f"module.{name}": tensor for name, tensor in state.items()}
    path = saved(wrapped, tmp_path / "epoch_5.pt", epoch=5, name="run", optimizer={"state": {}})
    encoder = clipmend.load(folder, device="cpu", weights=path)
    ids = [TOKENIZER(text, truncation=True, max_length=40)["input_ids"] for text in tiny.TEXTS]
    expected = torch.stack([plain_clip.encode_text(state, row, act) for row in ids])
    assert_close(encoder.encode_texts(tiny.TEXTS, normalize=False, on_long="truncate"), expected, **NEAR)
    pixels = tiny.clip_processor()(images=tiny.images(), return_tensors="pt")["pixel_values"]
    expected = torch.stack([plain_clip.encode_image(state, image, act) for image in pixels])
    assert_close(encoder.encode_images(tiny.images(), normalize=False), expected, **NEAR)
    assert encoder.logit_scale == pytest.approx(float(state["logit_scale"].exp()))
    assert encoder.name == f"{folder}::{path}"


@pytest.mark.parametrize(
    "form", ["flat", "safetensors", "compiled", "text", "transformers", "transformers.safetensors", "half", "legacy"]
)
def test_every_form_gives_the_same_encoder(quick: str, state: dict[str, Tensor], tmp_path: Path, form: str) -> None:
    expected = clipmend.load(quick, device="cpu", weights=saved(state, tmp_path / "plain.pt"))
    path = tmp_path / "weights.pt"
    if form == "flat":
        scalars = {name: torch.tensor(32) for name in ("input_resolution", "context_length", "vocab_size")}
        saved({**state, **scalars, "logit_scale": state["logit_scale"][None]}, path)
    elif form == "safetensors":
        path = tmp_path / "weights.safetensors"
        save_file(state, path)
    elif form == "compiled":
        saved({f"_orig_mod.module.{name}": tensor for name, tensor in state.items()}, path, epoch=1)
    elif form == "text":
        saved(convert_layout(state, "open_clip text"), path)
    elif form == "half":
        half = {name: tensor.half() for name, tensor in state.items()}
        expected = clipmend.load(quick, device="cpu", weights=saved({n: t.float() for n, t in half.items()}, tmp_path / "exact.pt"))
        saved(half, path)
    elif form == "legacy":
        torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        renamed = convert_layout(state, "transformers")
        renamed["text_model.embeddings.position_ids"] = torch.arange(40)[None]  # older versions of transformers saved it
        path = tmp_path / f"weights{Path(form).suffix or '.pt'}"
        save_file(renamed, path) if path.suffix == ".safetensors" else saved(renamed, path)
    encoder = clipmend.load(f"{quick}::{path}", device="cpu")
    assert encoder.fingerprint == expected.fingerprint
    assert torch.equal(encoder.encode_texts(tiny.SHORT_TEXTS), expected.encode_texts(tiny.SHORT_TEXTS))
    assert encoder.name == f"{quick}::{path}"


def test_the_other_library_and_back_gives_the_same_bytes(state: dict[str, Tensor]) -> None:
    for to in ("transformers", "open_clip text"):
        there = convert_layout(state, to)  # type: ignore[arg-type]
        assert find_layout(there) == to
        assert not set(there) & set(state) - {"logit_scale", *(name for name in state if to != "transformers" and "visual" in name)}
        back = convert_layout(there, "open_clip")
        assert back.keys() == state.keys()
        assert all(torch.equal(back[name], state[name]) for name in state)
    renamed = convert_layout(state, "transformers")
    incomplete = {name: tensor for name, tensor in renamed.items() if "0.self_attn.v_proj" not in name}
    with pytest.raises(ValueError, match="only k, q of them"):
        convert_layout(incomplete, "open_clip")


def test_a_model_s_own_state_dict_gives_the_model(quick: str, tmp_path: Path) -> None:
    from transformers import CLIPModel

    own = CLIPModel.from_pretrained(quick).state_dict()
    plain = clipmend.load(quick, device="cpu")
    encoder = clipmend.load(quick, device="cpu", weights=saved(dict(own), tmp_path / "own.pt"))
    assert encoder.fingerprint == plain.fingerprint


def test_dtype_and_fingerprint(quick: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = saved(state, tmp_path / "w.pt")
    half = clipmend.load(quick, device="cpu", weights=path, dtype="bfloat16")
    assert half.tower.dtype == torch.bfloat16  # type: ignore[attr-defined]
    assert half.fingerprint == clipmend.load(quick, device="cpu", weights=path).fingerprint


def test_a_patch_remembers_the_weights(quick: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    from clipmend.negation import PeakPatch

    encoder = clipmend.load(quick, device="cpu", weights=saved(state, tmp_path / "w.pt"))
    patch = PeakPatch.untrained(encoder)
    patch.save_pretrained(tmp_path / "patch")
    read = PeakPatch.from_pretrained(tmp_path / "patch")
    read.apply(clipmend.load(read.backbone, device="cpu"))
    with pytest.raises(ValueError, match="not the same encoder: its text weights differ"):
        read.apply(clipmend.load(quick, device="cpu"))


def broken(state: dict[str, Tensor], how: str) -> dict[str, Any]:
    state = dict(state)
    if how == "missing":
        del state["ln_final.bias"], state["visual.proj"]
    elif how == "unknown":
        state["adapter.down.weight"] = torch.zeros(2)
    elif how == "shape":
        state["positional_embedding"] = torch.zeros(248, 32)
    elif how == "nan":
        state["ln_final.bias"] = torch.full((32,), float("nan"))
    elif how == "int8":
        state["text_projection"] = torch.zeros(32, 24, dtype=torch.int8)
    elif how == "resnet":
        state = {name: t for name, t in state.items() if not name.startswith("visual.")} | {
            "visual.conv1.weight": torch.zeros(2, 3, 3, 3),
            "visual.bn1.weight": torch.zeros(2),
        }
    elif how == "timm":
        state = {name: t for name, t in state.items() if not name.startswith("visual.")} | {
            "visual.trunk.norm.weight": torch.zeros(2)
        }
    elif how == "layers":
        state = {name: t for name, t in state.items() if ".resblocks.2." not in name}
    elif how == "bert":
        state = {"embeddings.word_embeddings.weight": torch.zeros(3, 2)}
    elif how == "empty":
        state = {}
    return state


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", r"2 weights are missing: text_model\.final_layer_norm\.bias, visual_projection\.weight"),
        ("unknown", r"1 are unknown to the model: adapter\.down\.weight"),
        (
            "shape",
            r"position_embedding\.weight is \[248, 32\], not \[40, 32\] \(the file is for texts of 248 tokens\); clipmend stretch",
        ),
        ("nan", r"ln_final\.bias is not finite"),
        ("int8", r"text_projection holds whole numbers"),
        ("resnet", "a ResNet, which transformers' CLIP does not have"),
        ("timm", "one of timm's"),
        ("layers", r"16 weights are missing: text_model\.encoder\.layers\.2\.\S+, .* and 13 more"),
        ("bert", r"not a CLIP .* first names: embeddings\.word_embeddings\.weight"),
        ("empty", "holds no tensors"),
    ],
)
def test_what_does_not_fit_is_named(quick: str, state: dict[str, Tensor], tmp_path: Path, how: str, message: str) -> None:
    path = saved(broken(state, how), tmp_path / "broken.pt", epoch=1)
    with pytest.raises(ValueError, match=message) as caught:
        clipmend.load(quick, device="cpu", weights=path)
    assert "broken.pt" in str(caught.value)


class Sneaky:
    """Unpickling it would make a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return (Path.touch, (self.target,))


def test_files_that_run_code_are_not_run(quick: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    path = saved(state, tmp_path / "w.pt", extra=Sneaky(tmp_path / "made"))
    with pytest.raises(ValueError, match="holds Python objects besides tensors"):
        clipmend.load(quick, device="cpu", weights=path)
    assert not (tmp_path / "made").exists()
    script = tmp_path / "script.pt"
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), script)
    with pytest.raises(ValueError, match="TorchScript program"):
        clipmend.load(quick, device="cpu", weights=script)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights", "cut"])
def test_damaged_files(quick: str, state: dict[str, Tensor], tmp_path: Path, name: str, content: Any) -> None:
    path = tmp_path / name
    if content == "cut":
        save_file(state, path) if path.suffix == ".safetensors" else saved(state, path)
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.(pt|safetensors) is damaged"):
        clipmend.load(quick, device="cpu", weights=path)


def test_other_contents(tmp_path: Path, state: dict[str, Tensor]) -> None:
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ValueError, match="holds a list"):
        read_checkpoint(tmp_path / "list.pt")
    torch.save({"state_dict": {**state, "step": 3}}, tmp_path / "step.pt")
    with pytest.raises(ValueError, match="entries that are no tensors: step"):
        read_checkpoint(tmp_path / "step.pt")
    with pytest.raises(OSError, match="there is no file"):
        read_checkpoint(tmp_path / "nowhere.pt")
    with pytest.raises(OSError, match="is a folder"):
        read_checkpoint(tmp_path)


def test_where_weights_have_no_use(quick: str, tmp_path: Path) -> None:
    tokenizer = tiny.bert_tokenizer()
    bert = tiny.saved(tmp_path / "bert", tiny.bert_model(len(tokenizer)), tokenizer)
    for name, message in (
        ("scenes", "no use for weights="),
        ("minilm", "no use for weights="),
        (bert, "weights= is for CLIP, SigLIP and open_clip's models"),
        (tiny.clip_model(TOKENIZER), "load the weights into it yourself"),
        (clipmend.load(quick, device="cpu"), "no use for weights="),
        (f"{quick}::a.pt", "give one of them"),
    ):
        with pytest.raises(ValueError, match=message):
            clipmend.load(name, weights="b.pt")
    with pytest.raises(ValueError, match="is not MODEL::FILE"):
        clipmend.load("::a.pt")
    odd = tmp_path / "a::b"  # a folder may be called so
    assert clipmend.load(tiny.saved(odd, tiny.clip_model(TOKENIZER), TOKENIZER, tiny.clip_processor()), device="cpu").name == str(
        odd
    )


def test_siglip_takes_its_own_layout(tmp_path: Path, state: dict[str, Tensor]) -> None:
    tokenizer = tiny.siglip_tokenizer()
    siglip = tiny.siglip_model(len(tokenizer))
    folder = tiny.saved(tmp_path / "siglip", siglip, tokenizer, tiny.siglip_processor())
    other = {name: tensor + 0.01 for name, tensor in siglip.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder = clipmend.load(folder, device="cpu", weights=saved(other, tmp_path / "w.pt"))
    siglip.load_state_dict(other)
    same = clipmend.load(siglip, tokenizer=tokenizer, processor=tiny.siglip_processor())
    assert_close(encoder.encode_texts(["a dog", "a cat"]), same.encode_texts(["a dog", "a cat"]), **NEAR)
    with pytest.raises(ValueError, match="does not fit"):
        clipmend.load(folder, device="cpu", weights=saved(state, tmp_path / "clip.pt"))


OPEN_CLIP_ARGS = {"model": "ViT-B-32", "pretrained": "", "force_quick_gelu": False}


@pytest.mark.parametrize(
    ("entries", "quick_gelu"),
    [
        ({"name": "2024_01_01-model_ViT-B-32-quickgelu-lr_1e-06-b_256"}, True),
        ({"name": "negclip"}, None),
        ({"args": {**OPEN_CLIP_ARGS, "pretrained": "openai"}}, True),
        ({"args": {**OPEN_CLIP_ARGS, "model": "ViT-B-32-quickgelu"}}, True),
        ({"args": {**OPEN_CLIP_ARGS, "force_quick_gelu": True}}, True),
        ({"args": {**OPEN_CLIP_ARGS, "pretrained": "laion2b_s34b_b79k"}}, False),
        ({"args": argparse.Namespace(**OPEN_CLIP_ARGS)}, False),
        ({"args": argparse.Namespace(model="ViT-B/32", lr=1e-6)}, True),
        ({"config": {"model_cfg": {"quick_gelu": True}}}, True),
        ({"config": {"text_config": {"hidden_act": "gelu"}}}, False),
        ({"hyper_parameters": {"clip_model": "ViT-B-32", "clip_pretrained": "openai"}}, True),
        ({"epoch": 3}, None),
    ],
)
def test_evidence_in_the_file(
    quick: str, gelu: str, state: dict[str, Tensor], tmp_path: Path, entries: dict[str, Any], quick_gelu: bool | None
) -> None:
    path = saved(state, tmp_path / "w.pt", **entries)
    found = read_checkpoint(path).activation
    assert (None if found is None else found.quick_gelu) == quick_gelu
    check(quick, path, r"was trained with GELU .* computes with QuickGELU.*hidden_act" if quick_gelu is False else None)
    expected = {
        True: r"was trained with QuickGELU \(.*computes with plain GELU",
        False: None,
        None: "says which GELU it was trained with",
    }
    check(gelu, path, expected[quick_gelu])


def check(model: str, path: Path, message: str | None) -> None:
    if message is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            clipmend.load(model, device="cpu", weights=path)
    else:
        with pytest.warns(ActivationWarning, match=message):
            clipmend.load(model, device="cpu", weights=path)


def test_evidence_beside_the_file(gelu: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    path = saved(state, run / "checkpoints" / "epoch_1.pt", epoch=1)
    check(gelu, path, "says which GELU")
    (run / "params.txt").write_text("force_quick_gelu: False\nmodel: ViT-B-32\nname: x\npretrained: openai\n")
    check(gelu, path, r"params\.txt: pretrained = 'openai'")
    (run / "params.txt").write_text("force_quick_gelu: False\nmodel: ViT-B-32\npretrained: laion2b_s34b_b79k\n")
    check(gelu, path, None)
    (run / "params.txt").write_bytes(b"\xff\xfe")
    check(gelu, path, "says which GELU")
    for name, config, message in (
        ("open_clip_config.json", {"model_cfg": {"quick_gelu": True}}, "quick_gelu = True"),
        ("open_clip_config.json", {"model_cfg": {"embed_dim": 24}}, None),
        ("config.json", {"model_type": "clip", "text_config": {}}, r"config\.json: quick_gelu = True"),
        ("config.json", {"model_type": "clip", "text_config": {"hidden_act": "gelu"}}, None),
        ("config.json", {"model_type": "bert"}, "says which GELU"),
        ("config.json", [1], "says which GELU"),
    ):
        companion = path.parent / name
        companion.write_text(json.dumps(config))
        check(gelu, path, message)
        companion.unlink()
    check(gelu, saved(state, tmp_path / "vit_b_32-QuickGELU.pt"), "the file's name")


def test_openai_s_own_state_dict(gelu: str, state: dict[str, Tensor], tmp_path: Path) -> None:
    scalars = {name: torch.tensor(7) for name in ("input_resolution", "context_length", "vocab_size")}
    check(gelu, saved({**state, **scalars}, tmp_path / "w.pt"), "as in OpenAI's own files")


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("huge", r"states 10,000,000,000 numbers \(\[100000, 100000\]\), but the file holds 1 of them"),
        ("sparse", "is no plain array but torch.sparse_coo"),
        ("meta", "without numbers"),
        ("complex", "complex numbers"),
        ("counter", "whole numbers"),
    ],
)
def test_weights_that_are_no_plain_arrays(state: dict[str, Tensor], tmp_path: Path, kind: str, message: str) -> None:
    odd = {
        "huge": lambda: torch.zeros(1).half().expand(10**5, 10**5),  # 2 bytes on disk, 40 GB as it says
        "sparse": lambda: state["text_projection"].to_sparse(),
        "meta": lambda: state["text_projection"].to("meta"),
        "complex": lambda: state["text_projection"].to(torch.complex64),
        "counter": lambda: state["text_projection"].long(),
    }
    path = saved({**state, "text_projection": odd[kind]()}, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match=rf"odd\.pt: text_projection .*{message}"):
        read_checkpoint(path)
