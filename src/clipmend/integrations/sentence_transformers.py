"""sentence-transformers: the image-text losses for its trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.losses.contrastive import ContrastiveLoss
from clipmend.losses.hard_negative import HardNegativeLoss

try:
    from sentence_transformers import SentenceTransformer
except ImportError as error:
    raise ImportError(
        f"sentence-transformers is missing ({error}); install it with: pip install 'clipmend[sentence-transformers]'"
    ) from error

__all__ = ["PairLoss"]


class PairLoss(nn.Module):
    """A loss of :mod:`clipmend.losses` as ``SentenceTransformerTrainer`` calls its losses.

    The data set's first column is embedded as the image side and its second as the caption side: a column of images and one of
    captions for a CLIP, or two columns of texts. The margin of :class:`~clipmend.losses.hard_negative.HardNegativeLoss` is taken
    from the second. A column named ``label`` holds whole numbers that say which image a row shows: rows of one image are no
    negatives of each other.

    Args:
        model: the model being trained.
        loss: ``HardNegativeLoss()`` where not given. Say ``gather=True`` in it to contrast across processes.
        scale: what cosines are multiplied by. ``None``: the model's own ``logit_scale``, which learns, clamped to 100, as in a
            CLIP; 20 where the model has none (sentence-transformers' usual).

    Raises:
        ValueError: when called with other than two columns.

    Example::

        trainer = SentenceTransformerTrainer(model=model, train_dataset=data, loss=PairLoss(model, HardNegativeLoss(0.5)))
    """

    def __init__(self, model: SentenceTransformer, loss: ContrastiveLoss | None = None, scale: float | None = None) -> None:
        super().__init__()
        self.model = model
        self.loss = HardNegativeLoss() if loss is None else loss
        self.scale = scale

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch, as the trainer collates it."""
        columns = list(sentence_features)
        if len(columns) != 2:
            raise ValueError(f"{len(columns)} columns: the data set must have two, images (or texts) and their captions")
        images, texts = (F.normalize(self.model(column)["sentence_embedding"].float(), dim=-1) for column in columns)
        value = self.loss(images, texts, self._scale(images), image_ids=labels)
        assert isinstance(value, Tensor)
        return value

    def _scale(self, like: Tensor) -> Tensor:
        if self.scale is not None:
            return like.new_tensor(self.scale)
        for name, parameter in self.model.named_parameters():
            if name.rsplit(".", 1)[-1] == "logit_scale":
                return parameter.exp().clamp(max=100.0)
        return like.new_tensor(20.0)

    def get_config_dict(self) -> dict[str, Any]:
        """What the model card says of the loss."""
        return {"loss": repr(self.loss), "scale": self.scale}

    @property
    def citation(self) -> str:
        """For the model card."""
        return "HN-CLIP, arXiv 2608.18521" if isinstance(self.loss, HardNegativeLoss) and self.loss.gamma > 0 else ""
