"""A patch on live models of transformers: the numbers of ``apply``, and nothing else about the model changed."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import CLIPTextModelWithProjection

import clipmend
from backbones import tiny
from clipmend.negation import PeakPatch
from clipmend.negation.attach import attachment_of
from clipmend.negation.attach_sites import ValidTokens
from negation.attaching import NEAR, TEXTS, hooks, insides, patch_for

pytestmark = pytest.mark.filterwarnings("ignore::clipmend.backbones.base.LongTextsWarning")


def clip(legacy: bool = False) -> SimpleNamespace:
    tokenizer = tiny.clip_tokenizer()
    return case(tiny.clip_model(tokenizer, legacy=legacy), tokenizer, tiny.clip_processor(), padding=True)


def siglip(tokenizer: Any = None) -> SimpleNamespace:
    tokenizer = tokenizer or tiny.siglip_tokenizer()
    # As SigLIP was trained: every text at full length, and no attention mask, even where a tokenizer would make one.
    how = {"padding": "max_length", "max_length": 20, "truncation": True, "return_attention_mask": False}
    return case(tiny.siglip_model(len(tokenizer)), tokenizer, tiny.siglip_processor(), **how)


def case(model: Any, tokenizer: Any, processor: Any, **how: Any) -> SimpleNamespace:
    encoder = clipmend.load(model, tokenizer=tokenizer, processor=processor)
    options = {"tokenizer": tokenizer, "processor": processor}

    def ids(texts: list[str], **more: Any) -> Any:
        return tokenizer(texts, return_tensors="pt", **{**how, **more})

    return SimpleNamespace(model=model, tokenizer=tokenizer, processor=processor, encoder=encoder, options=options, ids=ids)


KINDS = {
    "clip": clip,
    "clip-legacy": lambda: clip(legacy=True),
    "siglip": siglip,
    "siglip2": lambda: siglip(tiny.gemma_tokenizer()),
    "siglip2-left": lambda: siglip(tiny.gemma_tokenizer("left")),
}


@pytest.fixture(params=list(KINDS))
def any_case(request: pytest.FixtureRequest) -> SimpleNamespace:
    return KINDS[request.param]()


@pytest.fixture
def own() -> SimpleNamespace:
    return clip()


def features(c: SimpleNamespace, texts: list[str] = TEXTS, **how: Any) -> Tensor:
    with torch.no_grad():
        return c.model.get_text_features(**c.ids(texts, **how)).pooler_output


def pixels(c: SimpleNamespace) -> Tensor:
    return c.processor(images=tiny.images(), return_tensors="pt")["pixel_values"]


# ---- the numbers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "config", [{}, {"use_direct": True}, {"use_anchor": False}, {"use_pool": False}, {"eos_only": True}], ids=str
)
def test_equals_apply(any_case: SimpleNamespace, config: dict[str, Any]) -> None:
    c = any_case
    patch = patch_for(c.encoder, **config)
    mended = patch.apply(c.encoder)
    plain = features(c)
    with patch.attached(c.model, **c.options):
        actual = features(c)
        unit = F.normalize(actual, dim=-1)
        assert_close(unit, mended.encode_texts(TEXTS), **NEAR)
        assert_close(actual, mended.encode_texts(TEXTS, normalize=False), atol=1e-4, rtol=1e-5)
        assert_close(actual.norm(dim=-1), plain.norm(dim=-1))  # the corrected direction at the original length
        assert (F.cosine_similarity(actual, plain) < 0.99).all(), "the correction must be seen in this test"
        one = torch.cat([features(c, [text]) for text in TEXTS])
        assert_close(F.normalize(one, dim=-1), unit, **NEAR)
    assert torch.equal(features(c), plain)


def test_an_empty_text(any_case: SimpleNamespace) -> None:
    """A live model takes what it always took; its other rows are as without."""
    patch = patch_for(any_case.encoder)
    with patch.attached(any_case.model, **any_case.options):
        actual = F.normalize(features(any_case, ["", "no cat"]), dim=-1)
    assert torch.isfinite(actual).all()
    assert_close(actual[1:], patch.apply(any_case.encoder).encode_texts(["no cat"]), **NEAR)


@pytest.mark.parametrize("strength", [0.0, 0.4, 2.0])
def test_strength(own: SimpleNamespace, strength: float) -> None:
    patch = patch_for(own.encoder)
    plain = features(own)
    with patch.attached(own.model, strength=strength, **own.options):
        actual = features(own)
    if strength == 0:
        assert torch.equal(actual, plain)
    assert_close(F.normalize(actual, dim=-1), patch.apply(own.encoder, strength).encode_texts(TEXTS), **NEAR)


def test_padded_and_unpadded_ids(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with patch.attached(own.model, **own.options):
        short = features(own)
        long = features(own, padding="max_length", max_length=40)
        ids = own.ids(TEXTS)["input_ids"]
        with torch.no_grad():
            without_mask = own.model.get_text_features(ids).pooler_output  # positional, and CLIP needs no attention mask
    assert_close(long, short, **NEAR)
    assert_close(without_mask, short, **NEAR)


def test_forward_gives_corrected_logits(any_case: SimpleNamespace) -> None:
    c = any_case
    patch = patch_for(c.encoder)
    mended = patch.apply(c.encoder)
    inputs = {**c.ids(TEXTS), "pixel_values": pixels(c)}
    with torch.no_grad():
        before = c.model(**inputs)
        with patch.attached(c.model, **c.options):
            out = c.model(**inputs)
            as_tuple = c.model(**inputs, return_dict=False)
            image_features = c.model.get_image_features(pixel_values=inputs["pixel_values"]).pooler_output
        scale, bias = c.model.logit_scale.exp(), getattr(c.model, "logit_bias", 0.0)
    assert type(out) is type(before)
    assert torch.equal(out.image_embeds, before.image_embeds)
    assert torch.equal(F.normalize(image_features, dim=-1), F.normalize(before.vision_model_output.pooler_output, dim=-1))
    assert torch.equal(out.text_model_output.last_hidden_state, before.text_model_output.last_hidden_state)
    texts = mended.encode_texts(TEXTS)
    assert_close(out.text_embeds, texts, **NEAR)
    expected = out.image_embeds @ texts.T * scale + bias
    assert_close(out.logits_per_image, expected, atol=1e-4, rtol=1e-4)
    assert_close(out.logits_per_text, expected.T, atol=1e-4, rtol=1e-4)
    assert (out.logits_per_image - before.logits_per_image).abs().max() > 0.1
    assert torch.equal(as_tuple[0], out.logits_per_image)


def test_the_output_object_is_the_librarys_own(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with torch.no_grad():
        before = own.model.get_text_features(**own.ids(TEXTS))
        with patch.attached(own.model, **own.options):
            after = own.model.get_text_features(**own.ids(TEXTS))
            as_tuple = own.model.get_text_features(**own.ids(TEXTS), return_dict=False)
    assert type(after) is type(before)
    assert after.keys() == before.keys()
    assert torch.equal(after.last_hidden_state, before.last_hidden_state)
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[1], after.pooler_output)


@pytest.mark.parametrize("seen_before", [False, True])
def test_hidden_states_are_still_to_be_had(own: SimpleNamespace, seen_before: bool) -> None:
    patch = patch_for(own.encoder)
    inputs = own.ids(TEXTS)
    plain = clip().model
    with torch.no_grad():
        expected = plain.get_text_features(**inputs, output_hidden_states=True).hidden_states
        if seen_before:
            own.model.get_text_features(**inputs, output_hidden_states=True)
        with patch.attached(own.model, **own.options):
            for _ in range(3):
                actual = own.model.get_text_features(**inputs, output_hidden_states=True).hidden_states
                assert len(actual) == len(expected) == 4
        assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))
    assert hooks(own.model) == hooks(plain), "transformers' own recorders, once"


def test_text_models_by_themselves(tmp_path: Path, own: SimpleNamespace) -> None:
    folder = tiny.saved(tmp_path, own.model, own.tokenizer)
    model = CLIPTextModelWithProjection.from_pretrained(folder).eval()
    patch = patch_for(own.encoder)
    with torch.no_grad(), patch.attached(model):  # the tokenizer lies beside the model
        out = model(**own.ids(TEXTS))
    assert_close(F.normalize(out.text_embeds, dim=-1), patch.apply(own.encoder).encode_texts(TEXTS), **NEAR)

    s = siglip()
    patch = patch_for(s.encoder)
    with torch.no_grad(), patch.attached(s.model.text_model, tokenizer=s.tokenizer):
        out = s.model.text_model(**s.ids(TEXTS))
    assert_close(F.normalize(out.pooler_output, dim=-1), patch.apply(s.encoder).encode_texts(TEXTS), **NEAR)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_gate_reads_the_texts_from_their_ids(kind: str) -> None:
    c = KINDS[kind]()
    patch = patch_for(c.encoder)
    texts = ["a dog", "no cat", "it isn't a dog", "cat", "sugar-free cat"] if kind == "clip" else ["a dog", "cat"]
    plain = features(c, texts)
    with patch.attached(c.model, gate=True, **c.options):
        actual = features(c, texts)
    expected = patch.apply(c.encoder, gate=True).encode_texts(texts)
    assert_close(F.normalize(actual, dim=-1), expected, **NEAR)
    changed = (actual != plain).any(-1).tolist()
    assert changed == ([False, True, True, False, True] if kind == "clip" else [False, False])


def test_valid_tokens() -> None:
    ids = torch.tensor([[5, 6, 9, 0, 0], [5, 9, 9, 9, 9], [0, 0, 0, 0, 0]])
    as_lists = lambda mask: [row.int().tolist() for row in mask]  # noqa: E731
    assert as_lists(ValidTokens("highest")(ids)) == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert as_lists(ValidTokens("first", 9)(ids)) == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert as_lists(ValidTokens("pads", 0)(ids)) == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]
    assert as_lists(ValidTokens("pads", 9, closes=True)(ids)) == [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert as_lists(ValidTokens("pads", 0, left=True)(ids.flip(1)))[0] == [0, 0, 1, 1, 1]
    assert as_lists(ValidTokens("unlike", 0)(ids))[1:] == [[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]]
    assert ValidTokens("given")(ids).all()
    assert as_lists(ValidTokens("given")(ids, ids % 2))[0] == [1, 0, 1, 0, 0]


# ---- on and off -------------------------------------------------------------------------------------------------------------


def test_detach_leaves_no_trace(any_case: SimpleNamespace) -> None:
    c = any_case
    c.model.train()
    c.model.requires_grad_(True)
    c.model.text_model.encoder.layers[0].eval()
    c.model.text_model.encoder.layers[1].requires_grad_(False)
    learning = [parameter.requires_grad for parameter in c.model.parameters()]
    before, hooked = insides(c.model), hooks(c.model)
    state = {name: tensor.clone() for name, tensor in c.model.state_dict().items()}
    patch = patch_for(c.encoder)
    c.model.eval()
    plain = features(c)
    c.model.train()
    c.model.text_model.encoder.layers[0].eval()

    assert patch.attach(c.model, **c.options) is c.model
    assert set(vars(c.model)) - set(before[0][1]) == {"get_text_features", "forward"}
    assert c.model.state_dict().keys() == state.keys()
    assert hooks(c.model) == hooked
    c.model.eval()
    assert not torch.equal(features(c), plain)
    c.model.train()
    c.model.text_model.encoder.layers[0].eval()
    assert patch.detach(c.model) is c.model
    assert insides(c.model) == before
    assert [parameter.requires_grad for parameter in c.model.parameters()] == learning
    assert all(torch.equal(tensor, state[name]) for name, tensor in c.model.state_dict().items())
    assert inspect.ismethod(c.model.get_text_features)
    assert c.model.forward.__func__ is type(c.model).forward
    c.model.eval()
    assert features(c).numpy().tobytes() == plain.numpy().tobytes()
    with pytest.raises(ValueError, match="carries no patch"):
        patch.detach(c.model)


def test_attaching_twice_is_refused(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    plain = features(own)
    patch.attach(own.model, **own.options)
    once = features(own)
    with pytest.raises(ValueError, match="carries a patch already"):
        patch.attach(own.model, **own.options)
    with pytest.raises(ValueError, match="carries a patch already"), patch.attached(own.model, **own.options):
        pass
    assert torch.equal(features(own), once), "the refused one leaves the first in place"
    patch.detach(own.model)
    assert torch.equal(features(own), plain)


def test_a_part_that_carries_a_patch() -> None:
    s = siglip()
    patch = patch_for(s.encoder)
    patch.attach(s.model.text_model, tokenizer=s.tokenizer)
    with pytest.raises(ValueError, match="a part of this SiglipModel carries a patch"):
        patch.attach(s.model, **s.options)
    patch.detach(s.model.text_model)
    with patch.attached(s.model, **s.options):
        once = features(s)
        with patch.attached(s.model.text_model, tokenizer=s.tokenizer):  # part after whole: still corrected but once
            assert torch.equal(features(s), once)


def test_the_context_takes_it_off_whatever_happens(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with pytest.raises(KeyError), patch.attached(own.model, **own.options):
        raise KeyError
    assert attachment_of(own.model) is None
    with patch.attached(own.model, **own.options):
        patch.detach(own.model)
    with patch.attached(own.model, **own.options):
        patch.detach(own.model)
        patch.attach(own.model, strength=0.5, **own.options)
    assert attachment_of(own.model) is not None, "one put on inside is not the context's to take off"


def test_training_the_patch_further_leaves_the_attached_one_alone(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with patch.attached(own.model, **own.options):
        before = features(own)
        with torch.no_grad():
            patch.ecn.log_alpha.add_(1.0)
        assert torch.equal(features(own), before)


# ---- which model ------------------------------------------------------------------------------------------------------------


def test_another_backbone_is_refused(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    other = tiny.clip_model(own.tokenizer, seed=9)
    with pytest.raises(ValueError, match=r"its text weights differ.*its image side differs.*allow_mismatch=True"):
        patch.attach(other, **own.options)
    assert attachment_of(other) is None
    with pytest.warns(UserWarning, match="its text weights differ"):
        patch.attach(other, allow_mismatch=True, **own.options)
    assert attachment_of(other) is not None
    with pytest.raises(ValueError, match="its tokenizer differs"):
        patch.attach(own.model, tokenizer=tiny.clip_tokenizer(pad_token="!!"), processor=own.processor)
    s = siglip()
    with pytest.raises(ValueError, match="40"):  # which does not help where sizes differ
        patch.attach(s.model, allow_mismatch=True, **s.options)


def test_what_is_not_known_is_not_compared(own: SimpleNamespace, tmp_path: Path) -> None:
    patch = patch_for(own.encoder)
    patch.attach(own.model)  # neither tokenizer nor processor: by its text weights alone
    assert_close(F.normalize(features(own), dim=-1), patch.apply(own.encoder).encode_texts(TEXTS), **NEAR)
    patch.detach(own.model)
    with pytest.raises(ValueError, match="gate reads the texts"):
        patch.attach(own.model, gate=True)
    elsewhere = PeakPatch(patch.config, patch.ecn, backbone="x", fingerprint=replace(patch.fingerprint, text="0" * 64))
    with pytest.raises(ValueError, match="its text weights differ"):
        elsewhere.attach(own.model)
    s = siglip()
    with pytest.raises(ValueError, match="pass tokenizer="):
        patch_for(s.encoder).attach(s.model)
    # From a folder, what lies beside the model is found.
    from transformers import SiglipModel

    folder = tiny.saved(tmp_path, s.model, s.tokenizer, s.processor)
    model = SiglipModel.from_pretrained(folder).eval()
    sided = patch_for(s.encoder)
    sided.attach(model)
    other = PeakPatch(sided.config, sided.ecn, backbone="x", fingerprint=replace(sided.fingerprint, image="0" * 64))
    with pytest.raises(ValueError, match="its image side differs"):
        other.attach(SiglipModel.from_pretrained(folder))


def test_a_model_in_half_precision(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    expected = patch.apply(own.encoder).encode_texts(TEXTS)
    patch.attach(own.model, **own.options)
    own.model.to(torch.bfloat16)
    actual = features(own)
    assert actual.dtype == torch.bfloat16
    assert (F.cosine_similarity(actual.float(), expected) > 0.99).all()
    patch.detach(own.model)
    with pytest.raises(ValueError, match="attach first, then cast it"):
        patch.attach(own.model, **own.options)


def test_what_cannot_be_attached_to(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with pytest.raises(TypeError, match=r"patch\.apply"):
        patch.attach(own.encoder)
    with pytest.raises(TypeError, match="cannot attach to a str"):
        patch.attach("openai/clip-vit-base-patch32")
    with pytest.raises(TypeError, match=r"DataParallel\.module"):
        patch.attach(nn.DataParallel(own.model))
    with pytest.raises(ValueError, match="Linear is a model of neither"):
        patch.attach(nn.Linear(2, 2))
    bert = tiny.bert_model(30)
    with pytest.raises(ValueError, match="the SentenceTransformer around"):
        patch.attach(bert, tokenizer=tiny.bert_tokenizer())
    with pytest.raises(ValueError, match="CLIPVisionModel gives no text embedding"):
        patch.attach(own.model.vision_model)
    with pytest.raises(ValueError, match="strength must be"):
        patch.attach(own.model, strength=-1)
    own.model.forward = own.model.forward  # as an offloading library does
    with pytest.raises(ValueError, match=r"CLIPModel\.forward was replaced by other code"):
        patch.attach(own.model, **own.options)
    assert "get_text_features" not in vars(own.model)


def test_parts_replaced_by_other_code_are_no_silent_plain_embedding(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    patch.attach(own.model, **own.options)
    encoder = own.model.text_model.encoder
    encoder.forward = encoder.forward  # bound to the original, so that a twin's blocks are passed by
    with pytest.raises(RuntimeError, match=r"blocks \[.*\] gave no output; is it offloaded"):
        features(own)


# ---- how it runs ------------------------------------------------------------------------------------------------------------


def test_two_threads(any_case: SimpleNamespace) -> None:
    c = any_case
    patch = patch_for(c.encoder)
    sets = [TEXTS, [*reversed(TEXTS)], ["no dog"], ["cat", "a cat and no dog"]]
    with patch.attached(c.model, **c.options):
        inputs = [c.ids(texts) for texts in sets]

        def run(k: int) -> Tensor:
            with torch.no_grad():
                return c.model.get_text_features(**inputs[k % len(sets)]).pooler_output

        expected = [run(k) for k in range(len(sets))]
        with ThreadPoolExecutor(4) as pool:
            for k, actual in enumerate(pool.map(run, range(80))):
                assert_close(actual, expected[k % len(sets)], **NEAR)


@pytest.mark.parametrize("where", ["text_model.encoder.layers.2", "text_model.final_layer_norm"])
def test_an_exception_in_the_middle(own: SimpleNamespace, where: str) -> None:
    patch = patch_for(own.encoder)
    with patch.attached(own.model, **own.options):
        expected = features(own)

        def fail(*_: Any) -> None:
            raise RuntimeError("in the middle")

        handle = own.model.get_submodule(where).register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            features(own)
        handle.remove()
        assert torch.equal(features(own), expected)
    assert attachment_of(own.model) is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_gradients_are_not_needed(own: SimpleNamespace, mode: Any) -> None:
    patch = patch_for(own.encoder)  # the wrapped model is frozen, as encoders are
    with patch.attached(own.model, **own.options), mode():
        out = own.model.get_text_features(**own.ids(TEXTS)).pooler_output
    assert not out.requires_grad
    assert not any(parameter.grad is not None for parameter in own.model.parameters())


def test_gradients_pass_where_the_model_learns(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    own.model.requires_grad_(True)
    with patch.attached(own.model, **own.options):
        own.model.get_text_features(**own.ids(TEXTS)).pooler_output.sum().backward()
    assert own.model.text_projection.weight.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in patch.ecn.parameters())


def test_autocast(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    inputs = own.ids(TEXTS)
    plain_type = None
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        plain_type = own.model.get_text_features(**inputs).pooler_output.dtype
        with patch.attached(own.model, **own.options):
            out = own.model.get_text_features(**inputs).pooler_output
    assert out.dtype == plain_type == torch.bfloat16
    assert (F.cosine_similarity(out.float(), patch.apply(own.encoder).encode_texts(TEXTS)) > 0.99).all()


def test_pickle_and_copies(any_case: SimpleNamespace) -> None:
    c = any_case
    patch = patch_for(c.encoder)
    plain = features(c)
    patch.attach(c.model, **c.options)
    expected = features(c)
    for twin in (pickle.loads(pickle.dumps(c.model)), copy.deepcopy(c.model), through_torch(c.model)):
        twin_case = SimpleNamespace(model=twin, ids=c.ids)
        assert torch.equal(features(twin_case), expected)
        carried = attachment_of(twin)
        assert carried is not None
        assert carried.model is twin, "the copy's methods are on the copy"
        patch.detach(twin)
        assert torch.equal(features(twin_case), plain)
        assert torch.equal(features(c), expected), "and the original keeps its own"


def through_torch(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def worker(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    torch.set_num_threads(1)
    with torch.no_grad():
        return model.get_text_features(**inputs).pooler_output.clone()


def test_in_a_spawned_process(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    patch.attach(own.model, **own.options)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        actual = pool.submit(worker, own.model, dict(own.ids(TEXTS))).result(timeout=300)
    assert_close(actual, features(own), **NEAR)


def test_save_pretrained_writes_the_plain_model(own: SimpleNamespace, tmp_path: Path) -> None:
    plain = features(own)
    with patch_for(own.encoder).attached(own.model, **own.options):
        own.model.save_pretrained(tmp_path)
    again = type(own.model).from_pretrained(tmp_path).eval()
    assert torch.equal(features(SimpleNamespace(model=again, ids=own.ids)), plain)


def test_callers_see_the_methods_own_signature(own: SimpleNamespace) -> None:
    before = inspect.signature(own.model.get_text_features), inspect.signature(own.model.forward)
    with patch_for(own.encoder).attached(own.model, **own.options):
        assert (inspect.signature(own.model.get_text_features), inspect.signature(own.model.forward)) == before
        assert own.model.get_text_features.__name__ == "get_text_features"
        assert "Examples" in own.model.get_text_features.__doc__
        assert repr(own.model.forward) == "<mended CLIPModel.forward>"


# ---- torch.compile ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("kind", ["clip", pytest.param("siglip", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "when",
    [
        "compiled, then attached",
        pytest.param("attached, then compiled", marks=pytest.mark.slow),
        pytest.param("attached to the compiled", marks=pytest.mark.slow),
    ],
)
def test_compiled_models(kind: str, when: str) -> None:
    c = KINDS[kind]()
    patch = patch_for(c.encoder)
    inputs = {**c.ids(TEXTS), "pixel_values": pixels(c)}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = c.model(**inputs).logits_per_image
        with patch.attached(c.model, **c.options):
            expected = c.model(**inputs).logits_per_image
        if when == "attached, then compiled":
            patch.attach(c.model, **c.options)
        compiled = torch.compile(c.model, backend="aot_eager")
        if when != "attached, then compiled":
            assert_close(compiled(**inputs).logits_per_image, plain, atol=1e-4, rtol=1e-4)
            patch.attach(compiled if when == "attached to the compiled" else c.model, **c.options)
        assert_close(compiled(**inputs).logits_per_image, expected, atol=1e-4, rtol=1e-4)
        patch.detach(compiled)
        assert_close(compiled(**inputs).logits_per_image, plain, atol=1e-4, rtol=1e-4)
    assert (plain - expected).abs().max() > 0.1


@pytest.mark.usefixtures("dynamo")
def test_compiled_parts_and_compiling_in_place(own: SimpleNamespace) -> None:
    patch = patch_for(own.encoder)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with patch.attached(own.model, **own.options):
            expected = features(own)
        own.model.compile(backend="aot_eager")
        own.model.text_model.compile(backend="aot_eager")
        with patch.attached(own.model, **own.options):
            assert_close(features(own), expected, **NEAR)
            logits = own.model(**own.ids(TEXTS), pixel_values=pixels(own))
            assert_close(logits.text_embeds, F.normalize(expected, dim=-1), **NEAR)
        own.model.text_model = torch.compile(own.model.text_model, backend="aot_eager")
        with patch.attached(own.model, **own.options):
            assert_close(features(own), expected, **NEAR)
