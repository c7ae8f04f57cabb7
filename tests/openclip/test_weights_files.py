"""Checkpoints in open_clip's layout: the same embeddings through open_clip itself, our open_clip load and our transformers load."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from transformers import CLIPConfig, CLIPModel

import clipmend
from clipmend.backbones.activation import ActivationWarning
from clipmend.backbones.layouts import convert_layout

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

pytestmark = [pytest.mark.open_clip, pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")]

NEAR = {"atol": 1e-5, "rtol": 0.0}
TEXTS = ["a dog", ".", "no cat \U0001f436", "word " * 90, "Two DOGS, and one cat!", "a street with no cars"]
VISION = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 8}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}
RESNET = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "patch_size": None}


def images() -> list[Image.Image]:
    noise = torch.randint(0, 256, (50, 70, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return [Image.fromarray(noise.numpy()), Image.new("RGB", (30, 40), "red")]


def varied(model: Any, seed: int) -> Any:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit" not in name:
                scale = 0.1 if parameter.ndim == 1 else 0.5 / parameter.shape[-1] ** 0.5
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Small architectures under names that open_clip knows; two of them differ in the activation alone."""
    folder = tmp_path_factory.mktemp("architectures")
    for name, settings in {
        "mend-small": {},
        "mend-small-quickgelu": {"quick_gelu": True},
        "mend-custom": {"custom_text": True},
        "mend-rn": {"vision_cfg": RESNET},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps({"embed_dim": 24, "vision_cfg": VISION, "text_cfg": TEXT, **settings}))
    open_clip.add_model_config(folder)


def trained(architecture: str, seed: int = 3) -> Any:
    return varied(open_clip.create_model(architecture), seed)


def checkpoint(model: Any, path: Path, prefix: str = "module.") -> Path:
    """As open_clip's training writes it."""
    optimizer = torch.optim.AdamW(model.parameters())
    state = {f"{prefix}{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"epoch": 5, "name": "negclip", "state_dict": state, "optimizer": optimizer.state_dict()}, path)
    return path


def expected(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    preprocess = open_clip.image_transform(32, is_train=False)
    with torch.no_grad():
        pixels = torch.stack([preprocess(image) for image in images()])
        return model.encode_text(open_clip.SimpleTokenizer(context_length=77)(TEXTS)), model.encode_image(pixels)


def transformers_folder(folder: Path, act: str) -> str:
    """Config, tokenizer and image processor of a transformers CLIP of the same sizes; no weights."""
    from transformers import CLIPImageProcessor, CLIPTokenizer

    sizes = {"num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 128, "hidden_act": act}
    text = {**sizes, "num_hidden_layers": 3, "eos_token_id": 49407, "bos_token_id": 49406, "pad_token_id": 49407}
    vision = {**sizes, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
    CLIPConfig(text_config=text, vision_config=vision, projection_dim=24).save_pretrained(folder)
    # transformers' own tokenizer from open_clip's merges: the real vocabulary without a network.
    tokenizer = open_clip.SimpleTokenizer()
    merges = [tuple(pair) for pair in tokenizer.bpe_ranks]
    CLIPTokenizer(vocab=tokenizer.encoder, merges=merges, pad_token="<end_of_text>", eos_token="<end_of_text>",
                  bos_token="<start_of_text>", unk_token="<end_of_text>", model_max_length=77).save_pretrained(folder)  # fmt: skip
    CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("architecture", ["mend-small", "mend-small-quickgelu", "mend-custom", "mend-rn"])
@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_open_clip_model_with_a_file(architecture: str, tmp_path: Path) -> None:
    model = trained(architecture)
    texts, pictures = expected(model)
    path = checkpoint(model, tmp_path / "epoch_5.pt")
    encoder = clipmend.load(f"open_clip:{architecture}", device="cpu", weights=path)
    assert_close(encoder.encode_texts(TEXTS, normalize=False), texts, **NEAR)
    assert_close(encoder.encode_images(images(), normalize=False), pictures, **NEAR)
    assert encoder.name == f"open_clip:{architecture}::{path}"
    same = clipmend.load(model)
    assert encoder.fingerprint == same.fingerprint
    assert clipmend.load(encoder.name, device="cpu").fingerprint == same.fingerprint


@pytest.mark.parametrize("architecture", ["mend-small", "mend-small-quickgelu", "mend-custom"])
@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_the_same_file_in_transformers(architecture: str, tmp_path: Path) -> None:
    model = trained(architecture)
    act = "quick_gelu" if "quick" in architecture else "gelu"
    folder = transformers_folder(tmp_path / "model", act)
    encoder = clipmend.load(folder, device="cpu", weights=checkpoint(model, tmp_path / "epoch_5.pt"))
    preprocess = open_clip.image_transform(32, is_train=False)
    with torch.no_grad():
        pixels = torch.stack([preprocess(image) for image in images()])
        ours = encoder.model.get_image_features(pixel_values=pixels)  # type: ignore[attr-defined]
        ours = ours if isinstance(ours, torch.Tensor) else ours.pooler_output
        assert_close(ours, model.encode_image(pixels), **NEAR)
        tokens = open_clip.SimpleTokenizer(context_length=77)(TEXTS)
        assert_close(encoder.encode_texts(TEXTS, normalize=False), model.encode_text(tokens), **NEAR)
    # And the layer states that a patch reads.
    states, reference = (e.text_states(TEXTS, [1, 2, 3]) for e in (encoder, clipmend.load(model)))
    assert_close(states.tokens, reference.tokens, **NEAR)
    assert_close(states.eos, reference.eos, **NEAR)


@pytest.mark.filterwarnings("ignore::clipmend.backbones.activation.ActivationWarning")
def test_a_state_dict_of_transformers_in_open_clip(tmp_path: Path) -> None:
    model = trained("mend-small")
    hugging = CLIPModel(CLIPConfig.from_pretrained(transformers_folder(tmp_path / "model", "gelu"))).eval()
    hugging.load_state_dict(convert_layout(model.state_dict(), "transformers"))
    torch.save(hugging.state_dict(), tmp_path / "hugging.pt")
    for architecture in ("mend-small", "mend-custom"):
        encoder = clipmend.load(f"open_clip:{architecture}", device="cpu", weights=tmp_path / "hugging.pt")
        assert_close(encoder.encode_texts(TEXTS, normalize=False), expected(model)[0], **NEAR)
        assert_close(encoder.encode_images(images(), normalize=False), expected(model)[1], **NEAR)


def test_the_activation_is_checked(tmp_path: Path) -> None:
    path = checkpoint(trained("mend-small-quickgelu"), tmp_path / "negclip.pt")
    with pytest.warns(ActivationWarning, match="says which GELU.*in that case load it as 'open_clip:mend-small-quickgelu'"):
        clipmend.load("open_clip:mend-small", device="cpu", weights=path)
    told = path.rename(tmp_path / "negclip-quickgelu.pt")
    with pytest.warns(
        ActivationWarning, match="trained with QuickGELU .*plain GELU.*; load it as 'open_clip:mend-small-quickgelu'"
    ):
        clipmend.load("open_clip:mend-small", device="cpu", weights=told)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ActivationWarning)
        clipmend.load("open_clip:mend-small-quickgelu", device="cpu", weights=told)
        rn = checkpoint(trained("mend-rn"), tmp_path / "rn.pt")
        clipmend.load("open_clip:mend-rn", device="cpu", weights=rn)  # no twin: nothing to choose


def test_a_tag_lends_its_preprocessing_alone(tmp_path: Path) -> None:
    model = open_clip.create_model("ViT-S-32-alt")
    path = checkpoint(model, tmp_path / "w.pt", prefix="")
    plain = clipmend.load("open_clip:ViT-S-32-alt", device="cpu", weights=path)
    assert plain.model.visual.preprocess_cfg["mean"] == open_clip.OPENAI_DATASET_MEAN  # type: ignore[attr-defined]
    known = open_clip.pretrained.get_pretrained_cfg("ViT-B-16-SigLIP", "webli")
    from clipmend.backbones.open_clip import _default_preprocess

    _, facts = _default_preprocess(model, ("ViT-B-16-SigLIP", "webli"))
    assert facts["mean"] == list(known["mean"]) == [0.5, 0.5, 0.5]
    assert facts["resize_mode"] == "squash"


def test_what_does_not_fit(tmp_path: Path) -> None:
    path = checkpoint(trained("mend-rn"), tmp_path / "rn.pt")
    with pytest.raises(ValueError, match=r"rn\.pt does not fit open_clip's mend-small: \d+ weights are missing"):
        clipmend.load("open_clip:mend-small", device="cpu", weights=path)
    with pytest.raises(ValueError, match="a ResNet, which transformers' CLIP does not have"):
        clipmend.load(transformers_folder(tmp_path / "model", "gelu"), device="cpu", weights=path)
    with pytest.raises(ValueError, match="brings its own weights"):
        clipmend.load("open_clip:hf-hub:a/b", device="cpu", weights=path)
