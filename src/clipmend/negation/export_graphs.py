"""What is exported, as modules that a tracer can follow: the mended text side, and the score correction in two forms."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.tower import TextTower
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork

__all__ = ["MatrixGraph", "PairsGraph", "TextGraph"]


class TextGraph(nn.Module):
    """Token ids to mended embeddings: a text tower with the correction network on it.

    Args:
        tower: the text tower, in evaluation mode; its weights are shared, not copied.
        ecn: the correction network, in float32 and evaluation mode, where the tower is.
        peak: the layer whose tokens it reads.
        anchor: the layer of its second state.
        scn_layers: layers whose embeddings the score correction reads, the last standing for the corrected one; ``()`` for none.
        alpha: strength of the correction.
        normalize: give unit vectors; ``False``: at the length of the plain embedding.
    """

    matrix: Tensor  # [W, D], a buffer; only of a tower whose projection is no module

    def __init__(
        self,
        tower: TextTower,
        ecn: EmbeddingCorrectionNetwork,
        *,
        peak: int,
        anchor: int,
        scn_layers: tuple[int, ...],
        alpha: float,
        normalize: bool,
    ) -> None:
        super().__init__()
        self._tower = tower
        self._peak, self._anchor, self._scn_layers = peak, anchor, scn_layers
        self._alpha, self._normalize = alpha, normalize
        # Registered, so that the exporter knows the weights by name and as weights.
        self.model = tower._tapped._with_blocks(tower.num_layers)
        self.final_norm = tower.final_norm if isinstance(tower.final_norm, nn.Module) else None
        self.projection = tower.projection if isinstance(tower.projection, nn.Module) else None
        if tower.projection is not None and self.projection is None:  # open_clip's: a matrix, behind a function
            eye = torch.eye(tower.width, device=tower.device, dtype=tower.dtype)
            self.register_buffer("matrix", tower.projection(eye).detach().clone(), persistent=False)
        self.ecn = ecn

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Embed and correct.

        Args:
            input_ids: int64 ``[B, T]``, padded as the tower pads.
            attention_mask: int64 ``[B, T]``, 1 at the tokens that count. A row without any is given its first token (the last one
                where padding goes before the text), as the tower does.

        Returns:
            ``[B, D]`` corrected embeddings, ``[B, D]`` plain ones (both unit vectors, or both at the plain length), and with
            ``scn_layers`` ``[B, L, D]`` unit embeddings by layer, the corrected one last.
        """
        tower = self._tower
        place = torch.arange(input_ids.shape[1], device=input_ids.device)
        only = place == (input_ids.shape[1] - 1 if tower.pad_left else 0)
        mask = attention_mask.bool()
        mask = mask | (only & ~mask.any(1, keepdim=True))
        position = self._position(mask, place)
        last = tower.num_layers
        layers = {self._peak, self._anchor, last, *self._scn_layers[:-1]}
        raw = {
            layer: tower._block_output(x) for layer, x in tower._tapped.states(layers, *tower._arguments(input_ids, mask)).items()
        }

        def pool(states: Tensor) -> Tensor:
            if tower.pooling != "mean":
                return _at(states, position)
            weight = mask[..., None].to(states.dtype)
            return (states * weight).sum(1) / weight.sum(1)

        peak = self._normed(raw[self._peak])
        eos = _at(peak, position)
        anchor = _at(self._normed(raw[self._anchor]), position)
        plain = self._project(pool(raw[last] if tower.final_norm is None else self._normed(raw[last])))
        unit = self.ecn(plain, peak, mask, eos, anchor, alpha=self._alpha)
        length = torch.ones_like(plain[:, :1]) if self._normalize else plain.norm(dim=-1, keepdim=True)
        given = F.normalize(plain, dim=-1) if self._normalize else plain
        if not self._scn_layers:
            return unit * length, given
        earlier = [F.normalize(self._project(pool(self._normed(raw[layer]))), dim=-1) for layer in self._scn_layers[:-1]]
        return unit * length, given, torch.stack([*earlier, unit], 1)

    def _normed(self, states: Tensor) -> Tensor:
        return self._tower._norm(states)

    def _project(self, pooled: Tensor) -> Tensor:
        if self.projection is not None:
            return self.projection(pooled)
        return pooled @ self.matrix if self._tower.projection is not None else pooled

    def _position(self, mask: Tensor, place: Tensor) -> Tensor:
        """``[B]`` place of the token that stands for the sentence."""
        if self._tower.pooling == "last":
            return (place[-1] * torch.ones_like(mask[:, 0], dtype=torch.long)).long()
        if self._tower.pooling == "eos":
            return (mask * (place + 1)).argmax(1)  # the last valid one
        return mask.int().argmax(1)


def _at(states: Tensor, position: Tensor) -> Tensor:
    """``[B, W]``: of each text ``[T, W]`` the state at its position."""
    return states.gather(1, position[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)


class PairsGraph(nn.Module):
    """``images [P, D]`` and ``contexts [P, L, D]``, one of either a pair, to corrected scores ``[P]``."""

    def __init__(self, scn: ScoreCorrectionNetwork, strength: float) -> None:
        super().__init__()
        self.scn, self._strength = scn, strength

    def forward(self, images: Tensor, contexts: Tensor) -> Tensor:
        return (contexts[:, -1] * images).sum(-1) + self._strength * self.scn.correction(images, contexts)


class MatrixGraph(nn.Module):
    """``images [N, D]`` and ``contexts [M, L, D]`` to corrected scores ``[N, M]``.

    About ``N * M * (D + 6 * context)`` numbers are held at once.
    """

    def __init__(self, scn: ScoreCorrectionNetwork, strength: float) -> None:
        super().__init__()
        self.scn, self._strength = scn, strength

    def forward(self, images: Tensor, contexts: Tensor) -> Tensor:
        scn, last = self.scn, contexts[:, -1]
        cosines = torch.einsum("nd,mld->nml", images, contexts)
        cross = scn.cross_mlp(images[:, None] * last)  # [N, M, C]
        own = scn.text_mlp(contexts.flatten(1)).expand(images.shape[0], -1, -1)
        head = scn.head(torch.cat([cosines, own, cross], -1)).squeeze(-1)
        return cosines[..., -1] + (self._strength * scn.bound) * torch.tanh(head)
