"""transformers' CLIP, SigLIP and fixed-resolution SigLIP 2."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clipmend.backbones.checkpoint import read_model
from clipmend.backbones.companions import read_companion
from clipmend.backbones.fingerprint import digest_weights, named_weights
from clipmend.backbones.resizing import Resizing
from clipmend.backbones.strips import crop_of_processor
from clipmend.backbones.text import TextAndImageEncoder, TextOnlyEncoder
from clipmend.backbones.tokens import HFTokens
from clipmend.backbones.tower import TextTower, freeze
from clipmend.backbones.weights import SEPARATOR, load_weights

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["DUAL_TYPES", "NAFLEX_REASON", "TransformersEncoder", "clip_tower", "load_dual_encoder", "siglip_tower"]

DUAL_TYPES = ("clip", "siglip")
NAFLEX_REASON = (
    "it is a SigLIP 2 of flexible resolution (NaFlex): its image embedding depends on how many patches each image is cut into, so "
    "one index cannot be compared with another; use a fixed-resolution SigLIP 2, such as google/siglip2-base-patch16-224"
)
# What an image processor does to pixels; everything else in its config is bookkeeping that varies between versions.
_PREPROCESSING = (
    *("do_convert_rgb", "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_pad", "pad_size"),
    *("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std"),
)


class TransformersEncoder(TextAndImageEncoder):
    """A ``CLIPModel`` or ``SiglipModel`` with its tokenizer and image processor.

    Embeddings equal ``get_text_features(...).pooler_output`` and ``get_image_features(...).pooler_output``. The model is put in
    evaluation mode and its parameters take no gradient; nothing else about it changes.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        image_processor: its image processor.
        name: what the encoder calls itself.
    """

    def __init__(self, model: Any, tokenizer: Any, image_processor: Any, *, name: str) -> None:
        freeze(model)
        kind = model.config.model_type
        if kind == "siglip2":
            raise ValueError(f"{name} cannot be used: {NAFLEX_REASON}")
        if kind == "siglip":
            tower = siglip_tower(model.text_model, tokenizer)
        elif kind == "clip":
            tower = clip_tower(model.text_model, model.text_projection, tokenizer)
        else:
            raise ValueError(f"{name} is of type {kind!r}, not one of {', '.join(DUAL_TYPES)}")
        super().__init__(tower, name=name, logit_scale=float(model.logit_scale.detach().float().exp()))
        self.model = model
        self.image_processor = image_processor
        self._resizing = Resizing(image_processor)

    def _encode_image_batch(self, images: list[Image]) -> Tensor:
        ready = [self._resized(image) for image in images]
        return self._embed_pixels(self.image_processor(images=ready, return_tensors="pt")["pixel_values"])  # [B, 3, H, H]

    def prepare_image(self, image: Image) -> Tensor:
        """``[3, H, H]`` pixels of one RGB image, by the checkpoint's own processor."""
        prepared = self.image_processor(images=[self._resized(image)], return_tensors="pt")
        return prepared["pixel_values"][0]

    def _resized(self, image: Image) -> Image:
        """What the processor has little left to do of: strips cropped, others resized, to the pixels that it would make itself."""
        crop = crop_of_processor(self.image_processor)
        if self._resizing.processor is not self.image_processor:  # it was replaced
            self._resizing = Resizing(self.image_processor)
        return self._resizing(image if crop is None else crop(image))

    def _embed_pixels(self, pixels: Tensor) -> Tensor:
        features = self.model.get_image_features(pixel_values=pixels.to(self.device, self.tower.dtype))
        return features if isinstance(features, Tensor) else features.pooler_output

    def _image_digest(self) -> str:
        weights = named_weights(self.model.vision_model, "vision_model")
        projection = getattr(self.model, "visual_projection", None)
        if projection is not None:
            weights |= named_weights(projection, "visual_projection")
        facts = {**_config_facts(self.model.config.vision_config), "preprocessing": _preprocessing(self.image_processor)}
        return digest_weights(weights, facts)

    def move(self, device: torch.device, dtype: torch.dtype) -> TransformersEncoder:
        """Move and cast the model in place; the fingerprint stays that of the weights before the cast."""
        if dtype != self.tower.dtype:
            _ = self.fingerprint
        self.model.to(device, dtype)
        self.device = device
        return self


def load_dual_encoder(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    local_files_only: bool = False,
    weights: str | os.PathLike[str] | None = None,
) -> TransformersEncoder:
    """Load a CLIP or SigLIP from a folder or hub id.

    Args:
        name: folder or hub id.
        device: where to put it.
        dtype: what to cast it to, after its fingerprint was taken.
        tokenizer: use this instead of the checkpoint's own.
        processor: use this processor or image processor instead of the checkpoint's own.
        local_files_only: take a hub id from the local cache, without asking the hub.
        weights: take the weights from this file; of the folder or repository only the rest is read.

    Raises:
        OSError: files are missing or the hub cannot be reached.
        ValueError: ``weights`` do not fit the config.
        ImportError: the tokenizer needs a package that is not installed.
    """
    from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer

    given_tokenizer, image_processor = split_processor(processor)
    tokenizer = tokenizer if tokenizer is not None else given_tokenizer
    if tokenizer is None:
        try:
            tokenizer = read_companion(AutoTokenizer, name, "tokenizer", local_files_only=local_files_only)
        except ImportError as error:
            raise ImportError(
                f"the tokenizer of {name} needs sentencepiece and protobuf; install them with: pip install 'clipmend[siglip]'"
            ) from error
    if image_processor is None:
        image_processor = read_companion(AutoImageProcessor, name, "image processor", local_files_only=local_files_only)
    if weights is None:
        model = read_model(AutoModel, name, local_files_only=local_files_only)
    else:
        model = _from_file(AutoModel, AutoConfig.from_pretrained(name, local_files_only=local_files_only), weights, name)
        name = f"{name}{SEPARATOR}{os.fspath(weights)}"
    return TransformersEncoder(model, tokenizer, image_processor, name=name).move(device, dtype)


def _from_file(auto: Any, config: Any, weights: str | os.PathLike[str], name: str) -> Any:
    """A model of ``config`` with the weights of a file, in float32."""
    acts = {str(getattr(side, "hidden_act", "")) for side in (config.text_config, config.vision_config)}
    quick = {"quick_gelu": True, "gelu": False}.get(acts.pop()) if len(acts) == 1 else None
    other = "gelu" if quick else "quick_gelu"
    model = auto.from_config(config, dtype=torch.float32)
    load_weights(
        model,
        weights,
        quick_gelu=quick if config.model_type == "clip" else None,
        name=name,
        remedy=f'load it over a model whose config.json says "hidden_act": "{other}" in both text_config and vision_config',
    )
    return model


def split_processor(processor: Any) -> tuple[Any, Any]:
    """``(tokenizer, image processor)`` of what a user gave as ``processor=``; either may be ``None``."""
    if processor is None:
        return None, None
    if hasattr(processor, "image_processor") or hasattr(processor, "tokenizer"):
        return getattr(processor, "tokenizer", None), getattr(processor, "image_processor", None)
    return None, processor


def text_only_clip(model: Any, tokenizer: Any, name: str) -> TextOnlyEncoder:
    """``CLIPTextModel``, ``CLIPTextModelWithProjection`` or ``SiglipTextModel`` as a text-only encoder."""
    freeze(model)
    inner = getattr(model, "text_model", model)
    if "siglip" in model.config.model_type:
        return TextOnlyEncoder(siglip_tower(inner, tokenizer), name=name)
    return TextOnlyEncoder(clip_tower(inner, getattr(model, "text_projection", None), tokenizer), name=name)


def clip_tower(text_model: Any, projection: nn.Linear | None, tokenizer: Any) -> TextTower:
    """CLIP's text half: causal, pooled at EOS, projected.

    States are valid up to and including the first EOS; padding is trimmed, which is exact under causal attention. The pooled
    position follows transformers: a config with the historic ``eos_token_id`` 2 pools at the highest id, any other at the first
    EOS.
    """
    config = text_model.config
    legacy, eos = config.eos_token_id == 2, config.eos_token_id

    def end(ids: list[int]) -> int:
        if legacy:
            return ids.index(max(ids)) + 1 if ids else 0
        if eos not in ids:
            raise ValueError(
                f"the tokenizer closed a text without the model's EOS token (id {eos}): tokenizer and checkpoint do not belong "
                "together"
            )
        return ids.index(eos) + 1

    def weights() -> Mapping[str, Tensor]:
        named = named_weights(text_model, "text_model")
        return named | named_weights(projection, "text_projection") if projection is not None else named

    return TextTower(
        text_model,
        HFTokens(tokenizer, config.max_position_embeddings, end=end),
        blocks="encoder.layers",
        pooling="eos",
        width=config.hidden_size,
        embed_dim=projection.out_features if projection is not None else config.hidden_size,
        final_norm=text_model.final_layer_norm,
        projection=projection,
        weights=weights,
        facts=_config_facts(config),
    )


def siglip_tower(text_model: Any, tokenizer: Any) -> TextTower:
    """SigLIP's text half: bidirectional over a fixed number of positions, padding included, pooled at the last position.

    No attention mask is given, as in training, even where a tokenizer would make one. The token mask of the states leaves padding
    out; a text without any token (possible with SigLIP 2's tokenizer) keeps its first pad. Both generations were trained on
    lower-cased text: where the tokenizer does not lower-case, the text is lower-cased first.
    """
    config = text_model.config
    if tokenizer.pad_token_id is None:
        raise ValueError(
            "the tokenizer has no padding token, but SigLIP pads every text to a fixed length; set tokenizer.pad_token"
        )
    lower = _lowering(tokenizer)
    return TextTower(
        text_model,
        HFTokens(tokenizer, config.max_position_embeddings, prepare=lower, prepare_name="lower" if lower else ""),
        blocks="encoder.layers",
        pooling="last",
        width=config.hidden_size,
        embed_dim=text_model.head.out_features,
        final_norm=text_model.final_layer_norm,
        projection=text_model.head,
        fixed_length=True,
        pad_left=tokenizer.padding_side == "left",
        weights=lambda: named_weights(text_model, "text_model"),
        facts=_config_facts(config),
    )


def _lowering(tokenizer: Any) -> Callable[[str], str] | None:
    upper, lower = (tokenizer(text, verbose=False)["input_ids"] for text in ("A Cat And The DOG", "a cat and the dog"))
    return None if upper == lower else str.lower


def _config_facts(config: Any) -> dict[str, Any]:
    return {key: getattr(config, key, None) for key in ("hidden_act", "layer_norm_eps", "num_attention_heads")}


def _preprocessing(image_processor: Any) -> dict[str, Any]:
    facts = image_processor.to_dict() if hasattr(image_processor, "to_dict") else dict(vars(image_processor))
    chosen = {key: facts.get(key) for key in _PREPROCESSING if facts.get(key) is not None}
    return json.loads(json.dumps(chosen, default=lambda value: dict(value) if isinstance(value, Mapping) else str(value)))
