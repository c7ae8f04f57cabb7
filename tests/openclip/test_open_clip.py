"""open_clip's models: the same numbers as ``encode_text`` and ``encode_image``. Run in an environment with open_clip."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.testing import assert_close

import clipmend
from clipmend.backbones.base import LongTextsWarning
from clipmend.backbones.strips import crop_of_processor, crop_of_transform

open_clip = pytest.importorskip("open_clip", reason="needs open_clip and torchvision")

pytestmark = [pytest.mark.open_clip, pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")]

NEAR = {"atol": 1e-5, "rtol": 0.0}
TEXTS = ["a dog", ".", " ? ", "no cat \U0001f436", "word " * 50, "Two DOGS, and one cat!", "a street with no cars"]
TEXT = {"context_length": 20, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 3}
VISION = {"image_size": 32, "layers": 2, "width": 32, "patch_size": 8, "head_width": 8}
VARIANTS: dict[str, tuple[bool, dict[str, Any], bool]] = {  # custom text tower, text settings, QuickGELU
    "clip": (False, {}, False),
    "clip-quickgelu": (False, {}, True),
    "clip-mobile": (False, {"no_causal_mask": True}, False),
    "custom": (True, {}, False),
    "custom-eos": (True, {"pool_type": "eos", "eos_id": 49407}, False),
    "custom-last": (True, {"pool_type": "last"}, False),
    "custom-first": (True, {"pool_type": "first", "no_causal_mask": True}, False),
    "siglip": (True, {"pool_type": "last", "no_causal_mask": True, "proj_bias": True, "norm_kwargs": {"eps": 1e-6}}, False),
    "no-projection": (True, {"proj_type": "none", "width": 24}, False),
}


def images() -> list[Image.Image]:
    noise = torch.randint(0, 256, (50, 70, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return [Image.fromarray(noise.numpy()), Image.new("RGB", (30, 40), "red"), Image.new("L", (33, 33), 80)]


def build(variant: str) -> Any:
    custom, text, quick = VARIANTS[variant]
    torch.manual_seed(0)
    kind = open_clip.CustomTextCLIP if custom else open_clip.CLIP
    model = kind(embed_dim=24, vision_cfg=VISION, text_cfg={**TEXT, **text}, quick_gelu=quick)
    return varied(model)


def varied(model: Any) -> Any:
    """Weights of ordinary size: with the initial ones every text would look alike."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "logit" not in name:
                scale = 0.1 if parameter.ndim == 1 else 0.5 / parameter.shape[-1] ** 0.5
                parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.eval()


def transform() -> Any:
    return open_clip.image_transform(32, is_train=False)


def tokenizer() -> Any:
    return open_clip.SimpleTokenizer(context_length=20)


@pytest.fixture(params=list(VARIANTS))
def case(request: pytest.FixtureRequest) -> tuple[str, Any, Any]:
    model = build(request.param)
    return request.param, model, clipmend.load(model, preprocess=transform())


def test_embeddings_equal_open_clip(case: Any) -> None:
    _, model, encoder = case
    preprocess = transform()
    with torch.no_grad():
        expected = model.encode_text(tokenizer()(TEXTS))
        expected_images = model.encode_image(torch.stack([preprocess(image) for image in images()]))
    assert_close(encoder.encode_texts(TEXTS, normalize=False), expected, **NEAR)
    assert_close(encoder.encode_texts(TEXTS, normalize=False, batch_size=2), expected, **NEAR)
    assert_close(encoder.encode_images(images(), normalize=False, batch_size=2), expected_images, **NEAR)
    assert (expected[0] - expected[6]).abs().max() > 1e-3
    assert encoder.logit_scale == pytest.approx(1 / 0.07, rel=1e-4)


def test_states_are_the_blocks_outputs_through_the_final_norm(case: Any) -> None:
    variant, model, encoder = case
    text = model.text if hasattr(model, "text") else model
    raw: dict[int, torch.Tensor] = {}
    handles = [
        block.register_forward_hook(lambda _m, _i, output, layer=layer: raw.__setitem__(layer, output))
        for layer, block in enumerate(text.transformer.resblocks, start=1)
    ]
    ids = tokenizer()(TEXTS)
    with torch.no_grad():
        model.encode_text(ids)
        normed = {layer: text.ln_final(states) for layer, states in raw.items()}
    for handle in handles:
        handle.remove()
    states = encoder.text_states(TEXTS, [1, 2, 3])
    end = ids.argmax(1)
    assert states.mask.sum(1).tolist() == (end + 1).tolist()
    for row in range(len(TEXTS)):
        where = {"last": 19, "cls": 0, "eos": int(end[row])}[encoder.text_pooling]
        for layer in (1, 2, 3):
            assert_close(states.tokens_at(layer)[row, : end[row] + 1], normed[layer][row, : end[row] + 1], **NEAR)
            assert_close(states.pooled_at(layer)[row], normed[layer][row, where], **NEAR)
    assert_close(encoder.project(states.pooled_at(3)), states.embedding, **NEAR)
    assert encoder.text_pooling == {"custom-last": "last", "siglip": "last", "custom-first": "cls"}.get(variant, "eos")


def test_padded_batches_of_the_bidirectional_tower() -> None:
    model = build("custom-eos")
    model.text.attn_mask, model.text.use_pad_mask = None, True  # as TextTransformer(no_causal_mask=True, use_pad_mask=True)
    encoder = clipmend.load(model, preprocess=transform())
    with torch.no_grad():
        assert_close(encoder.encode_texts(TEXTS, normalize=False), model.encode_text(tokenizer()(TEXTS)), **NEAR)


def test_truncation_is_counted(case: Any) -> None:
    encoder = case[2]
    with pytest.warns(LongTextsWarning, match="1 of 7 texts exceed 20 tokens; the first is text 4"):
        encoder.encode_texts(TEXTS)
    with pytest.raises(ValueError, match="1 of 7 texts exceed 20 tokens"):
        encoder.encode_texts(TEXTS, on_long="error")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode_texts(TEXTS[:4])


def test_stops_early_and_leaves_the_model_clean() -> None:
    model = build("clip")
    encoder = clipmend.load(model, preprocess=transform())
    calls: list[int] = []
    hooks = [
        block.register_forward_hook(lambda *_, layer=layer: calls.append(layer))
        for layer, block in enumerate(model.transformer.resblocks, start=1)
    ]
    encoder.text_states(["a dog"], [2], embedding=False)
    assert calls == [1, 2]
    for hook in hooks:
        hook.remove()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_two_threads() -> None:
    encoder = clipmend.load(build("custom"), preprocess=transform())
    texts = [["a dog", "no cat"], ["the sea at night", "x", "a red cup"]]
    expected = [encoder.text_states(some, [1, 3]) for some in texts]

    def work(k: int) -> None:
        for _ in range(15):
            found = encoder.text_states(texts[k], [1, 3])
            assert_close(found.tokens, expected[k].tokens, **NEAR)
            assert_close(found.pooled, expected[k].pooled, **NEAR)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, k) for k in range(2)]:
            done.result()


def test_fingerprints() -> None:
    def load(model: Any) -> Any:
        return clipmend.load(model, preprocess=transform()).fingerprint

    built_in = build("clip")
    first = load(built_in)
    custom = build("custom")
    state = {
        name if name.startswith(("visual", "logit")) else f"text.{name}": value for name, value in built_in.state_dict().items()
    }
    custom.load_state_dict(state)
    assert load(custom) == first  # the same weights in another wrapping
    assert load(build("clip-quickgelu")).text != first.text
    for part, changed in [("transformer.resblocks.1.mlp.c_fc.weight", "text"), ("visual.proj", "image"), ("logit_scale", "")]:
        model = build("clip")
        with torch.no_grad():
            model.get_parameter(part).view(-1).view(torch.uint8)[-1] ^= 1
        after = load(model).to_dict()
        assert {side for side, digest in first.to_dict().items() if after[side] != digest} == ({changed} if changed else set())
    other = clipmend.load(build("clip"), preprocess=open_clip.image_transform(32, is_train=False, mean=(0.5, 0.5, 0.5)))
    assert other.fingerprint.image != first.image
    assert other.fingerprint.text == first.text


def bert_folder(folder: Path) -> str:
    """A tiny BERT and its tokenizer, as a Hugging Face text tower needs them."""
    from transformers import BertConfig, BertModel, BertTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "no", "cat", "##s", "word", "street", "with", "two"]
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64, pad_token_id=0
    )
    BertModel(config).save_pretrained(folder)
    BertTokenizer(vocab={word: k for k, word in enumerate(words)}).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("pooler", ["mean_pooler", "cls_pooler", "cls_last_hidden_state_pooler"])
@pytest.mark.parametrize("projection", ["linear", "mlp"])
def test_hugging_face_text_towers(pooler: str, projection: str, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path)
    torch.manual_seed(0)
    text = {"hf_model_name": folder, "hf_tokenizer_name": folder, "hf_pooler_type": pooler, "hf_proj_type": projection}
    model = varied(open_clip.CustomTextCLIP(embed_dim=24, vision_cfg=VISION, text_cfg=text))
    tokens = open_clip.tokenizer.HFTokenizer(folder, context_length=16)
    encoder = clipmend.load(model, tokenizer=tokens, preprocess=transform())
    with torch.no_grad():
        expected = model.encode_text(tokens(TEXTS))
    assert_close(encoder.encode_texts(TEXTS, normalize=False), expected, **NEAR)
    assert encoder.text_pooling == ("mean" if pooler == "mean_pooler" else "cls")
    assert encoder.context_length == 16
    states = encoder.text_states(TEXTS, [1, 2, 3])
    assert states.pooled.shape == (len(TEXTS), 3, 32)
    assert encoder.project(states).shape == (len(TEXTS), 3, 24)


def test_max_pooling_is_refused(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path)
    text = {"hf_model_name": folder, "hf_tokenizer_name": folder, "hf_pooler_type": "max_pooler"}
    model = open_clip.CustomTextCLIP(embed_dim=24, vision_cfg=VISION, text_cfg=text)
    tokens = open_clip.tokenizer.HFTokenizer(folder, context_length=16)
    with pytest.raises(ValueError, match="MaxPooler is not supported"):
        clipmend.load(model, tokenizer=tokens, preprocess=transform())


def test_blanked_separator(tmp_path: Path) -> None:
    """CLIPA: a BERT tokenizer whose separator becomes a pad, pooled at the last position."""
    folder = bert_folder(tmp_path)
    torch.manual_seed(0)
    text = {**TEXT, "vocab_size": 20, "pool_type": "last", "no_causal_mask": True}
    model = varied(open_clip.CLIP(embed_dim=24, vision_cfg=VISION, text_cfg=text))
    tokens = open_clip.tokenizer.HFTokenizer(folder, context_length=20, strip_sep_token=True)
    encoder = clipmend.load(model, tokenizer=tokens, preprocess=transform())
    with torch.no_grad():
        assert_close(encoder.encode_texts(TEXTS, normalize=False), model.encode_text(tokens(TEXTS)), **NEAR)


def test_live_models_need_what_they_do_not_carry() -> None:
    model = build("clip")
    with pytest.raises(ValueError, match="carries no preprocessing; pass preprocess="):
        clipmend.load(model)
    model.visual.preprocess_cfg = {"size": 32}
    assert clipmend.load(model).encode_images(images()).shape == (3, 24)
    model.vocab_size = 100
    with pytest.raises(ValueError, match="pass tokenizer="):
        clipmend.load(model, preprocess=transform())
    with pytest.raises(ValueError, match="cannot tell what it truncates"):
        clipmend.load(model, preprocess=transform(), tokenizer=open_clip.tokenize)
    with pytest.raises(ValueError, match="drops words at random"):
        clipmend.load(model, preprocess=transform(), tokenizer=open_clip.SimpleTokenizer(reduction_mask="random"))


def test_coca_is_refused() -> None:
    text = {**TEXT, "embed_cls": True, "output_tokens": True}
    vision = {**VISION, "attentional_pool": True, "attn_pooler_heads": 4, "output_tokens": True}
    model = open_clip.CoCa(embed_dim=24, multimodal_cfg={**TEXT, "attn_pooler_heads": 4}, text_cfg=text, vision_cfg=vision)
    with pytest.raises(ValueError, match="CoCa is not supported"):
        clipmend.load(model, preprocess=transform())
    model = open_clip.CustomTextCLIP(embed_dim=24, vision_cfg=VISION, text_cfg={**TEXT, "embed_cls": True})
    with pytest.raises(ValueError, match="appends a class token"):
        clipmend.load(model, preprocess=transform())


def test_half_precision_keeps_the_fingerprint() -> None:
    torch.manual_seed(0)
    whole = clipmend.load("open_clip:ViT-S-32", device="cpu")
    torch.manual_seed(0)
    cast = clipmend.load("open_clip:ViT-S-32", device="cpu", dtype="bfloat16")
    assert cast.fingerprint == whole.fingerprint
    assert cast.tower.dtype == torch.bfloat16  # type: ignore[attr-defined]
    texts = ["a dog", "a street with no cars"]
    assert nn.functional.cosine_similarity(cast.encode_texts(texts), whole.encode_texts(texts)).min() > 0.99
    pictures = nn.functional.cosine_similarity(cast.encode_images(images()), whole.encode_images(images()))
    assert pictures.min() > 0.98


@pytest.mark.parametrize("architecture", ["ViT-B-32", "ViT-B-32-quickgelu", "RN50"])
def test_named_architectures(architecture: str) -> None:
    encoder = clipmend.load(f"open_clip:{architecture}", device="cpu")
    assert encoder.name == f"open_clip:{architecture}"
    assert (encoder.text_width, encoder.num_text_layers, encoder.context_length) == (512, 12, 77)
    assert encoder.embed_dim == (1024 if architecture == "RN50" else 512)
    with torch.no_grad():
        expected = encoder.model.encode_text(open_clip.get_tokenizer(architecture)(TEXTS[:4]))  # type: ignore[attr-defined]
    assert_close(encoder.encode_texts(TEXTS[:4], normalize=False), expected, **NEAR)


@pytest.mark.parametrize(
    ("name", "message"), [("nope", "no architecture 'nope'"), ("ViT-B-32/nope", r"no weights 'nope' for ViT-B-32; it has: openai")]
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clipmend.load(f"open_clip:{name}")


def raw_transform(size: Any, **settings: Any) -> Any:
    """The evaluation transform as levels of 0..255 instead of normalised."""
    chosen = open_clip.image_transform(size, is_train=False, mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255), **settings)
    assert any(type(step).__name__ == "Normalize" for step in chosen.transforms)
    return chosen


def strip(width: int, height: int) -> Image.Image:
    noise = torch.randint(0, 256, (height, width, 3), generator=torch.Generator().manual_seed(width), dtype=torch.uint8)
    return Image.fromarray(noise.numpy())


@pytest.mark.parametrize("size", [(1000, 7), (7, 1001), (997, 41), (41, 997), (501, 1), (1301, 133), (133, 1301)])
@pytest.mark.parametrize("settings", [{}, {"interpolation": "bilinear"}, {"size": (24, 40)}])
def test_strips_are_cut_to_what_the_transform_keeps(size: tuple[int, int], settings: dict[str, Any]) -> None:
    settings = dict(settings)
    preprocess = raw_transform(settings.pop("size", 32), **settings)
    crop = crop_of_transform(preprocess)
    assert crop is not None
    image = strip(*size)
    cut = crop(image)
    assert (cut is image) == (size == (1301, 133) and crop.crop == (24, 40))  # little more than what is kept
    assert max(cut.size) <= 8 * 40 or cut is image
    difference = (preprocess(cut) - preprocess(image)).abs()
    assert difference.max() < 1.01
    assert (difference > 0.5).float().mean() < 0.02
    moderate = strip(96, 32)
    assert crop(moderate) is moderate


def test_a_strip_costs_what_any_image_does() -> None:
    import time

    encoder = clipmend.load(build("clip"), preprocess=open_clip.image_transform(32, is_train=False))
    start = time.perf_counter()
    assert torch.isfinite(encoder.encode_images([strip(60_000, 1), strip(1, 60_000)])).all()
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("size", [(3000, 1), (1, 3000), (70, 50)])
def test_a_strip_does_not_vanish_when_fitted(size: tuple[int, int]) -> None:
    preprocess = raw_transform(32, resize_mode="longest")
    encoder = clipmend.load(build("clip"), preprocess=preprocess)
    image = strip(*size)
    vector = encoder.encode_images([image], normalize=False)
    assert torch.isfinite(vector).all()
    if min(size) > 1:
        with torch.no_grad():
            assert_close(vector, encoder.model.encode_image(preprocess(image)[None]), **NEAR)  # type: ignore[attr-defined]


def test_transforms_of_another_kind_are_left_alone() -> None:
    from torchvision import transforms

    assert crop_of_transform(raw_transform(32, resize_mode="squash")) is None
    assert crop_of_transform(transforms.Compose([transforms.Resize((32, 32)), transforms.CenterCrop(32)])) is None
    assert crop_of_transform(transforms.Compose([transforms.Resize(32, max_size=64), transforms.CenterCrop(32)])) is None
    assert crop_of_transform(transforms.Compose([transforms.ToTensor(), transforms.Resize(32), transforms.CenterCrop(32)])) is None
    assert crop_of_transform(transforms.Compose([transforms.Resize([32]), transforms.CenterCrop(32)])) is not None


def test_strips_and_transformers_processor_on_torchvision() -> None:
    """With torchvision there, transformers resizes with it instead of Pillow."""
    from transformers import CLIPImageProcessor

    how = CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}, do_rescale=False, do_normalize=False
    )
    assert how.backend == "torchvision"
    crop = crop_of_processor(how)
    assert crop is not None
    for size in ((1000, 7), (7, 1001), (997, 41), (41, 997)):
        image = strip(*size)
        found, expected = (how(images=[some], return_tensors="pt")["pixel_values"].float() for some in (crop(image), image))
        assert (found - expected).abs().max() <= 1, size


@pytest.mark.parametrize("name", ["hf-hub:nobody/no-such-model", "ViT-B-32/laion2b_s34b_b79k", "roberta-ViT-B-32"])
def test_the_hub_is_not_waited_for(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import time

    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    start = time.perf_counter()
    with pytest.raises(OSError, match=r"is not in the local cache, and http://127\.0\.0\.1:9 cannot be reached"):
        clipmend.load(f"open_clip:{name}", device="cpu")
    assert time.perf_counter() - start < 8


def test_arguments_are_not_dropped_in_silence() -> None:
    with pytest.raises(ValueError, match="no use for processor="):
        clipmend.load(build("clip"), preprocess=transform(), processor=object())
    with pytest.raises(ValueError, match="no use for preprocess="):
        clipmend.load("open_clip:ViT-S-32", device="cpu", preprocess=transform())
