"""open_clip's models: its own text transformers (CLIP, CustomTextCLIP) and Hugging Face text towers."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clipmend.backbones.fingerprint import digest_weights
from clipmend.backbones.hub import hub_problem, in_cache
from clipmend.backbones.open_clip_tokens import open_clip_tokens
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.strips import crop_of_transform
from clipmend.backbones.taps import find_blocks
from clipmend.backbones.text import TextAndImageEncoder
from clipmend.backbones.tokens import TextTokens
from clipmend.backbones.tower import Pooling, TextTower, find_final_norm, freeze
from clipmend.backbones.weights import SEPARATOR, load_weights

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["OpenClipEncoder", "load_open_clip", "wrap_open_clip"]

_CLIP_VOCABULARY = 49408
_HUB_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model")
_POOLINGS: dict[str, Pooling] = {"argmax": "eos", "eos": "eos", "last": "last", "first": "cls"}


class OpenClipEncoder(TextAndImageEncoder):
    """An open_clip model with its tokenizer and evaluation transform.

    Embeddings equal ``encode_text`` and ``encode_image``. The model is put in evaluation mode and its parameters take no gradient;
    nothing else about it changes.

    Args:
        model: a ``CLIP`` or ``CustomTextCLIP``.
        tokenizer: what ``open_clip.get_tokenizer`` returns.
        preprocess: from a PIL image to a ``[3, H, H]`` tensor.
        preprocessing: what identifies ``preprocess``, for the fingerprint.
        name: what the encoder calls itself.

    Raises:
        ValueError: the text tower is of a kind that cannot be used.
    """

    def __init__(self, model: Any, tokenizer: Any, preprocess: Any, *, preprocessing: Mapping[str, Any], name: str) -> None:
        freeze(model)
        super().__init__(_tower(model, tokenizer, name), name=name, logit_scale=float(model.logit_scale.detach().float().exp()))
        self.model = model
        self.preprocess = preprocess
        self.preprocessing = dict(preprocessing)

    def _encode_image_batch(self, images: list[Image]) -> Tensor:
        return self._embed_pixels(torch.stack([self.prepare_image(image) for image in images]))  # [B, 3, H, H]

    def prepare_image(self, image: Image) -> Tensor:
        """``[3, H, H]`` pixels of one RGB image, by the model's own transform."""
        crop = crop_of_transform(self.preprocess)
        return self.preprocess(image if crop is None else crop(image))

    def _embed_pixels(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels.to(self.device, next(self.model.visual.parameters()).dtype))

    def _image_digest(self) -> str:
        weights = {name: tensor for name, tensor in self.model.state_dict().items() if name.startswith("visual.")}
        facts = {"modules": _activations(self.model.visual), "preprocessing": self.preprocessing}
        return digest_weights(weights, facts)

    def move(self, device: torch.device, dtype: torch.dtype) -> OpenClipEncoder:
        """Move and cast the model in place; the fingerprint stays that of the weights before the cast."""
        if dtype != self.tower.dtype:
            _ = self.fingerprint
        self.model.to(device, dtype)
        self.device = device
        return self


class _OpenClipTower(TextTower):
    """open_clip's own text transformer: embeds ids itself, so that a batch may be shorter than the context."""

    def __init__(self, text: Any, tokens: TextTokens, **kwargs: Any) -> None:
        super().__init__(text.transformer, tokens, blocks="resblocks", **kwargs)
        self._text = text
        self._batch_first = bool(getattr(text.transformer, "batch_first", True))

    def _arguments(self, ids: Tensor, mask: Tensor) -> tuple[Any, ...]:
        text = self._text
        if getattr(text, "use_pad_mask", False):
            return text._embeds(ids)
        length = ids.shape[1]
        embedded = text.token_embedding(ids) + text.positional_embedding[:length]  # [B, T, W]
        causal = text.attn_mask
        return embedded.to(self.dtype), None if causal is None else causal[:length, :length]

    def _block_output(self, states: Tensor) -> Tensor:
        return states if self._batch_first else states.transpose(0, 1)


def load_open_clip(
    name: str, device: torch.device, dtype: torch.dtype, *, weights: str | os.PathLike[str] | None = None
) -> OpenClipEncoder:
    """Load ``"ARCH/TAG"``, ``"ARCH"`` (random weights), ``"hf-hub:ORG/NAME"`` or ``"local-dir:FOLDER"``.

    Args:
        name: what to load.
        device: where to put it.
        dtype: what to cast it to, after its fingerprint was taken.
        weights: take the weights from this file; of a tag only the preprocessing is used, and nothing is fetched.

    Raises:
        ImportError: open_clip is not installed.
        ValueError: open_clip knows no such architecture or tag, and lists what it knows; or ``weights`` do not fit.
        OSError: the weights cannot be fetched.
    """
    open_clip = _import()
    architecture, tag = name, None
    if weights is not None and name.startswith(("hf-hub:", "local-dir:")):
        raise ValueError(
            f"open_clip:{name} brings its own weights; with weights= give an architecture, such as 'open_clip:ViT-B-32'"
        )
    if not name.startswith(("hf-hub:", "local-dir:")):
        architecture, _, given = name.partition("/")
        tag = given or None
        if architecture not in open_clip.list_models():
            raise ValueError(f"open_clip has no architecture {architecture!r}; it has: {', '.join(open_clip.list_models())}")
        tags = open_clip.list_pretrained_tags_by_model(architecture)
        if tag is not None and tag not in tags:
            raise ValueError(f"open_clip has no weights {tag!r} for {architecture}; it has: {', '.join(tags) or 'none'}")
    fetched = tag if weights is None else None
    _check_hub(open_clip, name, architecture, fetched)
    try:
        with quiet_loading():
            model = open_clip.create_model(architecture, pretrained=fetched, precision="fp32", device="cpu")
            tokenizer = open_clip.get_tokenizer(architecture)
    except (OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise OSError(f"open_clip cannot load {name!r}: {reason}") from error
    preprocess, preprocessing = _default_preprocess(model, None if weights is None or tag is None else (architecture, tag))
    encoder_name = f"open_clip:{name}"
    if weights is not None:
        _load_file(open_clip, model, architecture, weights)
        encoder_name += f"{SEPARATOR}{os.fspath(weights)}"
    encoder = OpenClipEncoder(model, tokenizer, preprocess, preprocessing=preprocessing, name=encoder_name)
    return encoder.move(device, dtype)


def _load_file(open_clip: Any, model: Any, architecture: str, weights: str | os.PathLike[str]) -> None:
    """Put a file's weights into a model of open_clip's."""
    text = getattr(model, "text", model)
    kinds = {type(part).__name__ for part in text.modules()} & {"GELU", "QuickGELU"}
    quick = {"QuickGELU": True, "GELU": False}[kinds.pop()] if len(kinds) == 1 and type(text).__name__ != "HFTextEncoder" else None
    plain = architecture.removesuffix("-quickgelu")
    sibling = plain if quick else f"{plain}-quickgelu"
    remedy = f"load it as 'open_clip:{sibling}'" if sibling in open_clip.list_models() else None
    load_weights(model, weights, quick_gelu=quick, name=f"open_clip's {architecture}", remedy=remedy)


def wrap_open_clip(model: Any, *, tokenizer: Any = None, preprocess: Any = None, name: str | None = None) -> OpenClipEncoder:
    """Wrap a live open_clip model.

    Args:
        model: the model, used where it is.
        tokenizer: ``open_clip.get_tokenizer(ARCH)``; may be left out for models with CLIP's own vocabulary.
        preprocess: the evaluation transform; may be left out where the model carries its preprocessing (those made by open_clip's
            factory do).
        name: what the encoder calls itself (default: the class).

    Raises:
        ValueError: tokenizer or transform are needed, or the text tower cannot be used.
    """
    open_clip = _import()
    _check_kind(model, name or "the live model")
    if tokenizer is None:
        if getattr(model, "vocab_size", None) != _CLIP_VOCABULARY:
            raise ValueError(
                "the live open_clip model does not use CLIP's vocabulary; pass tokenizer=open_clip.get_tokenizer(ARCH)"
            )
        tokenizer = open_clip.SimpleTokenizer(context_length=model.context_length)
    if preprocess is None:
        preprocess, preprocessing = _default_preprocess(model)
    else:
        preprocessing = {"transform": re.sub(r" at 0x[0-9a-f]+", "", str(preprocess))}
    return OpenClipEncoder(
        model, tokenizer, preprocess, preprocessing=preprocessing, name=name or f"open_clip:{type(model).__name__}"
    )


def _import() -> Any:
    try:
        import open_clip
    except ImportError as error:
        raise ImportError(f"open_clip cannot be used ({error}); install it with: pip install 'clipmend[open-clip]'") from error
    return open_clip


def _check_hub(open_clip: Any, name: str, architecture: str, tag: str | None) -> None:
    """Fail at once, not after minutes of retries, where something must come from the hub and the hub is not there."""
    absent = [repository for repository, files in _hub_files(open_clip, architecture, tag) if not in_cache(repository, *files)]
    problem = hub_problem(absent[0]) if absent else ""
    if problem:
        raise OSError(f"open_clip cannot load {name!r}: {' and '.join(absent)} is not in the local cache, and {problem}")


def _hub_files(open_clip: Any, architecture: str, tag: str | None) -> list[tuple[str, tuple[str, ...]]]:
    """Repositories of the hub that a model is made from, each with files of which a cache that has it holds at least one."""
    if architecture.startswith("local-dir:"):
        return []
    if architecture.startswith("hf-hub:"):
        return [(architecture.removeprefix("hf-hub:").partition("@")[0], ("open_clip_config.json",))]
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if tag is not None:
        repository, _, file = str(open_clip.pretrained.get_pretrained_cfg(architecture, tag).get("hf_hub", "")).rpartition("/")
        weights = (file, f"{file.rpartition('.')[0]}.safetensors") if file else _HUB_WEIGHTS
        wanted.append((repository, weights))
    text = (open_clip.get_model_config(architecture) or {}).get("text_cfg", {})
    wanted.append((str(text.get("hf_model_name") or ""), ("config.json",)))
    wanted.append((str(text.get("hf_tokenizer_name") or ""), _TOKENIZER_FILES))
    return [(repository, files) for repository, files in wanted if repository]


def _default_preprocess(model: Any, tagged: tuple[str, str] | None = None) -> tuple[Any, dict[str, Any]]:
    """The transform that ``model`` carries; with ``tagged``, an architecture and a tag, that of the tag's weights."""
    from open_clip.transform import PreprocessCfg, image_transform_v2

    config = getattr(model.visual, "preprocess_cfg", None)
    if config is None:
        raise ValueError("the live open_clip model carries no preprocessing; pass preprocess= (the evaluation transform)")
    config = config if isinstance(config, PreprocessCfg) else PreprocessCfg(**config)
    if tagged is not None:
        from open_clip.pretrained import get_pretrained_cfg

        known = get_pretrained_cfg(*tagged)
        config = replace(config, **{key: known[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in known})
    facts = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(config).items()}
    return image_transform_v2(config, is_train=False), facts


def _check_kind(model: Any, name: str) -> None:
    kind = type(model).__name__
    if kind not in ("CLIP", "CustomTextCLIP"):
        raise ValueError(f"{name}: open_clip's {kind} is not supported; supported: CLIP and CustomTextCLIP")


def _tower(model: Any, tokenizer: Any, name: str) -> TextTower:
    _check_kind(model, name)
    text = getattr(model, "text", None)
    weights = _text_weights(model)
    if text is None:
        return _own_tower(model, tokenizer, str(getattr(model, "text_pool_type", "argmax")), "text_eos_id", weights)
    if type(text).__name__ == "HFTextEncoder":
        return _hugging_face_tower(text, tokenizer, weights, name)
    if getattr(text, "cls_emb", None) is not None:
        raise ValueError(f"{name}: its text tower appends a class token of its own (as CoCa does), which is not supported")
    return _own_tower(text, tokenizer, str(getattr(text, "pool_type", "argmax")), "eos_id", weights)


def _own_tower(text: Any, tokenizer: Any, pool: str, eos_attribute: str, weights: Mapping[str, Tensor]) -> TextTower:
    """Causal towers are padded to the batch's longest text, which is exact; others see their padding and keep the full length."""
    if pool not in _POOLINGS:
        raise ValueError(f"open_clip's text pooling {pool!r} is not supported; supported: {', '.join(_POOLINGS)}")
    eos = getattr(text, eos_attribute, None)

    def end(ids: list[int]) -> int:
        if pool == "argmax":
            return ids.index(max(ids)) + 1 if ids else 0
        if eos not in ids:
            raise ValueError(f"the tokenizer closed a text without the model's end token (id {eos}); they do not belong together")
        return ids.index(eos) + 1

    width = int(text.positional_embedding.shape[1])
    embed_dim, projection = _projection(text.text_projection, width)
    tokens = open_clip_tokens(tokenizer, int(text.context_length), end if _POOLINGS[pool] == "eos" else None)
    return _OpenClipTower(
        text,
        tokens,
        pooling=_POOLINGS[pool],
        width=width,
        embed_dim=embed_dim,
        final_norm=text.ln_final,
        projection=projection,
        # Pooling at the last position reads a padding position, so the padding must be there even under a causal mask.
        fixed_length=text.attn_mask is None or pool == "last",
        weights=lambda: weights,
        facts={"pool": pool, "causal": text.attn_mask is not None, "modules": _activations(text.transformer)},
    )


def _hugging_face_tower(text: Any, tokenizer: Any, weights: Mapping[str, Tensor], name: str) -> TextTower:
    pooler = type(text.pooler).__name__
    if pooler not in ("MeanPooler", "ClsPooler", "ClsLastHiddenStatePooler"):
        raise ValueError(f"{name}: open_clip's {pooler} is not supported; supported: mean and class-token pooling")
    inner, projection = text.transformer, text.proj
    own_pooler = getattr(inner, "pooler", None)
    if pooler == "ClsPooler" and text.pooler.use_pooler_output and own_pooler is not None:
        projection = nn.Sequential(own_pooler.dense, own_pooler.activation, projection)
    count = getattr(text.config, "num_hidden_layers", None)
    path = find_blocks(inner, count if isinstance(count, int) else None)
    width = int(text.config.hidden_size)
    limit = int(getattr(tokenizer, "context_length", None) or text.context_length)
    return TextTower(
        inner,
        open_clip_tokens(tokenizer, limit, None),
        blocks=path,
        pooling="mean" if pooler == "MeanPooler" else "cls",
        width=width,
        embed_dim=int(text.output_dim),
        final_norm=find_final_norm(inner, path),
        projection=projection,
        masked=True,
        weights=lambda: weights,
        facts={"pooler": pooler, "modules": _activations(inner)},
    )


def _projection(projection: Any, width: int) -> tuple[int, Any]:
    """Size of the joint space, and the map into it, of a projection that is a matrix ``[W, D]``, a linear layer or missing."""
    if projection is None:
        return width, None
    if isinstance(projection, nn.Linear):
        return projection.out_features, projection
    return int(projection.shape[1]), lambda pooled: pooled @ projection


def _text_weights(model: nn.Module) -> dict[str, Tensor]:
    """The text side's tensors; the same names whether the tower is built in or lies under ``text.``."""
    others = ("visual.", "logit_scale", "logit_bias")
    return {name.removeprefix("text."): tensor for name, tensor in model.state_dict().items() if not name.startswith(others)}


def _activations(module: nn.Module) -> list[str]:
    """What changes a result without being a weight: activations, the norms' epsilon, the number of heads."""
    chosen = set()
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            chosen.add(f"LayerNorm(eps={part.eps})")
        elif isinstance(part, nn.MultiheadAttention):
            chosen.add(f"MultiheadAttention(heads={part.num_heads})")
        elif "gelu" in type(part).__name__.lower() or isinstance(part, (nn.ReLU, nn.SiLU)):
            chosen.add(f"{type(part).__name__}({part.extra_repr()})")
    return sorted(chosen)
