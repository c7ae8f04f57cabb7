"""More positions for CLIP's text side: 77 to 248, or any other length, as Long-CLIP does it.

Source: Zhang et al., *Long-CLIP: Unlocking the Long-Text Capability of CLIP*, ECCV 2024, section 3.1 ("knowledge-preserved
stretching"): the first 20 rows of the table, which CLIP has trained well, stay; the others are stretched by interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clipmend.backbones.positions import find_positions, set_token_limit

__all__ = ["KEEP", "LENGTH", "KeptRows", "Stretched", "keep_rows_fixed", "stretch", "stretch_positions"]

LENGTH = 248  # Long-CLIP's: 20 + 4 * (77 - 20)
KEEP = 20


def stretch_positions(table: Tensor, length: int = LENGTH, keep: int = KEEP) -> Tensor:
    """Stretch a table of positions by linear interpolation, the first rows kept as they are.

    With ``s = (length - keep) / (L - keep)`` new rows for each old one after the kept ones, new row ``i >= keep`` stands at
    ``x = keep + (i - keep) / s`` in the old table and is read there: between old rows ``k = floor(x)`` and ``k + 1`` by
    interpolation; after the last old row, where the table has no more to say, on the line through its last two::

        q[i] = p[i]                                          i < keep
        q[i] = (1 - w) p[k] + w p[k + 1]                     x <= L - 1, w = x - k
        q[i] = p[L-1] + (x - (L - 1)) (p[L-1] - p[L-2])      x >  L - 1, less than one old row away

    For ``L = 77``, ``length = 248``, ``keep = 20`` this is Long-CLIP's own: ``s = 228 / 57 = 4`` exactly, so
    ``q[20 + 4k + r] = ((4 - r) p[20 + k] + r p[21 + k]) / 4`` and ``q[244 + r] = p[76] + r/4 (p[76] - p[75])`` for ``r = 0..3``,
    and every fourth row is an old one. For other lengths ``s`` is whatever fraction comes out; places are computed in whole
    numbers, so a row that should be an old one is exactly that. ``length = L`` gives the table back.

    Args:
        table: ``[L, W]``, floating point.
        length: rows of the result, at least ``L``.
        keep: rows kept as they are, 0 to ``L``; less than ``L`` where there is anything to stretch.

    Returns:
        ``[length, W]`` on the same device in the same dtype (the arithmetic is at least float32). Gradients flow through it.

    Raises:
        ValueError: no matrix of finite floating-point numbers, ``length`` below ``L``, or ``keep`` out of range.

    Example:
        >>> stretch_positions(torch.randn(77, 512)).shape
        torch.Size([248, 512])
    """
    if table.ndim != 2 or not table.is_floating_point():
        raise ValueError(f"a table of positions is a floating-point matrix [L, W], not {table.dtype} of {list(table.shape)}")
    old = len(table)
    if length < old:
        raise ValueError(f"{length} positions are fewer than the {old} there are: a table is stretched, not cut")
    if not 0 <= keep <= old:
        raise ValueError(f"keep={keep} is outside 0..{old}, the rows there are")
    if not table.isfinite().all():
        raise ValueError("the table of positions holds numbers that are not finite")
    if length == old:
        return table.clone()
    if keep == old:
        raise ValueError(f"with all {old} rows kept there is none to stretch to {length}; keep at most {old - 1}")
    if old < 2:
        raise ValueError("one row has no direction to be stretched in; a table needs two")
    p = table.to(torch.promote_types(table.dtype, torch.float32))
    new, span = length - keep, old - keep
    steps = torch.arange(new, device=table.device) * span
    rows = keep + steps // new  # [new], below L
    share = ((steps % new).to(torch.float64) / new).to(p.dtype)[:, None]  # [new, 1], from 0 to below 1
    inside = rows < old - 1
    here = p[rows]
    between = (1 - share) * here + share * p[(rows + 1).clamp(max=old - 1)]
    beyond = here + share * (p[-1] - p[-2])
    return torch.cat([table[:keep], torch.where(inside[:, None], between, beyond).to(table.dtype)])


@dataclass(frozen=True)
class Stretched:
    """What :func:`stretch` did.

    Args:
        before: positions that the model had.
        length: positions that it has.
        keep: rows that were kept.
    """

    before: int
    length: int
    keep: int

    @property
    def factor(self) -> float:
        """New rows for each old one after those kept; 1.0 where nothing was stretched."""
        return 1.0 if self.length == self.before else (self.length - self.keep) / (self.before - self.keep)


def stretch(model: Any, length: int = LENGTH, keep: int = KEEP, tokenizer: Any = None) -> Stretched:
    """Give a live CLIP more positions, in place, so that it, its config and its tokenizer save and load at the new length.

    A text of at most ``keep`` tokens, special tokens included, has the same embedding as before: its positions are the same and
    attention is causal. Longer texts change, and the model has yet to be trained on them.

    Args:
        model: a ``CLIPModel``, ``CLIPTextModel`` or ``CLIPTextModelWithProjection`` of transformers, or a ``CLIP`` or
            ``CustomTextCLIP`` of open_clip. Its table of positions is a new parameter afterwards: make optimisers, and wrappers
            such as DDP, later. An encoder of :func:`clipmend.load` remembers its length, so load it again from the model.
        length: most tokens of a text from now on.
        keep: rows of the table kept as they are.
        tokenizer: its tokenizer (or processor), whose limit is raised too. Without it only the model is changed, and texts are
            still cut where the tokenizer says.

    Returns:
        the numbers of rows before and after.

    Raises:
        ValueError: a model that cannot be stretched (SigLIP and other bidirectional towers: every text is padded to the last
            position and pooled there, so that no embedding would stay); a length or a number of kept rows out of range
            (:func:`stretch_positions`).
        TypeError: neither a model nor a tokenizer of those libraries.

    Example:
        >>> model = CLIPModel.from_pretrained("openai/clip-vit-base-patch32")
        >>> tokenizer = AutoTokenizer.from_pretrained("openai/clip-vit-base-patch32")
        >>> stretch(model, 248, tokenizer=tokenizer).factor
        4.0
        >>> model.save_pretrained("long"), tokenizer.save_pretrained("long")
    """
    positions = find_positions(model)
    before = positions.length
    table = stretch_positions(positions.table.detach(), length, keep)
    if tokenizer is not None:
        set_token_limit(tokenizer, length)  # before the model: it raises, the other cannot
    if length != before:
        positions.replace(table)
    return Stretched(before, length, keep)


@dataclass
class KeptRows:
    """Rows of a table of positions that training leaves as they are; see :func:`keep_rows_fixed`.

    Args:
        table: the parameter.
        keep: number of rows.
        rows: ``[keep, W]``, what they were.
        removals: undo each hook.
    """

    table: Tensor
    keep: int
    rows: Tensor
    removals: list[Callable[[], None]]

    def restore(self) -> None:
        """Put the rows back; bit for bit what they were."""
        with torch.no_grad():
            self.table[: self.keep].copy_(self.rows)

    def remove(self) -> None:
        """Let the rows go: from now on they are trained like the others."""
        while self.removals:
            self.removals.pop()()

    def __enter__(self) -> KeptRows:
        return self

    def __exit__(self, *exception: object) -> None:
        self.remove()


def keep_rows_fixed(model: Any, keep: int = KEEP, optimizer: Any = None) -> KeptRows:
    """Hold the first rows of a CLIP's table of positions fixed while the others are trained, as Long-CLIP's recipe does.

    A hook sets the gradient of those rows to zero. That is enough for an optimiser that moves a weight by its gradient alone;
    weight decay (AdamW's, which Long-CLIP uses) and what an optimiser remembers from earlier steps move them all the same. With
    ``optimizer=`` the rows are also put back after each of its steps, and stay the same bits whatever it does.

    Args:
        model: as for :func:`stretch`; to be called after it, and after the model is moved to its device.
        keep: number of rows.
        optimizer: any of ``torch.optim``'s, or Accelerate's wrapper around one.

    Returns:
        a handle, also a context manager: ``remove()`` ends it.

    Raises:
        ValueError: ``keep`` is outside 0..L, the table takes no gradient, or the optimiser does not have it.

    Example:
        >>> held = keep_rows_fixed(model, 20, optimizer)
        >>> train(model, optimizer)
        >>> held.remove()
    """
    table = find_positions(model).table
    if not 0 <= keep <= len(table):
        raise ValueError(f"keep={keep} is outside 0..{len(table)}, the rows there are")
    if not table.requires_grad:
        raise ValueError("the table of positions takes no gradient, so all its rows are fixed already")
    if optimizer is not None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        if all(table is not parameter for group in optimizer.param_groups for parameter in group["params"]):
            raise ValueError("the optimiser does not have this table of positions: make it after the model was stretched")

    def without_kept(gradient: Tensor) -> Tensor:
        masked = gradient.clone()
        masked[:keep] = 0  # not a product: an infinite gradient, which mixed precision skips, would become nan
        return masked

    held = KeptRows(table, keep, table.detach()[:keep].clone(), [table.register_hook(without_kept).remove])
    if optimizer is not None:
        held.removals.append(optimizer.register_step_post_hook(lambda *_: held.restore()).remove)
    return held
