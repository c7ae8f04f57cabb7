"""Reading a transformer's intermediate states without touching the model.

Hooks on a user's model would outlive us, and hooks registered per call would mix up the states of two threads. Instead the path
from the model to its list of blocks is copied shallowly: the copies share every weight with the original, but in their list of
blocks each block sits behind a :class:`_Tap` that notes its output in a store of the running thread. The list may also be cut
short, which is how a pass stops at the last layer needed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["TappedModel", "find_blocks"]


class _Store(threading.local):
    """Where the running thread's states go; ``states`` is ``None`` outside a pass."""

    states: dict[int, Tensor] | None = None
    wanted: frozenset[int] = frozenset()


class _Tap(nn.Module):
    """Calls ``block`` and notes its output; every other attribute is the block's own."""

    def __init__(self, block: nn.Module, layer: int, store: _Store) -> None:
        super().__init__()
        self.block = block
        self._layer = layer
        self._store = store
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.block(*args, **kwargs)
        if self._store.states is not None and self._layer in self._store.wanted:
            self._store.states[self._layer] = output[0] if isinstance(output, tuple) else output
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some encoders read attributes of their blocks, such as the kind of attention
            return getattr(super().__getattr__("block"), name)


def _shallow_copy(module: nn.Module) -> nn.Module:
    twin = module.__class__.__new__(module.__class__)
    twin.__dict__.update(module.__dict__)
    twin.__dict__["_modules"] = copy.copy(module._modules)  # its own dict of children; the children themselves are shared
    return twin


class TappedModel:
    """A model whose blocks' outputs can be read, in one pass that stops at the last one asked for.

    Args:
        model: the whole model; it is never modified, and its weights are shared, not copied.
        path: dotted path from ``model`` to the ``ModuleList`` (or ``Sequential``) of blocks.

    Attributes:
        num_layers: number of blocks; layers are 1-indexed.
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        self.model = model
        self.path = path
        self.num_layers = len(model.get_submodule(path))  # type: ignore[arg-type]
        self._store = _Store()
        self._copies: dict[int, nn.Module] = {}  # by number of blocks kept; two threads building one at once is harmless

    def _with_blocks(self, count: int) -> nn.Module:
        twin = self._copies.get(count)
        if twin is None:
            twin = root = _shallow_copy(self.model)
            *parents, last = self.path.split(".")
            for name in parents:
                child = _shallow_copy(root.get_submodule(name))
                root._modules[name] = child
                root = child
            blocks = list(self.model.get_submodule(self.path).children())[:count]
            root._modules[last] = nn.ModuleList(_Tap(block, k, self._store) for k, block in enumerate(blocks, start=1))
            root._modules[last].training = False  # type: ignore[union-attr]
            self._copies[count] = twin
        return twin

    def states(self, layers: Iterable[int], *args: Any, **kwargs: Any) -> dict[int, Tensor]:
        """Run the model on ``args`` up to the last of ``layers`` and return ``{layer: output of that block}``.

        Raises:
            RuntimeError: the model ran without its blocks (it is wrapped in something that bypasses them).
        """
        wanted = frozenset(layers)
        model = self._with_blocks(max(wanted))
        store = self._store
        store.states, store.wanted = {}, wanted
        try:
            model(*args, **kwargs)
            found = store.states
        finally:
            store.states = None
        if found.keys() != wanted:
            raise RuntimeError(
                f"{type(self.model).__name__} ran, but blocks {sorted(wanted - found.keys())} of {self.path} gave no output; "
                "is the model wrapped (offloaded, compiled, parallel)? Load it plainly, on one device"
            )
        return found


def find_blocks(model: nn.Module, count: int | None) -> str:
    """Dotted path of the list of ``count`` blocks in an encoder of unknown make.

    Args:
        model: the encoder.
        count: how many blocks its config claims (``None``: take the longest list).

    Raises:
        ValueError: no list of that length, or several on the same level.
    """
    lists = [(name, len(module)) for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and name]
    fitting = [(name, size) for name, size in lists if count is None or size == count]
    if not fitting:
        raise ValueError(
            f"cannot tell the transformer blocks of {type(model).__name__}: no list of {count} modules in it "
            "(blocks that share their weights, as in ALBERT, are not supported)"
        )
    longest = max(size for _, size in fitting)
    return min((name for name, size in fitting if size == longest), key=lambda name: (name.count("."), len(name)))


def as_float(x: Tensor) -> Tensor:
    """``x`` in float32 on the CPU."""
    return x.to(device="cpu", dtype=torch.float32)
