"""A patch on pipelines of diffusers: the mended embedding reaches the network, nothing else changes, and detach restores."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import clipmend
from clipmend.generation.attach import places
from clipmend.negation import PeakPatch
from clipmend.negation.attach import attachment_of
from clipmend.negation.mismatch import MismatchError
from generation import tiny_pipelines as tiny
from generation.tiny_pipelines import CASES, Case, seen
from negation.attaching import NEAR, insides

diffusers = pytest.importorskip("diffusers")
PROMPT = "a dog and no cat"


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


@pytest.fixture
def prior() -> Case:
    return tiny.kandinsky_prior()


def mended(case: Case, patch: PeakPatch, prompts: list[str], strength: float = 1.0) -> torch.Tensor:
    """What the library's own encoder makes of the prompts, at the length of the plain embeddings."""
    encoder = clipmend.load(case.encoder, tokenizer=case.tokenizer)
    plain = encoder.encode_texts(prompts, normalize=False)
    return patch.apply(encoder, strength).encode_texts(prompts) * plain.norm(dim=-1, keepdim=True)


def test_the_mended_embedding_reaches_the_network_and_detach_restores(case: Case) -> None:
    patch, before = case.patch(), seen(case)
    inside = insides(case.encoder)
    assert patch.attach(case.pipeline) is case.pipeline
    assert attachment_of(case.pipeline) is attachment_of(case.encoder) is not None
    with_patch = seen(case)
    assert patch.detach(case.pipeline) is case.pipeline
    after = seen(case)

    expected = mended(case, patch, [PROMPT])
    for plain, corrected in zip(before.inputs, with_patch.inputs, strict=True):
        assert_close(corrected[-1:], expected, **NEAR)
        assert (F.cosine_similarity(corrected[-1:], plain[-1:]) < 0.99).all()
        assert_close(corrected[:-1], plain[:-1], atol=0, rtol=0)  # guidance's empty text
    assert not torch.allclose(with_patch.output, before.output, atol=1e-4)  # and it changes what comes out
    assert torch.equal(after.output, before.output)
    assert all(torch.equal(a, b) for a, b in zip(after.inputs, before.inputs, strict=True))
    assert insides(case.encoder) == inside
    assert attachment_of(case.pipeline) is None


def test_strength_nothing_and_more(case: Case) -> None:
    patch, before = case.patch(), seen(case)
    with patch.attached(case.pipeline, strength=0):
        assert torch.equal(seen(case).output, before.output)
    with patch.attached(case.pipeline, strength=0.5):
        assert_close(seen(case).inputs[0][-1:], mended(case, patch, [PROMPT], 0.5), **NEAR)
    assert attachment_of(case.pipeline) is None


def test_token_states_stay_as_they_are(prior: Case) -> None:
    states: list[torch.Tensor] = []
    prior.pipeline.prior.register_forward_pre_hook(
        lambda _, args, kwargs: states.append(kwargs["encoder_hidden_states"].clone()), with_kwargs=True
    )
    seen(prior)
    with prior.patch().attached(prior.pipeline):
        seen(prior)
    assert torch.equal(states[0], states[2])


def test_sdxl_hidden_states_stay_as_they_are() -> None:
    case = tiny.sdxl()
    plain = case.pipeline.encode_prompt(PROMPT)
    with case.patch().attached(case.pipeline):
        corrected = case.pipeline.encode_prompt(PROMPT)
    assert torch.equal(corrected[0], plain[0])
    assert not torch.allclose(corrected[2], plain[2], atol=1e-3)


def test_several_prompts_several_images_and_negative_prompts(prior: Case) -> None:
    patch, prompts = prior.patch(), ["a dog", PROMPT]
    with patch.attached(prior.pipeline):
        inputs = seen(prior, prompts, num_images_per_prompt=2).inputs[0]
        assert_close(inputs[4:], mended(prior, patch, prompts).repeat_interleave(2, dim=0), **NEAR)
        against = seen(prior, [PROMPT], negative_prompt=["cat"]).inputs[0]
    assert_close(against, mended(prior, patch, ["cat", "cat", PROMPT, "cat"]), **NEAR)


def test_the_gate_leaves_prompts_without_negation_alone(prior: Case) -> None:
    patch, prompts = prior.patch(), ["a dog", PROMPT]
    plain = seen(prior, prompts).inputs[0]
    with patch.attached(prior.pipeline, gate=True):
        gated = seen(prior, prompts).inputs[0]
    assert torch.equal(gated[:3], plain[:3])
    assert not torch.allclose(gated[3], plain[3], atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_half_precision_after_attaching(prior: Case, dtype: torch.dtype) -> None:
    patch = prior.patch()
    expected = mended(prior, patch, [PROMPT])
    patch.attach(prior.pipeline)
    prior.pipeline.to(dtype)
    inputs = seen(prior).inputs[0]
    assert inputs.dtype == dtype
    assert F.cosine_similarity(inputs[-1:].float(), expected).min() > 0.99


def test_saved_plain_and_read_again(prior: Case, tmp_path: Path) -> None:
    with prior.patch().attached(prior.pipeline):
        prior.pipeline.save_pretrained(tmp_path)
    again = diffusers.KandinskyV22PriorPipeline.from_pretrained(tmp_path)
    assert attachment_of(again) is None
    own = prior.pipeline.text_encoder.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in again.text_encoder.state_dict().items())
    case = Case(again, "text_encoder", "prior", prior.argument, prior.run)
    prior.patch().attach(case.pipeline)  # the tokenizer of the saved pipeline is the same by digest


def test_pickled_with_its_patch(prior: Case) -> None:
    patch = prior.patch()
    patch.attach(prior.pipeline)
    encoder = pickle.loads(pickle.dumps(prior.pipeline.text_encoder))
    ids = prior.tokenizer([PROMPT], return_tensors="pt").input_ids
    with torch.no_grad():
        assert_close(encoder(ids).text_embeds, mended_after_detach(prior, patch), **NEAR)


def mended_after_detach(case: Case, patch: PeakPatch) -> torch.Tensor:
    patch.detach(case.pipeline)
    return mended(case, patch, [PROMPT])


def test_offloading_after_attaching(prior: Case) -> None:
    hooks = pytest.importorskip("accelerate")
    patch = prior.patch()
    expected = mended(prior, patch, [PROMPT])
    patch.attach(prior.pipeline)
    _, hook = hooks.cpu_offload_with_hook(prior.pipeline.text_encoder, "cpu")
    assert_close(seen(prior).inputs[0][-1:], expected, **NEAR)
    with pytest.raises(ValueError, match="remove_all_hooks"):
        patch.detach(prior.pipeline)
    hook.remove()
    patch.detach(prior.pipeline)
    assert attachment_of(prior.pipeline) is None


def test_the_combined_pipeline_shares_its_prior() -> None:
    case = tiny.kandinsky_combined()
    patch = case.patch()
    patch.attach(case.pipeline)
    assert attachment_of(case.pipeline.prior_pipe) is not None
    patch.detach(case.pipeline.prior_pipe)
    assert attachment_of(case.pipeline) is None


def test_of_two_projected_encoders_the_patch_goes_on_its_own() -> None:
    case = tiny.sdxl()
    case.pipeline.text_encoder = tiny.text_encoder(seed=9)  # as in Stable Diffusion 3, where both have a projection
    assert [place.component for place in places(case.pipeline)] == ["text_encoder", "text_encoder_2"]
    patch = case.patch()
    patch.attach(case.pipeline)
    assert attachment_of(case.pipeline.text_encoder) is None
    assert attachment_of(case.pipeline.text_encoder_2) is not None
    patch.detach(case.pipeline)
    case.pipeline.text_encoder_2 = tiny.text_encoder(seed=10)
    with pytest.raises(MismatchError, match=r"none of the text encoders.*text_encoder: .*text_encoder_2: "):
        patch.attach(case.pipeline)
    with pytest.warns(UserWarning, match="fitted on"):
        patch.attach(case.pipeline, allow_mismatch=True)
    assert attachment_of(case.pipeline.text_encoder) is not None


@pytest.mark.parametrize("make", [tiny.kandinsky_prior, tiny.sdxl])
def test_an_error_in_the_middle_leaves_nothing_behind(make: Callable[[], Case]) -> None:
    case = make()
    patch, before = case.patch(), case.run(PROMPT)
    weights = {name: value.clone() for name, value in case.encoder.state_dict().items()}
    own = insides(case.encoder)

    def fail(*arguments: Any) -> None:
        raise RuntimeError("in the middle")

    patch.attach(case.pipeline)
    mended_one = case.run(PROMPT)
    for part in (case.encoder.text_model.encoder.layers[1], getattr(case.pipeline, case.network)):
        hook = part.register_forward_pre_hook(fail)
        with pytest.raises(RuntimeError, match="in the middle"):
            case.run("a cup and no tree")
        hook.remove()
        assert torch.equal(case.run(PROMPT), mended_one)  # nothing of the other prompt is left
    patch.detach(case.pipeline)
    assert insides(case.encoder) == own
    assert all(torch.equal(value, weights[name]) for name, value in case.encoder.state_dict().items())
    assert torch.equal(case.run(PROMPT), before)
    with pytest.raises(RuntimeError, match="in the middle"), patch.attached(case.pipeline):
        fail()
    assert attachment_of(case.pipeline) is None


def test_two_threads_do_not_mix_their_prompts(prior: Case) -> None:
    prompts = ["a dog and no cat", "a cat and no dog", "a cup and no tree", "no red cup"]
    ids = [prior.tokenizer([prompt], return_tensors="pt").input_ids for prompt in prompts]

    def embed(row: int) -> torch.Tensor:
        with torch.no_grad():
            return prior.encoder(ids[row]).text_embeds

    with prior.patch().attached(prior.pipeline):
        alone = [embed(row) for row in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(embed, list(range(4)) * 15))
    assert all(torch.allclose(found, alone[place % 4], atol=1e-5) for place, found in enumerate(together))


def test_two_pipelines_that_share_a_text_encoder(prior: Case) -> None:
    other = tiny.kandinsky_prior()
    other.pipeline.text_encoder = prior.encoder
    patch = prior.patch()
    patch.attach(prior.pipeline)
    assert attachment_of(other.pipeline) is attachment_of(prior.pipeline)
    with pytest.raises(ValueError, match="carries a patch already"):
        patch.attach(other.pipeline)
    patch.detach(other.pipeline)
    assert attachment_of(prior.pipeline) is None


def test_embeddings_given_in_place_of_a_prompt_are_used_as_they_are() -> None:
    case = tiny.sdxl()
    plain = case.pipeline.encode_prompt(PROMPT)
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    given = dict(zip(names, plain, strict=True))
    before = case.run(None, **given)
    with case.patch().attached(case.pipeline):
        assert torch.equal(case.run(None, **given), before)
        mended_ones = dict(zip(names, case.pipeline.encode_prompt(PROMPT), strict=True))
    assert torch.equal(mended_ones["negative_pooled_prompt_embeds"], given["negative_pooled_prompt_embeds"])
    assert not torch.equal(case.run(None, **mended_ones), before)  # made while the patch was on, they keep its correction


# ---- refused ------------------------------------------------------------------------------------------------------------------


def test_stable_diffusion_1_says_why_and_what_would_work() -> None:
    pipeline, patch = tiny.stable_diffusion_1(), tiny.kandinsky_prior().patch()
    with pytest.raises(
        ValueError, match=r"StableDiffusionPipeline.*token states.*CLIPTextModel.*StableUnCLIPPipeline.*negative_prompt"
    ):
        patch.attach(pipeline)
    assert attachment_of(pipeline) is None
    with pytest.raises(ValueError, match="StableDiffusionPipeline carries no patch"):
        patch.detach(pipeline)


def test_pipelines_without_text_say_so() -> None:
    patch = tiny.kandinsky_prior().patch()
    decoder = diffusers.KandinskyV22Pipeline(**tiny.kandinsky_decoder())
    with pytest.raises(ValueError, match=r"image embeddings.*KandinskyV22PriorPipeline"):
        patch.attach(decoder)
    blind = diffusers.DDPMPipeline(unet=diffusers.UNet2DModel(sample_size=8, block_out_channels=(32, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D",) * 2, up_block_types=("UpBlock2D",) * 2), scheduler=diffusers.DDPMScheduler())  # fmt: skip
    with pytest.raises(ValueError, match="no text encoder"):
        patch.attach(blind)


def test_other_weights_and_second_patches_are_refused(prior: Case) -> None:
    patch = prior.patch()
    other = tiny.kandinsky_prior()
    other.pipeline.text_encoder = tiny.text_encoder(seed=7)
    with pytest.raises(MismatchError, match="text weights differ"):
        patch.attach(other.pipeline)
    patch.attach(prior.pipeline)
    for again in (prior.pipeline, prior.encoder):
        with pytest.raises(ValueError, match="carries a patch already"):
            patch.attach(again)
    patch.detach(prior.pipeline)
    with pytest.raises(ValueError, match="KandinskyV22PriorPipeline carries no patch"):
        patch.detach(prior.pipeline)


@pytest.mark.parametrize("strength", [-1.0, float("nan")])
def test_bad_strength(prior: Case, strength: float) -> None:
    with pytest.raises(ValueError, match="strength"):
        prior.patch().attach(prior.pipeline, strength=strength)


def test_objects_that_only_look_like_pipelines(prior: Case) -> None:
    class DiffusionPipeline:
        pass

    pretender: Any = DiffusionPipeline()
    with pytest.raises(TypeError, match="cannot attach"):
        prior.patch().attach(pretender)
