"""Other ways to keep a thing out of a picture, for the same table: each turns a prompt into what the generator draws from.

Both rivals are given the gold parse, which no user's prompt comes with: the most that their idea can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import Caption
from clipmend.evaluation.rivals.arithmetic import QueryArithmetic
from clipmend.evaluation.rivals.base import Form, gold_captions
from clipmend.generation.sampling import Condition, SceneGenerator

__all__ = ["METHODS", "conditions"]

METHODS = ("plain", "mended", "negative prompt", "query arithmetic", "denials left out")


def conditions(
    method: str,
    generator: SceneGenerator,
    plain: DualEncoder,
    prompts: Sequence[Caption],
    *,
    mended: DualEncoder | None = None,
    weight: float = 0.5,
) -> tuple[Condition, Condition | None]:
    """What to draw prompts from, and what to steer away from (``None``: from no condition).

    Args:
        method: ``"plain"``: the prompt's embedding. ``"mended"``: that of the mended encoder. ``"negative prompt"``: the embedding
            of what the prompt asserts, steered away from that of what it denies. ``"query arithmetic"``: the former minus
            ``weight`` times the latter. ``"denials left out"``: the embedding of what the prompt asserts, alone.
        generator: whose prior makes estimates of the embeddings.
        plain: the backbone.
        prompts: with ``asserts`` and ``denies``.
        mended: the backbone with a patch, for ``"mended"``.
        weight: of query arithmetic.

    Raises:
        ValueError: an unknown method, no mended encoder for ``"mended"``, or, for the other methods, some prompts with and some
            without denials.
    """
    texts = [prompt.text for prompt in prompts]
    if method == "plain":
        return generator.of_texts(plain.encode_texts(texts)), None
    if method == "mended":
        if mended is None:
            raise ValueError("the method 'mended' needs an encoder with a patch")
        return generator.of_texts(mended.encode_texts(texts)), None
    if method == "query arithmetic":
        return generator.of_texts(QueryArithmetic(plain, gold_captions(prompts), weight).encode_texts(texts)), None
    if method in ("negative prompt", "denials left out"):
        forms = [Form.of(prompt) for prompt in prompts]
        told = [form for form in forms if form is not None]
        if len(told) < len(forms):
            if told:
                raise ValueError("some prompts deny something and others do not: ask for each kind apart")
            return generator.of_texts(plain.encode_texts(texts)), None
        wanted = plain.encode_texts([form.positive for form in told])
        return generator.of_texts(wanted), generator.of_texts(_denied(plain, told)) if method == "negative prompt" else None
    raise ValueError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")


def _denied(plain: DualEncoder, forms: Sequence[Form]) -> Tensor:
    """One text for all that each form denies: "a photo of a cat and a photo of a dog"."""
    return plain.encode_texts([" and ".join(form.denied) for form in forms])
