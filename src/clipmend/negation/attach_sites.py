"""Where in a live model of another library the text embedding comes out, and what is to be read there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clipmend.backbones.base import DualEncoder, Fingerprint
from clipmend.backbones.companions import read_companion
from clipmend.backbones.kinds import kind_of
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.text import TextOnlyEncoder
from clipmend.backbones.tower import Pooling, TextTower
from clipmend.negation.attach_twin import resolve, twin_of, unwrapped

__all__ = ["Found", "Site", "ValidTokens", "find_site", "host_of"]


@dataclass(frozen=True)
class ValidTokens:
    """Which tokens of a padded batch count.

    Args:
        rule: ``"highest"``: up to the highest id, which is EOS (the original CLIP); ``"first"``: up to the first ``token``;
            ``"pads"``: all but the padding ``token`` at one end; ``"unlike"``: every id but ``token``; ``"given"``: what the
            attention mask says, all where there is none.
        token: id of EOS or of the padding.
        closes: every text ends in the id that is also its padding, and that one counts.
        left: padding goes before the text.
    """

    rule: Literal["highest", "first", "pads", "unlike", "given"]
    token: int = 0
    closes: bool = False
    left: bool = False

    def __call__(self, ids: Tensor, given: Tensor | None = None) -> Tensor:
        """``[B, T]`` ids, and the caller's attention mask, to ``[B, T]`` bool."""
        if self.rule == "given":
            return torch.ones_like(ids, dtype=torch.bool) if given is None else given.bool()
        if self.rule == "unlike":
            return ids != self.token
        place = torch.arange(ids.shape[1], device=ids.device)
        if self.rule != "pads":
            end = (ids if self.rule == "highest" else (ids == self.token).int()).argmax(-1, keepdim=True)
            return place <= end
        count = (ids.shape[1] - place) if self.left else place + 1
        run = ids.shape[1] - ((ids != self.token) * count).amax(1, keepdim=True)  # length of the padding
        if self.closes and not self.left:
            run = (run - 1).clamp_min(0)
        run = run.clamp_max(ids.shape[1] - 1)  # a text of nothing keeps one token, as in the tower
        return place >= run if self.left else place < ids.shape[1] - run


@dataclass(frozen=True)
class Site:
    """How a model is attached to; dotted paths lead from the model that carries the patch.

    Args:
        kind: what a method's result needs: ``"head"``: nothing, since the correction happens behind the module ``head``, whose
            output is the joint embedding; ``"encode_text"``: open_clip's ``(text, normalize)``; ``"sentence"``: the features of
            sentence-transformers.
        methods: the methods that are replaced.
        blocks: the list of blocks.
        norm: the norm after them; ``None``: a parameter-free one.
        width: width of the states.
        pooling: what stands for the sentence.
        valid: which tokens count.
        embedding: the token embedding, for ``"head"``.
        head: the last module of the text side, for ``"head"``.
        root: transformers' text model; ``None`` where it is none of transformers'.
        batch_first: the blocks give ``[B, T, W]``, not ``[T, B, W]``.
    """

    kind: Literal["head", "encode_text", "sentence"]
    methods: tuple[str, ...]
    blocks: str
    norm: str | None
    width: int
    pooling: Pooling
    valid: ValidTokens
    embedding: str | None = None
    head: str | None = None
    root: str | None = None
    batch_first: bool = True


@dataclass(frozen=True)
class Found:
    """A site, what the model is by our own measure, and what turns ids into text again.

    Args:
        site: the site.
        encoder: the model as an encoder: sizes and name.
        fingerprint: its digests; ``""`` for what is not known.
        tokenizer: its tokenizer, or ``None``.
    """

    site: Site
    encoder: DualEncoder
    fingerprint: Fingerprint
    tokenizer: Any


def host_of(model: Any) -> nn.Module:
    """The module whose methods are replaced: the model, or inside ``torch.compile``'s wrapper or a CLIP of sentence-transformers.

    Raises:
        TypeError: no module, or an encoder of this library.
    """
    if isinstance(model, DualEncoder):
        raise TypeError(
            "attach needs a live model of transformers, open_clip or sentence-transformers; for an encoder: patch.apply"
        )
    if not isinstance(model, nn.Module):
        raise TypeError(f"cannot attach to {kind_of(model)}; give a model of transformers, open_clip or sentence-transformers")
    model = unwrapped(model)
    if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        raise TypeError(f"attach to the model inside: {type(model).__name__}.module")
    if _home(model) == "sentence_transformers":
        inner = _inner(model)
        if inner is not None and hasattr(inner, "get_text_features"):
            return inner
    return model


def find_site(model: Any, host: nn.Module, tokenizer: Any, processor: Any) -> Found:
    """How to attach to ``host``, found in ``model`` by :func:`host_of`.

    Args:
        model: as the user gave it.
        host: the module that will carry the patch.
        tokenizer: the user's, or ``None``.
        processor: the user's processor or image processor, for open_clip its evaluation transform; or ``None``.

    Raises:
        ValueError: a model that cannot be attached to, or whose tokenizer is needed and not found.
    """
    model = unwrapped(model)
    with _as_it_was(model), quiet_loading():
        if _home(host) == "open_clip":
            return _open_clip(host, tokenizer, processor)
        if host is not model:
            _check_sentence_clip(model)
            own = resolve(model, "0")
            tokenizer = tokenizer if tokenizer is not None else getattr(own, "tokenizer", None)
            return _transformers(host, tokenizer, processor if processor is not None else getattr(own, "processor", None))
        if _home(host) == "sentence_transformers":
            return _sentence(host)
        if _home(host) == "transformers" or hasattr(getattr(host, "config", None), "model_type"):
            return _transformers(host, tokenizer, processor)
    raise ValueError(f"{type(host).__name__} is a model of neither transformers, open_clip nor sentence-transformers")


def _home(model: nn.Module) -> str:
    """The library that a model's class, or one that it derives from, belongs to."""
    homes = [kind.__module__.partition(".")[0] for kind in type(model).__mro__]
    return next((home for home in homes if home in ("open_clip", "sentence_transformers", "transformers")), "")


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Wrapping a model freezes it; a model that is only looked at keeps its modes and which of its weights learn."""
    modes = [(module, module.training) for module in model.modules()]
    learns = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
        for parameter, flag in learns:
            parameter.requires_grad_(flag)


# ---- transformers -------------------------------------------------------------------------------------------------------------


def _transformers(model: Any, tokenizer: Any, processor: Any) -> Found:
    from clipmend.backbones import transformers_clip as clip

    compiled = [name for name, part in model.named_children() if unwrapped(part) is not part]
    model = twin_of(model, dict.fromkeys(compiled, unwrapped))  # a compiled part's weights go by other names
    given, images = clip.split_processor(processor)
    kind = str(getattr(model.config, "model_type", ""))
    dual = kind in clip.DUAL_TYPES and hasattr(model, "get_text_features")
    text_model = model.text_model if dual else getattr(model, "text_model", model)
    name = str(getattr(model, "name_or_path", "") or "") or type(model).__name__
    tokenizer = _companion("AutoTokenizer", model, tokenizer if tokenizer is not None else given)
    if kind in ("clip", "clip_text_model") and hasattr(model, "text_projection"):
        projection, prefix, head = model.text_projection, "text_model.", "text_projection"
        # Without a tokenizer there is nothing to compare it with; the ids come from the caller anyway.
        tower = clip.clip_tower(text_model, projection, tokenizer if tokenizer is not None else SimpleNamespace(pad_token_id=0))
        eos = text_model.config.eos_token_id
        valid = ValidTokens("highest") if eos == 2 else ValidTokens("first", eos)
    elif kind in ("siglip", "siglip_text_model"):
        if tokenizer is None:
            raise ValueError(
                f"which of SigLIP's tokens are padding depends on the tokenizer, and {name} has none beside it; pass tokenizer="
            )
        prefix = "text_model." if text_model is not model else ""
        head = f"{prefix}head"
        tower = clip.siglip_tower(text_model, tokenizer)
        valid = _pads(tower)
    else:
        raise ValueError(
            f"{type(model).__name__} gives no text embedding that could be mended; give a CLIPModel, CLIPTextModelWithProjection, "
            "SiglipModel or SiglipTextModel, or the SentenceTransformer around a text encoder"
        )
    images = _companion("AutoImageProcessor", model, images) if dual else None
    if dual and images is not None and tokenizer is not None:
        encoder: DualEncoder = clip.TransformersEncoder(model, tokenizer, images, name=name)
    else:
        encoder = TextOnlyEncoder(tower, name=name)
    site = Site(
        kind="head",
        methods=("get_text_features", "forward") if dual else ("forward",),
        blocks=f"{prefix}encoder.layers",
        norm=f"{prefix}final_layer_norm",
        width=tower.width,
        pooling=tower.pooling,
        valid=valid,
        embedding=f"{prefix}embeddings.token_embedding",
        head=head,
        root=prefix.rstrip("."),
    )
    if tokenizer is None:
        return Found(site, encoder, Fingerprint(text=tower.digest(), image="", tokenizer=""), None)
    return Found(site, encoder, encoder.fingerprint, tokenizer)


def _companion(auto: str, model: Any, given: Any) -> Any:
    """The tokenizer or image processor beside a live model, from disk only: attaching never waits for a network."""
    source = str(getattr(model, "name_or_path", "") or "")
    if given is not None or not source:
        return given
    import transformers

    try:
        what = "tokenizer" if auto == "AutoTokenizer" else "image processor"
        return read_companion(getattr(transformers, auto), source, what, local_files_only=True)
    except (OSError, ValueError, ImportError):
        return None


def _pads(tower: TextTower) -> ValidTokens:
    pad = tower.tokens.pad_id
    return ValidTokens("pads", pad, closes=tower.tokenise(["a"]).ids[0][-1] == pad, left=tower.pad_left)


# ---- open_clip ----------------------------------------------------------------------------------------------------------------


def _open_clip(model: Any, tokenizer: Any, preprocess: Any) -> Found:
    from clipmend.backbones.open_clip import wrap_open_clip

    if preprocess is None and getattr(getattr(model, "visual", None), "preprocess_cfg", None) is None:
        # Its preprocessing is not known, and with it not the image side's digest.
        encoder = wrap_open_clip(model, tokenizer=tokenizer, preprocess=lambda image: image)
        known = replace(encoder.fingerprint, image="")
    else:
        encoder = wrap_open_clip(model, tokenizer=tokenizer, preprocess=preprocess)
        known = encoder.fingerprint
    tower = encoder.tower
    text, prefix = (model.text, "text.") if getattr(model, "text", None) is not None else (model, "")
    own = encoder.tower.tokens.tokenizer  # type: ignore[attr-defined]
    root = f"{prefix}transformer" if type(text).__name__ == "HFTextEncoder" else None
    if root is not None:
        blocks, norm, valid = _hugging_face(text, tower)
        batch_first = True
    else:
        blocks, norm, batch_first = "transformer.resblocks", "ln_final", bool(getattr(text.transformer, "batch_first", True))
        pool = getattr(text, "text_pool_type", None) or getattr(text, "pool_type", "argmax")
        if pool == "argmax":
            valid = ValidTokens("highest")
        elif pool == "eos":
            eos = getattr(text, "text_eos_id", None)
            valid = ValidTokens("first", eos if eos is not None else text.eos_id)
        else:
            valid = _pads(tower)
    site = Site(
        kind="encode_text",
        methods=("encode_text",),
        blocks=prefix + blocks,
        norm=None if norm is None else prefix + norm,
        width=tower.width,
        pooling=tower.pooling,
        valid=valid,
        root=root,
        batch_first=batch_first,
    )
    return Found(site, encoder, known, own)


def _hugging_face(text: Any, tower: TextTower) -> tuple[str, str | None, ValidTokens]:
    path = tower._tapped.path
    norm = _norm_path(text.transformer, path, tower)
    return f"transformer.{path}", None if norm is None else f"transformer.{norm}", ValidTokens("unlike", text.config.pad_token_id)


def _norm_path(inner: nn.Module, blocks: str, tower: TextTower) -> str | None:
    """Where the tower's final norm lies in ``inner``."""
    if tower.final_norm is None:
        return None
    parent = blocks.rpartition(".")[0]
    for name, module in resolve(inner, parent).named_children():
        if module is tower.final_norm:
            return f"{parent}.{name}" if parent else name
    raise ValueError(f"the norm after {type(inner).__name__}'s blocks is not beside them")


# ---- sentence-transformers ------------------------------------------------------------------------------------------------------


def _inner(model: nn.Module) -> Any:
    """The transformers model in the first module of a ``SentenceTransformer``."""
    path = _inner_path(model)
    return None if path is None else resolve(model, path)


def _inner_path(model: nn.Module) -> str | None:
    """Where that model lies."""
    first = model._modules.get("0")
    held = {} if first is None else unwrapped(first)._modules
    return next((f"0.{name}" for name in ("model", "auto_model") if held.get(name) is not None), None)


def _check_sentence_clip(model: nn.Module) -> None:
    others = [type(module).__name__ for module in list(model.children())[1:]]
    if set(others) - {"Normalize"}:
        raise ValueError(
            f"after its image-text model this {type(model).__name__} has {', '.join(others)}; only Normalize is supported"
        )


def _sentence(model: Any) -> Found:
    from clipmend.backbones.sentence import wrap_sentence_transformer

    place = _inner_path(model)
    if place is not None:
        model = twin_of(model, {place: unwrapped})  # a compiled part's weights go by other names
    encoder = wrap_sentence_transformer(model)  # refuses a model without
    tower, inner, prefix = encoder.tower, _inner(model), f"{place}."
    path = tower._tapped.path
    norm = _norm_path(inner, path, tower)
    site = Site(
        kind="sentence",
        methods=("forward",),
        blocks=prefix + path,
        norm=None if norm is None else prefix + norm,
        width=tower.width,
        pooling=tower.pooling,
        valid=ValidTokens("given"),
        root=prefix.rstrip("."),
    )
    return Found(site, encoder, encoder.fingerprint, model.tokenizer)
