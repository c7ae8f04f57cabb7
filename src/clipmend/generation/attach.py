"""A patch on a pipeline of diffusers that is conditioned on a pooled CLIP text embedding.

Such a pipeline holds a text encoder with a projection (transformers' ``CLIPTextModelWithProjection``) and gives its joint
embedding to a prior (unCLIP, Kandinsky 2.x, Stable Cascade) or to the denoiser itself (the pooled input of SDXL and Stable
Diffusion 3). The patch goes on that text encoder, as :mod:`clipmend.negation.attach` puts it on any other model; the rest of the
pipeline runs as it was. Token states, which some pipelines use besides or alone, are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clipmend.negation.attach import Attachment, attach, attachment_of, checked_site
from clipmend.negation.attach_twin import Override, Record, unwrapped
from clipmend.negation.mismatch import MismatchError

if TYPE_CHECKING:
    from clipmend.negation.patch import PeakPatch

__all__ = ["Place", "attach_pipeline", "carrier_of", "patch_place", "places"]

WORKS = (
    "pipelines that are conditioned on a pooled CLIP text embedding: UnCLIPPipeline, StableUnCLIPPipeline, "
    "KandinskyV22PriorPipeline and KandinskyV22CombinedPipeline, StableCascadePriorPipeline, and with their pooled input "
    "StableDiffusionXLPipeline and StableDiffusion3Pipeline, each with a patch fitted on its own CLIP"
)
_TOKENS_ALL_THE_SAME = ("VersatileDiffusion",)
"""Pipelines whose text encoder has a projection, of which they use no pooled embedding: they project every token."""


@dataclass(frozen=True)
class Place:
    """A text encoder of a pipeline whose pooled embedding the pipeline draws from.

    Args:
        component: its name in the pipeline.
        encoder: the model.
        tokenizer: its tokenizer, which is the pipeline's for it; ``None`` where there is none.
    """

    component: str
    encoder: nn.Module
    tokenizer: Any


def places(pipeline: Any) -> list[Place]:
    """Where a patch can go on ``pipeline``, in the pipeline's order.

    Raises:
        ValueError: nowhere; says why, and what would work.
    """
    name, components = type(pipeline).__name__, dict(pipeline.components)
    texts = {key: part for key, part in components.items() if isinstance(part, nn.Module) and "text_encoder" in key}
    found = [
        Place(key, part, components.get(key.replace("text_encoder", "tokenizer")))
        for key, part in texts.items()
        if getattr(unwrapped(part), "text_projection", None) is not None
    ]
    if found and not name.startswith(_TOKENS_ALL_THE_SAME):
        return found
    if not texts and "image_embeds" in _parameters(pipeline):
        raise ValueError(
            f"{name} draws from image embeddings and reads no text: attach to the prior that makes them from text "
            "(KandinskyV22PriorPipeline), or to the two in one (KandinskyV22CombinedPipeline)"
        )
    if not texts:
        raise ValueError(f"{name} has no text encoder, so there is no text embedding to mend. What works: {WORKS}")
    kinds = ", ".join(f"{key}: {type(unwrapped(part)).__name__}" for key, part in texts.items())
    raise ValueError(
        f"{name} draws from its text encoder's token states ({kinds}), and not from the joint embedding behind CLIP's text "
        f"projection, which is all that a patch mends: attached there, it would change no image. What works: {WORKS}. To keep this "
        "pipeline, name what is excluded in negative_prompt"
    )


def attach_pipeline(
    patch: PeakPatch,
    pipeline: Any,
    *,
    strength: float = 1.0,
    gate: bool | None = None,
    tokenizer: Any = None,
    allow_mismatch: bool = False,
) -> Any:
    """Put ``patch`` on the text encoder of ``pipeline`` that it was fitted on; arguments as for :meth:`PeakPatch.attach`.

    A text of no words, which stands for "no condition" in guidance, stays as it is.

    Returns:
        the pipeline itself.

    Raises:
        ValueError: see :func:`places`; one that carries a patch already; no text encoder that the patch fits.
    """
    candidates = places(pipeline)
    if carrier_of(pipeline) is not None:
        raise ValueError(f"this {type(pipeline).__name__} carries a patch already; take it off with patch.detach(pipeline)")
    place = candidates[0] if len(candidates) == 1 else patch_place(patch, pipeline, tokenizer, allow_mismatch)
    attach(
        patch,
        place.encoder,
        strength=strength,
        gate=gate,
        tokenizer=place.tokenizer if tokenizer is None else tokenizer,
        allow_mismatch=allow_mismatch,
        make=PromptAttachment,
    )
    return pipeline


def patch_place(patch: PeakPatch, pipeline: Any, tokenizer: Any = None, allow_mismatch: bool = False) -> Place:
    """Which of several text encoders a patch was fitted on; with ``allow_mismatch`` the first whose sizes fit, if none was.

    Raises:
        MismatchError: it fits none.
    """
    reasons: dict[str, str] = {}
    sized: Place | None = None
    for place in places(pipeline):
        own = place.tokenizer if tokenizer is None else tokenizer
        try:
            checked_site(patch, place.encoder, tokenizer=own, processor=None, allow_mismatch=False)
            return place
        except MismatchError as error:
            reasons[place.component] = str(error)
            if sized is None and allow_mismatch and _sizes_fit(patch, place, own):
                sized = place
    if sized is not None:
        return sized
    told = " ".join(f"{component}: {reason}" for component, reason in reasons.items())
    raise MismatchError(f"the patch fits none of the text encoders of {type(pipeline).__name__}. {told}")


def _sizes_fit(patch: PeakPatch, place: Place, tokenizer: Any) -> bool:
    from clipmend.negation.attach_sites import find_site, host_of
    from clipmend.negation.mismatch import check_sizes

    try:
        check_sizes(patch, find_site(place.encoder, host_of(place.encoder), tokenizer, None).encoder)
    except MismatchError:
        return False
    return True


def carrier_of(pipeline: Any) -> nn.Module | None:
    """The component that carries a patch; ``None`` where none does.

    Raises:
        ValueError: offloading was put over the patch, which has to come off before the patch can.
    """
    for part in pipeline.components.values():
        if not isinstance(part, nn.Module) or attachment_of(part) is None:
            continue
        if not isinstance(vars(unwrapped(part)).get("forward"), Override):
            raise ValueError(
                f"{type(part).__name__}.forward was replaced after the patch was attached, as offloading does: undo that first "
                "(pipeline.remove_all_hooks())"
            )
        return part
    return None


class PromptAttachment(Attachment):
    """An attachment that leaves texts of no words alone: guidance away from "" is guidance away from no condition at all."""

    def corrected(self, embedding: Tensor, record: Record, given: Tensor | None = None) -> Tensor:
        result = super().corrected(embedding, record, given)
        assert record.ids is not None  # or the method above would have raised
        words = self.site.valid(record.ids.to(embedding.device)).sum(-1) > 2  # more than start and end
        return torch.where(words[:, None], result, embedding)


def _parameters(pipeline: Any) -> set[str]:
    import inspect

    return set(inspect.signature(type(pipeline).__call__).parameters)
