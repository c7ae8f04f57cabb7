"""A patch on a live model of transformers, open_clip or sentence-transformers, for code that knows nothing of this library.

The model's own methods are replaced on that one object, not on its class, and run the library's own code on the model's weights
(see :mod:`clipmend.negation.attach_twin`); only the joint text embedding comes out corrected.
"""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.negation.attach_sites import Found, Site, find_site, host_of
from clipmend.negation.attach_twin import Override, Record, Watch, resolve, twin_of
from clipmend.negation.gate import has_negation
from clipmend.negation.mismatch import MismatchError, check_sizes, mismatch_of
from clipmend.negation.networks import EmbeddingCorrectionNetwork

if TYPE_CHECKING:
    from clipmend.negation.patch import PeakPatch

__all__ = ["Attachment", "attach", "attached", "attachment_of", "checked_site", "detach"]

Model = TypeVar("Model")


def attach(
    patch: PeakPatch,
    model: Model,
    *,
    strength: float = 1.0,
    gate: bool | None = None,
    tokenizer: Any = None,
    processor: Any = None,
    allow_mismatch: bool = False,
    make: type[Attachment] | None = None,
) -> Model:
    """See :meth:`PeakPatch.attach`; ``make`` is the kind of attachment, for pipelines, which have one of their own."""
    if _is_pipeline(model):
        from clipmend.generation.attach import attach_pipeline

        options: dict[str, Any] = {"gate": gate, "tokenizer": tokenizer, "allow_mismatch": allow_mismatch}
        return attach_pipeline(patch, model, strength=strength, **options)
    host = host_of(model)
    kind = type(host).__name__
    if attachment_of(model) is not None:
        raise ValueError(f"this {kind} carries a patch already; take it off with patch.detach(model)")
    if any(isinstance(value, Override) for part in host.modules() for value in vars(part).values()):
        raise ValueError(f"a part of this {kind} carries a patch already; take it off that part with patch.detach(part)")
    if not (math.isfinite(strength) and strength >= 0):
        raise ValueError(f"strength must be a number of at least 0, not {strength}")
    host, found = checked_site(patch, model, tokenizer=tokenizer, processor=processor, allow_mismatch=allow_mismatch, stacklevel=4)
    gated = patch.config.gate if gate is None else bool(gate)
    if gated and found.tokenizer is None:
        raise ValueError("the gate reads the texts, and the tokenizer of this model is not known; pass tokenizer=, or gate=False")
    attachment = (make or Attachment)(host, found.site, patch, float(strength), found.tokenizer if gated else None)
    for name in found.site.methods:
        vars(host)[name] = _Method(attachment, name)
    return model


def checked_site(
    patch: PeakPatch, model: Any, *, tokenizer: Any, processor: Any, allow_mismatch: bool, stacklevel: int = 3
) -> tuple[nn.Module, Found]:
    """Where ``patch`` goes on ``model``, after every check; arguments and errors as for :meth:`PeakPatch.attach`."""
    host = host_of(model)
    kind = type(host).__name__
    found = find_site(model, host, tokenizer, processor)
    check_sizes(patch, found.encoder)
    for name in found.site.methods:
        if name in vars(host):
            raise ValueError(
                f"{kind}.{name} was replaced by other code (such as an offloading or patching library); attach before it does that"
            )
    # What is not known of the model (its tokenizer, its image side) cannot differ.
    known = found.fingerprint if found.fingerprint.tokenizer else replace(found.fingerprint, tokenizer=patch.fingerprint.tokenizer)
    mismatch = mismatch_of(patch, found.encoder.name, known)
    if mismatch and not allow_mismatch:
        half = next(host.parameters()).dtype not in (torch.float32, torch.float64)
        hint = " A model in half precision has other weights than it had in float32: attach first, then cast it." if half else ""
        raise MismatchError(f"{mismatch}{hint} Fit a patch for this model, or pass allow_mismatch=True to try it regardless.")
    if mismatch:
        warnings.warn(mismatch, stacklevel=stacklevel)
    return host, found


def detach(model: Model) -> Model:
    """See :meth:`PeakPatch.detach`."""
    if (carrier := _carrier(model)) is not None:
        detach(carrier)
        return model
    attachment = attachment_of(model)
    if attachment is None:
        raise ValueError(f"this {type(model if _is_pipeline(model) else host_of(model)).__name__} carries no patch")
    host = host_of(model)
    for name in attachment.site.methods:
        del vars(host)[name]
    return model


@contextmanager
def attached(patch: PeakPatch, model: Model, **options: Any) -> Iterator[Model]:
    """See :meth:`PeakPatch.attached`."""
    attach(patch, model, **options)
    mine = attachment_of(model)
    try:
        yield model
    finally:
        if attachment_of(model) is mine:  # else it was taken off, or replaced, inside
            detach(model)


def attachment_of(model: Any) -> Attachment | None:
    """What a model, or a pipeline's text encoder, carries; ``None`` for nothing."""
    if _is_pipeline(model):
        carrier = _carrier(model)
        return None if carrier is None else attachment_of(carrier)
    methods = (value for value in vars(host_of(model)).values() if isinstance(value, _Method))
    return next((method.attachment for method in methods), None)


def _is_pipeline(model: Any) -> bool:
    """Whether ``model`` is a pipeline of diffusers, which need not be installed to ask."""
    return any(kind.__name__ == "DiffusionPipeline" and kind.__module__.startswith("diffusers.") for kind in type(model).__mro__)


def _carrier(model: Any) -> nn.Module | None:
    """The component of a pipeline that carries a patch."""
    if not _is_pipeline(model):
        return None
    from clipmend.generation.attach import carrier_of

    return carrier_of(model)


class Attachment:
    """A patch's embedding correction at its place in a model. Picklable, as far as the model is.

    Attributes:
        model: the model that carries it.
        site: where it is.
        strength: multiplies the learned alpha.
        peak, anchor: the layers that it reads.
        tokenizer: turns ids into text again for the gate; ``None`` without a gate.
    """

    def __init__(self, model: nn.Module, site: Site, patch: PeakPatch, strength: float, tokenizer: Any) -> None:
        assert patch.config.peak is not None
        assert patch.config.anchor is not None
        self.model, self.site, self.strength, self.tokenizer = model, site, strength, tokenizer
        self.peak, self.anchor = patch.config.peak, patch.config.anchor
        with torch.inference_mode(False):  # a model that learns could not use what was made in inference mode
            own = deepcopy(patch.ecn).to("cpu", torch.float32).eval().requires_grad_(False)
        self._networks: dict[torch.device, EmbeddingCorrectionNetwork] = {torch.device("cpu"): own}

    def __getstate__(self) -> dict[str, Any]:
        cpu = torch.device("cpu")
        return {**vars(self), "_networks": {cpu: self._networks[cpu]}}

    def __repr__(self) -> str:
        return f"Attachment({type(self.model).__name__}, peak={self.peak}, strength={self.strength:g})"

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's own method ``name``, with the text embedding corrected."""
        original = getattr(type(self.model), name)
        if self.strength == 0:
            return original(self.model, *args, **kwargs)
        if self.site.root is not None:
            _install_recorders(self.model, self.site, any(value for name, value in kwargs.items() if name.startswith("output_")))
        if self.site.kind == "head":
            return self._with_head(original, args, kwargs)
        if self.site.kind == "encode_text":
            return self._encode_text(original, args, kwargs)
        return self._sentence(original, args, kwargs)

    def _with_head(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """transformers: corrected behind the last module of the text side, wherever the method goes from there."""
        record, seen = Record(), []

        def correct(_: Any, embedding: Tensor) -> Tensor:
            seen.append(embedding.shape)
            return self.corrected(embedding, record)

        assert self.site.head is not None
        result = original(self._twin(record, {self.site.head: lambda module: Watch(module, correct)}), *args, **kwargs)
        if not seen:
            raise RuntimeError(
                f"{type(self.model).__name__} gave a text embedding without its {self.site.head}; it cannot be mended"
            )
        return result

    def _encode_text(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """open_clip: corrected before the embedding is normalised."""
        bound = inspect.signature(original).bind(self.model, *args, **kwargs).arguments
        _, ids, *_ = bound.values()
        unit = bool(bound.pop("normalize", False))
        record = Record()
        bound[next(iter(bound))] = self._twin(record, {})
        embedding = original(**bound, normalize=False)
        record.ids = ids
        embedding = self.corrected(embedding, record)
        return F.normalize(embedding, dim=-1) if unit else embedding

    def _sentence(self, original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """sentence-transformers: corrected after the last module, at the length that this one gave."""
        features: Mapping[str, Any] = args[0] if args else next(iter(kwargs.values()))
        record = Record()
        record.ids = features.get("input_ids")
        given = features.get("attention_mask")
        result = original(self._twin(record, {}), *args, **kwargs)
        result["sentence_embedding"] = self.corrected(result["sentence_embedding"], record, given)
        return result

    def _twin(self, record: Record, more: Mapping[str, Any]) -> nn.Module:
        """The model with the blocks that are read watched, for one call."""
        site, replaced = self.site, dict(more)

        def watched(layer: int) -> Any:
            def note(_: Any, output: Any) -> Any:
                record.states[layer] = output[0] if isinstance(output, tuple) else output
                return output

            return lambda block: Watch(block, note)

        def note_ids(ids: Any, output: Any) -> Any:
            record.ids = ids
            return output

        for layer in {self.peak, self.anchor}:
            replaced[f"{site.blocks}.{layer - 1}"] = watched(layer)
        if site.embedding is not None:
            replaced[site.embedding] = lambda module: Watch(module, note_ids)
        return twin_of(self.model, replaced)

    def corrected(self, embedding: Tensor, record: Record, given: Tensor | None = None) -> Tensor:
        """``[B, D]`` embeddings, of any length, to corrected ones of the same length and type.

        Args:
            embedding: what the model gave.
            record: the ids and states that it came from.
            given: the caller's attention mask ``[B, T]``.

        Raises:
            RuntimeError: states are missing, or not those of padded texts ``[B, T]``.
        """
        ids = record.ids
        missing = {self.peak, self.anchor} - record.states.keys()
        if ids is None or missing:
            what = f"blocks {sorted(missing)} gave no output" if missing else "no token ids were seen"
            raise RuntimeError(
                f"{type(self.model).__name__} ran, but {what}; is it offloaded, or are its parts replaced by other code? "
                "Detach the patch, or load the model plainly on one device"
            )
        with torch.autocast(embedding.device.type, enabled=False):
            states = {layer: self._batch_first(x) for layer, x in record.states.items()}
            if ids.ndim != 2 or states[self.peak].shape[:2] != ids.shape:
                raise RuntimeError(
                    f"the texts came as ids {list(ids.shape)} and states {list(states[self.peak].shape)}, no padded batch; "
                    "have them padded (sentence-transformers: model[0].unpad_inputs = False)"
                )
            ids = ids.to(embedding.device)
            valid = self.site.valid(ids, None if given is None else given.to(embedding.device))
            ecn = self._on(embedding.device)
            rows, place = torch.arange(ids.shape[0], device=embedding.device), self._sentence_place(valid)
            eos = self._normed(states[self.peak][rows, place])
            anchor = self._normed(states[self.anchor][rows, place]) if ecn.use_anchor else eos
            tokens = eos[:, None] if ecn.eos_only else self._normed(states[self.peak])
            alpha = self.strength * ecn.log_alpha.exp()
            plain = embedding.float()
            unit = ecn(plain, tokens, valid, eos, anchor, alpha=alpha)
            result = (unit * plain.norm(dim=-1, keepdim=True)).to(embedding.dtype)
            return result if self.tokenizer is None else torch.where(self._negated(ids, valid)[:, None], result, embedding)

    def _batch_first(self, states: Tensor) -> Tensor:
        return states if self.site.batch_first else states.transpose(0, 1)

    def _normed(self, states: Tensor) -> Tensor:
        """States through the model's final norm, or through one without parameters, in float32."""
        if self.site.norm is None:
            return F.layer_norm(states.float(), (self.site.width,))
        norm = resolve(self.model, self.site.norm)
        weight = next(norm.parameters(), None)
        return norm(states if weight is None else states.to(weight.dtype)).float()

    def _sentence_place(self, valid: Tensor) -> Tensor:
        """``[B]`` position of the token that stands for the sentence."""
        length = valid.shape[1]
        if self.site.pooling == "last":
            return torch.full((valid.shape[0],), length - 1, device=valid.device)
        if self.site.pooling == "eos":
            return length - 1 - valid.flip(1).int().argmax(1)
        return valid.int().argmax(1)

    def _on(self, device: torch.device) -> EmbeddingCorrectionNetwork:
        if device not in self._networks:  # two threads making one at once is harmless
            with torch.inference_mode(False):
                self._networks[device] = deepcopy(self._networks[torch.device("cpu")]).to(device)
        return self._networks[device]

    def _negated(self, ids: Tensor, valid: Tensor) -> Tensor:
        """``[B]``: whether the gate sees a negation in the text that these ids spell."""
        rows = [row[keep].tolist() for row, keep in zip(ids.cpu(), valid.cpu(), strict=True)]
        batch = getattr(self.tokenizer, "batch_decode", None)
        texts = [self.tokenizer.decode(row) for row in rows] if batch is None else batch(rows, skip_special_tokens=True)
        return torch.tensor([_negates(text) for text in texts], dtype=torch.bool, device=ids.device)


class _Method(Override):
    """In place of a method of one model."""

    def __init__(self, attachment: Attachment, name: str) -> None:
        self.attachment, self.name = attachment, name

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return getattr(type(self.attachment.model), self.name).__doc__

    @property
    def __signature__(self) -> inspect.Signature:
        """The method's own, which some callers read to see what they may pass."""
        signature = inspect.signature(getattr(type(self.attachment.model), self.name))
        return signature.replace(parameters=list(signature.parameters.values())[1:])

    def __repr__(self) -> str:
        return f"<mended {type(self.attachment.model).__name__}.{self.name}>"

    @torch.compiler.disable  # the twin is made anew at each call, which no graph can hold: torch.compile leaves the text side out
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.attachment.call(self.name, args, kwargs)


def _negates(text: str) -> bool:
    """The gate on a text put together from tokens, which may have lost or gained spaces round its marks."""
    return has_negation(text) or has_negation(re.sub(r"\s*([-/'’])\s*", r"\1", text))


def _install_recorders(model: nn.Module, site: Site, wanted: bool) -> None:
    """Have transformers put its recorders (``output_hidden_states``, ``output_attentions``) on the text model itself.

    It does that once a model, on first use, and notes on the model that it did. On a twin it would do so at every call, on the
    blocks that the twin shares with the model.

    Args:
        model: the model that carries the patch.
        site: where.
        wanted: whether the call asks for them; a config may ask too.
    """
    try:
        from transformers.utils.output_capturing import maybe_install_capturing_hooks
    except ImportError:  # a transformers that has none
        return
    assert site.root is not None
    text_model = resolve(model, site.root)
    within = site.blocks.removeprefix(site.root).lstrip(".").split(".")
    configs = [getattr(resolve(text_model, ".".join(within[:k])), "config", None) for k in range(len(within))]
    flags = ("output_hidden_states", "output_attentions")
    if wanted or any(getattr(config, flag, False) for config in configs for flag in flags):
        maybe_install_capturing_hooks(text_model)  # type: ignore[arg-type]
