"""A large contrastive batch in small memory: embed twice, contrast once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from clipmend.losses.contrastive import ContrastiveLoss
from clipmend.losses.gathering import gather_counts, world_of

__all__ = ["CachedStep", "cached_backward"]

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True)
class CachedStep:
    """What a step came to.

    Args:
        loss: of the whole batch, detached.
        pairs: rows of this process's batch.
        negatives_per_query: how many other pairs each was contrasted with, of all processes where the loss gathers.
    """

    loss: Tensor
    pairs: int
    negatives_per_query: int


def cached_backward(
    model: nn.Module,
    encode: Callable[[MicroBatch], Sequence[Tensor]],
    micro_batches: Sequence[MicroBatch],
    loss: Callable[..., Tensor],
    *,
    scale_loss: Callable[[Tensor], Tensor] = lambda value: value,
    gathers: ContrastiveLoss | None = None,
) -> CachedStep:
    """Gradients of one contrastive loss over several micro-batches together, in the memory of one.

    Plain gradient accumulation of 8 micro-batches of 16 contrasts each pair with 15 others; this contrasts it with all 127. First
    every micro-batch is embedded without gradient; then the loss of all embeddings, and its gradient at each of them; then every
    micro-batch is embedded again, with the same random numbers (dropout), and given its share of that gradient. The parameters'
    gradients are those of one big batch, for one more forward pass. What looks at a whole batch (batch norm) sees micro-batches.

    Source: GradCache (Gao et al., RepL4NLP 2021, arXiv 2101.06983).

    Under DistributedDataParallel pass the wrapped model: gradients are exchanged once, with the last micro-batch. ``encode`` must
    then go through the wrapped model, and give every parameter it uses, the logit scale too, through what it returns.

    Args:
        model: for ``no_sync`` and the devices of its random numbers.
        encode: a micro-batch to embeddings ``[b, ...]`` and scalars that micro-batches share, such as
            ``(image_features, text_features, logit_scale)``.
        micro_batches: any sizes.
        loss: called with what ``encode`` returns, embeddings joined. Give ids by binding them (``functools.partial``).
        scale_loss: what is done to the loss before its gradient, such as a gradient scaler's ``scale``.
        gathers: the loss object that gathers from other processes, where ``loss`` wraps it: only counted with.

    Returns:
        the loss and what was contrasted; gradients are added to the parameters' ``grad``.

    Raises:
        ValueError: no micro-batch, or ``encode`` returns different things for different micro-batches.

    Example::

        step = cached_backward(model, lambda b: model(b["image"], b["text"]), micro_batches, HardNegativeLoss())
        optimizer.step()
    """
    if not micro_batches:
        raise ValueError("no micro-batch")
    states, outputs = [], []
    with torch.no_grad():
        for batch in micro_batches:
            states.append(_RandomState(model))
            outputs.append([output.detach() for output in encode(batch)])
    # Weights that autocast cast without gradient would be used again, and the second pass have none.
    torch.clear_autocast_cache()
    shapes = {tuple(output.ndim == 0 for output in found) for found in outputs}
    if len(shapes) != 1:
        raise ValueError("encode must return the same kinds of tensors for every micro-batch")
    # Scalars are shared: one leaf each, whose gradient goes back through the last micro-batch alone.
    leaves = [
        (parts[0] if parts[0].ndim == 0 else torch.cat(parts)).requires_grad_() for parts in map(list, zip(*outputs, strict=True))
    ]
    with torch.enable_grad():
        value = loss(*leaves)
        found_slopes = torch.autograd.grad(scale_loss(value), leaves, allow_unused=True)
    # What the loss does not use goes back as zeros: DistributedDataParallel waits for every parameter behind an output.
    slopes = [torch.zeros_like(leaf) if slope is None else slope for leaf, slope in zip(leaves, found_slopes, strict=True)]
    begin, last = 0, len(micro_batches) - 1
    for place, (batch, state, found) in enumerate(zip(micro_batches, states, outputs, strict=True)):
        rows = max((len(output) for output in found if output.ndim), default=0)
        with _unsynchronised(model, place < last), state.restored():
            again = encode(batch)
            total = torch.zeros((), device=value.device)
            for output, slope in zip(again, slopes, strict=True):
                if not output.requires_grad:
                    continue
                if output.ndim:
                    total = total + (output * slope[begin : begin + rows].to(output.dtype)).sum()
                elif place == last:
                    total = total + output * slope.to(output.dtype)
            if total.requires_grad:
                total.backward()
        begin += rows
    counted = gathers if gathers is not None else loss
    everyone = begin
    if isinstance(counted, ContrastiveLoss) and counted.gather and world_of(counted.group)[1] > 1:
        everyone = sum(gather_counts(begin, value.device, counted.group))
    return CachedStep(value.detach(), begin, everyone - 1)


class _RandomState:
    """The random number generators that a model's forward pass draws from, as they were."""

    def __init__(self, model: nn.Module) -> None:
        self.cpu = torch.get_rng_state()
        devices = {parameter.device for parameter in model.parameters()}
        self.devices = sorted(d.index for d in devices if d.type == "cuda" and d.index is not None)
        self.cuda = [torch.cuda.get_rng_state(device) for device in self.devices]

    def set(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in zip(self.devices, self.cuda, strict=True):
            torch.cuda.set_rng_state(state, device)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw inside what was drawn from this state before."""
        with torch.random.fork_rng(devices=self.devices):
            self.set()
            yield


@contextmanager
def _unsynchronised(model: Any, yes: bool) -> Iterator[None]:
    with ExitStack() as stack:
        if yes and hasattr(model, "no_sync"):
            stack.enter_context(model.no_sync())
        yield
