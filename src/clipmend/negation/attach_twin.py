"""A model's twin for one call: the same weights and code, with a few places that note what passes through.

Hooks on a user's model would outlive us, and would mix up two threads. Instead each call gets shallow copies of the few modules
on the way to the places of interest (every weight and every other module is shared), and runs the library's own code on them.
What a call notes belongs to that call alone: two threads cannot meet, and an exception leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["Override", "Record", "Watch", "resolve", "twin_of", "unwrapped"]


class Override:
    """What is put in place of a model's method. Only a common base, by which one is recognised on a model."""


class Record:
    """What one call noted.

    Attributes:
        ids: ``[B, T]`` token ids, as the token embedding was given them; ``None``: it was not called.
        states: per layer (1-indexed) the output of its block, before the final norm.
    """

    def __init__(self) -> None:
        self.ids: Tensor | None = None
        self.states: dict[int, Tensor] = {}


class Watch(nn.Module):
    """Stands for ``module``, calls it, and lets ``after(inputs, output)`` see, or replace, what comes out.

    Args:
        module: the module that it stands for; every other attribute is that module's own.
        after: given the first argument and the output; returns the output.
    """

    def __init__(self, module: nn.Module, after: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.module = module
        self.after = after
        self.training = module.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else next(iter(kwargs.values()), None)
        return self.after(first, self.module(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some encoders read attributes of their parts, such as a weight's type
            return getattr(super().__getattr__("module"), name)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside ``torch.compile``'s wrapper; any other as it is."""
    while isinstance(module._modules.get("_orig_mod"), nn.Module):
        module = module._modules["_orig_mod"]  # type: ignore[assignment]
    return module


def resolve(model: nn.Module, path: str) -> nn.Module:
    """The module at a dotted path, through wrappers of ``torch.compile``; ``""`` is the model itself."""
    for name in filter(None, path.split(".")):
        model = unwrapped(model._modules[name])  # type: ignore[arg-type]
    return model


def twin_of(model: nn.Module, replaced: Mapping[str, Callable[[nn.Module], nn.Module]]) -> nn.Module:
    """A twin of ``model`` in which the modules at some paths are others.

    Overrides are left out of the twin, and so is the compiled code of the copied modules, which would run the original's parts.

    Args:
        model: it is never modified.
        replaced: dotted path to what is made of the module there.
    """
    twin = _shallow_copy(model)
    copies = {"": twin}
    for path, make in replaced.items():
        parent, _, last = path.rpartition(".")
        owner = _copied(copies, parent)
        owner._modules[last] = make(unwrapped(owner._modules[last]))  # type: ignore[arg-type]
    return twin


def _copied(copies: dict[str, nn.Module], path: str) -> nn.Module:
    if path not in copies:
        parent, _, last = path.rpartition(".")
        owner = _copied(copies, parent)
        copies[path] = owner._modules[last] = _shallow_copy(unwrapped(owner._modules[last]))  # type: ignore[arg-type]
    return copies[path]


def _shallow_copy(module: nn.Module) -> nn.Module:
    twin = module.__class__.__new__(module.__class__)
    twin.__dict__.update({name: value for name, value in module.__dict__.items() if not isinstance(value, Override)})
    twin.__dict__["_modules"] = dict(module._modules)  # its own children's table; the children themselves are shared
    twin.__dict__["_compiled_call_impl"] = None
    return twin
