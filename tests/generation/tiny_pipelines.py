"""Pipelines of diffusers with random weights, small enough to run end to end in a second."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
)

import clipmend
from backbones import tiny
from clipmend.negation import PeakPatch
from negation.attaching import patch_for

diffusers = pytest.importorskip("diffusers")
WIDTH = 32
"""Of the text encoders and of the joint space: a prior reads both."""


@dataclass
class Case:
    """A pipeline and how to run it.

    Args:
        pipeline: the pipeline.
        component: its text encoder whose pooled embedding it draws from.
        network: the component that is to get the mended embedding.
        argument: as which argument, or a function of all of them.
        run: the prompt to what comes out, as a tensor.
    """

    pipeline: Any
    component: str
    network: str
    argument: Callable[[dict[str, Any]], torch.Tensor]
    run: Callable[..., torch.Tensor]

    @property
    def encoder(self) -> Any:
        return getattr(self.pipeline, self.component)

    @property
    def tokenizer(self) -> Any:
        return getattr(self.pipeline, self.component.replace("text_encoder", "tokenizer"))

    def patch(self, **config: Any) -> PeakPatch:
        """One that corrects much, fitted on the pipeline's own text encoder."""
        return patch_for(clipmend.load(self.encoder, tokenizer=self.tokenizer), **config)


def tokenizer() -> Any:
    return tiny.clip_tokenizer()


def text_encoder(projected: bool = True, seed: int = 0, **more: Any) -> Any:
    own = tokenizer()
    torch.manual_seed(seed)
    config = CLIPTextConfig(
        vocab_size=len(own),
        hidden_size=WIDTH,
        intermediate_size=37,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=40,
        projection_dim=WIDTH,
        bos_token_id=own.bos_token_id,
        eos_token_id=own.eos_token_id,
        pad_token_id=own.pad_token_id,
        **more,
    )
    model = (CLIPTextModelWithProjection if projected else CLIPTextModel)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # as initialised, every text is nearly the same
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def image_encoder() -> Any:
    torch.manual_seed(1)
    return CLIPVisionModelWithProjection(
        CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=37,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=32,
            patch_size=16,
            projection_dim=WIDTH,
        )
    ).eval()


def prior() -> Any:
    torch.manual_seed(2)
    model = diffusers.PriorTransformer(
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=1,
        embedding_dim=WIDTH,
        num_embeddings=40,
        additional_embeddings=4,
    ).eval()
    with torch.no_grad():
        model.clip_std.fill_(1.0)  # a new one scales every image embedding to nothing
    return model


def prior_scheduler() -> Any:
    return diffusers.UnCLIPScheduler(variance_type="fixed_small_log", prediction_type="sample", num_train_timesteps=100)


def vae() -> Any:
    torch.manual_seed(3)
    return diffusers.AutoencoderKL(
        block_out_channels=[32, 32],
        down_block_types=["DownEncoderBlock2D"] * 2,
        up_block_types=["UpDecoderBlock2D"] * 2,
        latent_channels=4,
    ).eval()


def unet(**more: Any) -> Any:
    torch.manual_seed(4)
    settings = {
        "sample_size": 16,
        "block_out_channels": (32, 32),
        "layers_per_block": 1,
        "in_channels": 4,
        "out_channels": 4,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": WIDTH,
        "attention_head_dim": 8,
        "norm_num_groups": 8,
        **more,
    }
    return diffusers.UNet2DConditionModel(**settings).eval()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _quiet(pipeline: Any) -> Any:
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def unclip() -> Case:
    simple = {
        "down_block_types": ("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        "mid_block_type": "UNetMidBlock2DSimpleCrossAttn",
        "up_block_types": ("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        "resnet_time_scale_shift": "scale_shift",
        "class_embed_type": "identity",
    }
    torch.manual_seed(5)
    from diffusers.pipelines.deprecated.unclip.text_proj import UnCLIPTextProjModel

    text_proj = UnCLIPTextProjModel(clip_embeddings_dim=WIDTH, time_embed_dim=128, cross_attention_dim=WIDTH)
    larger = {
        "sample_size": 32,
        "in_channels": 6,
        "out_channels": 3,
        "block_out_channels": (32, 32),
        "layers_per_block": 1,
        "norm_num_groups": 8,
        "down_block_types": ("ResnetDownsampleBlock2D",) * 2,
        "up_block_types": ("ResnetUpsampleBlock2D",) * 2,
        "resnet_time_scale_shift": "scale_shift",
        "add_attention": False,
    }
    plain = {"variance_type": "fixed_small_log", "prediction_type": "epsilon", "num_train_timesteps": 100}
    pipeline = _quiet(
        diffusers.UnCLIPPipeline(
            prior=prior(),
            decoder=unet(in_channels=3, out_channels=6, **simple),
            text_encoder=text_encoder(),
            tokenizer=tokenizer(),
            text_proj=text_proj.eval(),
            super_res_first=diffusers.UNet2DModel(**larger).eval(),
            super_res_last=diffusers.UNet2DModel(**larger).eval(),
            prior_scheduler=prior_scheduler(),
            decoder_scheduler=diffusers.UnCLIPScheduler(**{**plain, "variance_type": "learned_range"}),
            super_res_scheduler=diffusers.UnCLIPScheduler(**plain),
        )
    )
    steps = {"prior_num_inference_steps": 2, "decoder_num_inference_steps": 2, "super_res_num_inference_steps": 2}
    return Case(pipeline, "text_encoder", "prior", lambda a: a["proj_embedding"], _images(pipeline, **steps))


def stable_unclip() -> Case:
    from diffusers.pipelines.stable_diffusion import StableUnCLIPImageNormalizer

    pipeline = _quiet(
        diffusers.StableUnCLIPPipeline(
            prior_tokenizer=tokenizer(),
            prior_text_encoder=text_encoder(),
            prior=prior(),
            prior_scheduler=prior_scheduler(),
            image_normalizer=StableUnCLIPImageNormalizer(embedding_dim=WIDTH),
            image_noising_scheduler=diffusers.DDPMScheduler(beta_schedule="squaredcos_cap_v2"),
            tokenizer=tokenizer(),
            text_encoder=text_encoder(projected=False, seed=9),
            unet=unet(class_embed_type="projection", projection_class_embeddings_input_dim=2 * WIDTH),
            scheduler=diffusers.DDIMScheduler(),
            vae=vae(),
        )
    )
    steps = {"num_inference_steps": 2, "prior_num_inference_steps": 2}
    return Case(pipeline, "prior_text_encoder", "prior", lambda a: a["proj_embedding"], _images(pipeline, **steps))


def kandinsky_prior() -> Case:
    pipeline = _quiet(
        diffusers.KandinskyV22PriorPipeline(
            prior=prior(),
            image_encoder=image_encoder(),
            text_encoder=text_encoder(),
            tokenizer=tokenizer(),
            scheduler=prior_scheduler(),
            image_processor=tiny.clip_processor(),
        )
    )

    def run(prompt: str = "a dog and no cat", seed: int = 0, **more: Any) -> torch.Tensor:
        return pipeline(prompt, num_inference_steps=2, generator=seeded(seed), **more).image_embeds

    return Case(pipeline, "text_encoder", "prior", lambda a: a["proj_embedding"], run)


def kandinsky_decoder() -> Any:
    torch.manual_seed(6)
    movq = diffusers.VQModel(
        block_out_channels=[32, 32],
        down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
        up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
        latent_channels=4,
        num_vq_embeddings=12,
        norm_num_groups=8,
        norm_type="spatial",
        vq_embed_dim=4,
    ).eval()
    decoder = unet(
        sample_size=32,
        out_channels=8,
        addition_embed_type="image",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        encoder_hid_dim=WIDTH,
        encoder_hid_dim_type="image_proj",
        resnet_time_scale_shift="scale_shift",
    )
    return {"unet": decoder, "movq": movq, "scheduler": diffusers.DDIMScheduler(num_train_timesteps=100)}


def kandinsky_combined() -> Case:
    own = kandinsky_prior().pipeline.components
    pipeline = _quiet(
        diffusers.KandinskyV22CombinedPipeline(**kandinsky_decoder(), **{f"prior_{name}": part for name, part in own.items()})
    )
    steps = {"num_inference_steps": 2, "prior_num_inference_steps": 2, "height": 64, "width": 64}
    return Case(pipeline, "prior_text_encoder", "prior_prior", lambda a: a["proj_embedding"], _images(pipeline, **steps))


def sdxl() -> Case:
    time_ids = 6 * 8
    pipeline = _quiet(
        diffusers.StableDiffusionXLPipeline(
            vae=vae(),
            text_encoder=text_encoder(projected=False, seed=9),
            text_encoder_2=text_encoder(),
            tokenizer=tokenizer(),
            tokenizer_2=tokenizer(),
            unet=unet(
                addition_embed_type="text_time",
                addition_time_embed_dim=8,
                projection_class_embeddings_input_dim=WIDTH + time_ids,
                cross_attention_dim=2 * WIDTH,
                transformer_layers_per_block=(1, 1),
            ),
            scheduler=diffusers.EulerDiscreteScheduler(),
            add_watermarker=False,
        )
    )
    run = _images(pipeline, num_inference_steps=2, height=32, width=32)
    return Case(pipeline, "text_encoder_2", "unet", lambda a: a["added_cond_kwargs"]["text_embeds"], run)


def stable_diffusion_1() -> Any:
    return _quiet(
        diffusers.StableDiffusionPipeline(
            vae=vae(),
            text_encoder=text_encoder(projected=False),
            tokenizer=tokenizer(),
            unet=unet(),
            scheduler=diffusers.DDIMScheduler(steps_offset=1, clip_sample=False),
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
        )
    )


def _images(pipeline: Any, **settings: Any) -> Callable[..., torch.Tensor]:
    def run(prompt: str = "a dog and no cat", seed: int = 0, **more: Any) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.as_tensor(pipeline(prompt, generator=seeded(seed), output_type="np", **{**settings, **more}).images)

    return run


CASES: dict[str, Callable[[], Case]] = {
    "unclip": unclip,
    "stable-unclip": stable_unclip,
    "kandinsky-prior": kandinsky_prior,
    "kandinsky-combined": kandinsky_combined,
    "sdxl": sdxl,
}


def seen(case: Case, prompt: str = "a dog and no cat", **more: Any) -> SimpleNamespace:
    """Run, and give what came out and the pooled embeddings that the network was given, each step's ``[B, D]``."""
    inputs: list[torch.Tensor] = []
    network = getattr(case.pipeline, case.network)
    hook = network.register_forward_pre_hook(
        lambda _, args, kwargs: inputs.append(case.argument(kwargs).detach().clone()), with_kwargs=True
    )
    try:
        output = case.run(prompt, **more)
    finally:
        hook.remove()
    return SimpleNamespace(output=output, inputs=inputs)
