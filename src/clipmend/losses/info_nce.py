"""InfoNCE: each pair against all others of the batch, both ways."""

from __future__ import annotations

from typing import Any

from clipmend.losses.hard_negative import HardNegativeLoss

__all__ = ["InfoNCELoss"]


class InfoNCELoss(HardNegativeLoss):
    r"""CLIP's loss: ``1/2 [ CE(s S, i) + CE(s S^T, i) ]`` with ``S = v t^T``.

    Equal to open_clip's ``ClipLoss``, in blocks and with repeated ids left out of the denominator. It is
    :class:`~clipmend.losses.hard_negative.HardNegativeLoss` with ``gamma=0``.

    Source: van den Oord et al. 2018 (arXiv 1807.03748), Radford et al. 2021 (arXiv 2103.00020).

    Args:
        label_smoothing: share of the target spread evenly over the entries (.1 in Long-CLIP's recipe).
        block, gather, local_loss, group: see :class:`~clipmend.losses.hard_negative.HardNegativeLoss`.

    Example::

        InfoNCELoss()(image_features, text_features, model.logit_scale.exp()).backward()
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        *,
        block: int | None = None,
        gather: bool = False,
        local_loss: bool = False,
        group: Any = None,
    ) -> None:
        super().__init__(0.0, "live", label_smoothing, block=block, gather=gather, local_loss=local_loss, group=group)

    def extra_repr(self) -> str:
        return f"label_smoothing={self.label_smoothing}"
