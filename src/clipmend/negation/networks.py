"""The two small networks of PeakPatch: one corrects the text embedding, one the score of an image-text pair.

Both read intermediate states of a frozen text encoder, *through its final layer norm*: the middle layers still tell a caption
from its negation where the last one no longer does. Sizes, initial values and order of the parts follow PeakPatch
(arXiv 2607.23271); the attention is our own, algebraically equal and an order of magnitude quicker.

Notation: ``B`` texts or pairs, ``T`` tokens, ``W`` width of the text states, ``D`` size of the joint space, ``L`` layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["EmbeddingCorrectionNetwork", "FoldedAttention", "ScoreCorrectionNetwork", "masked_mean"]

_WEIGHT_STD = 0.02
_LAST_WEIGHT_STD = 0.001  # of the layer that ends each network: the correction starts near zero
_INITIAL_ALPHA = 0.5
READOUTS = 2  # of the direct path over tokens: one can serve what is denied, one what is asserted


class FoldedAttention(nn.Module):
    """Multi-head attention of **one learned query** over the tokens of each text, without projecting a single token.

    With one query ``q`` for the whole batch the key projection moves to the other side of the dot product, and the value
    projection, being linear, past the weighted sum. For head ``h`` of width ``d``, token states ``x_t``:

    - ``score_t = q_h . (K_h x_t + k_h) / sqrt(d) = x_t . u_h + const`` with ``u_h = K_h^T q_h / sqrt(d)``, computed once a call;
      the constant (all of the key bias) cancels in the softmax;
    - ``sum_t a_t (V_h x_t + v_h) = V_h (sum_t a_t x_t) + v_h (sum_t a_t)``. Dropout acts on the ``a_t``, so that their sum is
      no longer one and scales the value bias.

    The parameters are those of :class:`torch.nn.MultiheadAttention` under the same names (``in_proj_weight``, ``in_proj_bias``,
    ``out_proj``), besides ``query``; outputs and gradients are equal too, for the same dropout mask (drawn in the same order: the
    same seed gives the same mask on the CPU).

    Args:
        width: width ``W`` of the tokens and of the output.
        heads: number of heads; divides ``width``.
        dropout: probability of dropping an attention weight in training.
    """

    def __init__(self, width: int, heads: int = 8, dropout: float = 0.1) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"the number of heads must divide the text width, but {width} % {heads} = {width % heads}")
        self.heads, self.dropout = heads, dropout
        self.query = nn.Parameter(torch.empty(width))
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))  # query, key, value, one above the other
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.normal_(self.query, std=_WEIGHT_STD)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Attend.

        Args:
            tokens: ``[B, T, W]`` token states.
            mask: ``[B, T]`` bool, True at valid tokens. A text without any is given weights of zero: its output is the bias of
                ``out_proj``, never NaN.

        Returns:
            ``[B, W]``.
        """
        width, heads = tokens.shape[-1], self.heads
        q_weight, k_weight, v_weight = self.in_proj_weight.view(3, heads, width // heads, width)  # each [H, d, W]
        q_bias, _, v_bias = self.in_proj_bias.view(3, heads, width // heads)  # the key bias is left with a zero gradient
        query = (q_weight @ self.query + q_bias) / math.sqrt(width // heads)  # [H, d]
        folded = (query[:, None] @ k_weight).squeeze(1)  # [H, W]
        scores = torch.bmm(folded.expand(tokens.shape[0], -1, -1), tokens.transpose(1, 2))  # [B, H, T]; tokens @ folded.T is slower
        valid = mask[:, None]  # [B, 1, T]
        scores = scores.masked_fill(~valid, torch.finfo(scores.dtype).min)  # not -inf, which gives NaN where all are padding
        weights = scores.softmax(-1).masked_fill(~valid, 0.0)
        weights = F.dropout(weights, self.dropout, self.training)
        mixed = weights @ tokens  # [B, H, W]
        value = torch.einsum("bhw,hdw->bhd", mixed, v_weight) + v_bias * weights.sum(-1, keepdim=True)  # [B, H, d]
        return self.out_proj(value.flatten(1))


class EmbeddingCorrectionNetwork(nn.Module):
    """Put back into a text embedding what the encoder's last layers lost (the ECN).

    A learned query attends over the tokens of the peak layer (attention, then layer norm); their mean is taken; an MLP reads
    ``[EOS at the peak ; attention summary ; EOS at the anchor ; mean]`` and gives a correction ``delta``, and
    ``f' = normalize(f + alpha * delta)``. With ``W = D = 512`` it has 4,728,833 parameters.

    Source: PeakPatch (arXiv 2607.23271).

    Args:
        text_width: ``W``, width of the text encoder's states.
        embed_dim: ``D``, size of the joint space.
        hidden: width of the MLP.
        heads: attention heads; divides ``text_width``.
        dropout: in the attention and the MLP, in training only.
        use_anchor: read the anchor layer (ablation "no anchor": False).
        use_pool: read the mean of the peak's tokens (ablation "no pool": False).
        eos_only: read nothing but the sentence token of the peak layer (ablation "CLS only"); overrides the above and below, and
            there is no attention.
        use_direct: add two direct paths beside the MLP, for what it would otherwise have to learn a noun at a time (our extension,
            not in the published network). ``f`` is the final embedding, also read by the MLP, scaled by ``sqrt(D)``:
            ``delta = mlp[:D] - g f + sum_k c_k r_k`` with ``g`` and ``1 + c_k`` further outputs of the MLP and ``r_k`` the readout
            of :class:`TokenReadout`. The last layer has lost *whether* a thing is denied but still names the thing, in the space
            the correction lives in: turning "no X" round is taking ``f`` back. In "Y but no X" the tokens of X at the peak layer
            know that they are denied, and a linear map of them is X's direction.
    """

    def __init__(
        self,
        text_width: int,
        embed_dim: int,
        hidden: int = 1024,
        heads: int = 8,
        dropout: float = 0.1,
        use_anchor: bool = True,
        use_pool: bool = True,
        eos_only: bool = False,
        use_direct: bool = False,
    ) -> None:
        super().__init__()
        self.text_width, self.embed_dim = text_width, embed_dim
        self.use_direct = use_direct and not eos_only
        self.use_anchor, self.use_pool, self.eos_only = use_anchor and not eos_only, use_pool and not eos_only, eos_only
        if not eos_only:
            self.attention = FoldedAttention(text_width, heads, dropout)
            self.attention_norm = nn.LayerNorm(text_width)
        inputs = 1 + (not eos_only) + self.use_anchor + self.use_pool
        self.mlp = nn.Sequential(
            nn.Linear(inputs * text_width + (embed_dim if self.use_direct else 0), hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, hidden),
            nn.LayerNorm(hidden),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(hidden, embed_dim + (1 + READOUTS if self.use_direct else 0)),
        )
        self.log_alpha = nn.Parameter(torch.tensor(math.log(_INITIAL_ALPHA)))
        _initialise(self.mlp)
        if self.use_direct:
            self.readout = TokenReadout(text_width, embed_dim)

    def forward(
        self,
        embedding: Tensor,
        peak_tokens: Tensor,
        mask: Tensor,
        peak_eos: Tensor,
        anchor_eos: Tensor,
        alpha: float | Tensor | None = None,
    ) -> Tensor:
        """Correct embeddings.

        Args:
            embedding: ``[B, D]`` the encoder's own text embeddings; normalised here.
            peak_tokens: ``[B, T, W]`` token states of the peak layer; ``T`` need be no more than the longest text.
            mask: ``[B, T]`` bool, True at valid tokens. What padding holds does not matter, unless it is NaN.
            peak_eos: ``[B, W]`` sentence-token state of the peak layer (the CLS state for mean-pooling encoders).
            anchor_eos: ``[B, W]`` the same at the anchor layer.
            alpha: strength of the correction in place of the learned one; 0 gives the plain normalised embedding.

        Returns:
            ``[B, D]`` of unit length.
        """
        return self.combine(embedding, self.delta(peak_tokens, mask, peak_eos, anchor_eos, embedding), alpha)

    def combine(self, embedding: Tensor, delta: Tensor, alpha: float | Tensor | None = None) -> Tensor:
        """``normalize(f + alpha * delta)``, ``[B, D]``; ``alpha`` as for :meth:`forward`."""
        strength = self.log_alpha.exp() if alpha is None else alpha
        return F.normalize(F.normalize(embedding.to(delta.dtype), dim=-1) + strength * delta, dim=-1)

    def delta(
        self, peak_tokens: Tensor, mask: Tensor, peak_eos: Tensor, anchor_eos: Tensor, embedding: Tensor | None = None
    ) -> Tensor:
        """The correction itself, ``[B, D]``; arguments as for :meth:`forward`, ``embedding`` only read with ``use_direct``.

        Raises:
            ValueError: ``use_direct`` without an ``embedding``.
        """
        free, direct = self.parts(peak_tokens, mask, peak_eos, anchor_eos, embedding)
        return free if direct is None else free + direct

    def parts(
        self, peak_tokens: Tensor, mask: Tensor, peak_eos: Tensor, anchor_eos: Tensor, embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The two terms of :meth:`delta`, ``[B, D]`` each: what the MLP gives, and what the direct paths add (``None`` without)."""
        dtype = self.log_alpha.dtype  # features may be stored in half precision
        inputs = [peak_eos.to(dtype)]
        if not self.eos_only:
            peak_tokens = peak_tokens.to(dtype)
            inputs.append(self.attention_norm(self.attention(peak_tokens, mask)))
        if self.use_anchor:
            inputs.append(anchor_eos.to(dtype))
        if self.use_pool:
            inputs.append(masked_mean(peak_tokens, mask))
        if not self.use_direct:
            return self.mlp(torch.cat(inputs, -1)), None
        if embedding is None:
            raise ValueError("this network reads the final embedding too (use_direct), but none was given")
        final = F.normalize(embedding.to(dtype), dim=-1)
        out = self.mlp(torch.cat([*inputs, final * math.sqrt(self.embed_dim)], -1))  # [B, D + 1 + K]
        free, back, gains = out.split([self.embed_dim, 1, READOUTS], -1)
        read = self.readout(peak_tokens, mask)  # [B, K, D]
        return free, ((1 + gains)[..., None] * read).sum(1) - back * final


class TokenReadout(nn.Module):
    """Which tokens are denied, which asserted, and a linear map of each lot into the joint space.

    Every token is given ``K`` weights in 0..1 by a small network of its own state;
    ``r_k = V_k (sum_t s_kt x_t) / (1 + sum_t s_kt)`` is near nothing where no token is meant, and nearly the mean of those
    that are, however many a word has.

    Args:
        width: width ``W`` of the tokens.
        embed_dim: ``D``, size of the joint space.
        hidden: width of the network that weighs a token.
    """

    def __init__(self, width: int, embed_dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.weigh = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, READOUTS))
        self.value = nn.Parameter(torch.empty(READOUTS, width, embed_dim))
        nn.init.normal_(self.value, std=_LAST_WEIGHT_STD)
        _initialise(self.weigh, last=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """``[B, T, W]`` tokens and ``[B, T]`` mask to ``[B, K, D]``."""
        weights = self.weigh(tokens).sigmoid() * mask[..., None]  # [B, T, K]
        summed = weights.transpose(1, 2) @ tokens  # [B, K, W]
        return torch.einsum("bkw,kwd->bkd", summed / (1 + weights.sum(1)[..., None]), self.value)


class ScoreCorrectionNetwork(nn.Module):
    """Correct the score of an image-text pair, by at most ``bound`` (the SCN).

    It sees the text as embedded at several layers: each layer's pooled state, projected into the joint space and normalised,
    the last replaced by the ECN's corrected embedding. ``score = cos(text_last, image) + bound * tanh(head)``; the head reads
    the cosine per layer, a summary of the text and a summary of the element-wise product of text and image. With ``D = 512`` it
    has 493,825 parameters for two layers and 625,025 for three.

    Source: PeakPatch (arXiv 2607.23271).

    Args:
        embed_dim: ``D``, size of the joint space.
        num_layers: ``L``, layers of the context.
        context: size of either summary; their MLPs are twice as wide.
        bound: the largest correction.
        dropout: in the head, in training only.
    """

    def __init__(self, embed_dim: int, num_layers: int, context: int = 128, bound: float = 0.2, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed_dim, self.num_layers, self.context, self.bound = embed_dim, num_layers, context, bound
        self.text_mlp = _summary(num_layers * embed_dim, context)
        self.cross_mlp = _summary(embed_dim, context)
        self.head = nn.Sequential(
            nn.Linear(num_layers + 2 * context, context), nn.GELU(), nn.Dropout(dropout), nn.Linear(context, 1)
        )
        for part in (self.text_mlp, self.cross_mlp, self.head):
            _initialise(part, last=part is self.head)

    def forward(self, images: Tensor, contexts: Tensor) -> Tensor:
        """Corrected score of each pair.

        Args:
            images: ``[P, D]`` normalised image embeddings.
            contexts: ``[P, L, D]`` normalised embeddings of the pair's text, the corrected one last.

        Returns:
            ``[P]``.
        """
        return (contexts[:, -1] * images).sum(-1) + self.correction(images, contexts)

    def correction(self, images: Tensor, contexts: Tensor) -> Tensor:
        """What is added to the cosine, ``[P]`` in ``(-bound, bound)``; arguments as for :meth:`forward`."""
        cosines = torch.einsum("pld,pd->pl", contexts, images)
        cross = self.cross_mlp(contexts[:, -1] * images)
        head = self.head(torch.cat([cosines, self.text_mlp(contexts.flatten(1)), cross], -1))
        return self.bound * torch.tanh(head.squeeze(-1))

    def matrix(self, images: Tensor, contexts: Tensor, block: int = 16384, strength: float = 1.0) -> Tensor:
        """Corrected scores of all pairs: what :meth:`forward` gives for each, quicker and in bounded memory.

        The text summary is computed once a text; the linear layers that meet at the head (nothing lies between them) are
        joined; and for many images the first cross layer is folded into each text, ``(t * i) . w = i . (t * w)``, which makes
        one matrix product of it without an ``[N, M, D]`` array of element-wise products.

        Args:
            images: ``[N, D]`` normalised.
            contexts: ``[M, L, D]`` normalised.
            block: pairs at a time; about ``block * (D + 6 * context)`` numbers are held besides the result.
            strength: multiplies the correction.

        Returns:
            ``[N, M]``.
        """
        if not len(images) or not len(contexts):
            return images.new_zeros(len(images), len(contexts))
        rows = min(len(images), max(1, block))
        columns = max(1, block // rows)
        strips = []
        for texts in contexts.split(columns):
            own = self._head_of_text(texts)
            strips.append(torch.cat([self._block(part, texts, own, strength) for part in images.split(rows)]))
        return torch.cat(strips, 1)

    def _head_of_text(self, texts: Tensor) -> Tensor:
        """``[M, C]``: what each text adds to the head's first layer, all biases included."""
        head, cross_out = _linear(self.head, 0), _linear(self.cross_mlp, -1)
        _, of_text, of_cross = head.weight.split([self.num_layers, self.context, self.context], 1)
        return self.text_mlp(texts.flatten(1)) @ of_text.T + (of_cross @ cross_out.bias + head.bias)

    def _block(self, images: Tensor, texts: Tensor, own: Tensor, strength: float) -> Tensor:
        first, second = _linear(self.cross_mlp, 0), _linear(self.cross_mlp, -1)
        of_layers, _, of_cross = _linear(self.head, 0).weight.split([self.num_layers, self.context, self.context], 1)
        last = texts[:, -1]  # [m, D]
        if len(images) > 2 * self.context:
            folded = last[:, None] * first.weight  # [m, 2C, D]
            cross = (images @ folded.flatten(0, 1).T).unflatten(1, (len(texts), -1)) + first.bias  # [n, m, 2C]
        else:  # fewer products than folded weights
            cross = first(images[:, None] * last)
        cosines = torch.einsum("nd,mld->nml", images, texts)
        hidden = self.cross_mlp[1:-1](cross) @ (of_cross @ second.weight).T + cosines @ of_layers.T + own  # [n, m, C]
        head = self.head[1:](hidden).squeeze(-1)
        return cosines[..., -1] + (strength * self.bound) * torch.tanh(head)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean of the valid tokens, ``[B, T, W]`` and ``[B, T]`` -> ``[B, W]``; zero for a text without any."""
    weights = mask.to(tokens.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
    return (weights[:, None] @ tokens).squeeze(1)


def _summary(inputs: int, context: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 2 * context), nn.LayerNorm(2 * context), nn.GELU(), nn.Linear(2 * context, context))


def _linear(layers: nn.Sequential, index: int) -> nn.Linear:
    layer = layers[index]
    assert isinstance(layer, nn.Linear)
    return layer


def _initialise(layers: nn.Sequential, last: bool = True) -> None:
    linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
    for layer in linears:
        nn.init.normal_(layer.weight, std=_LAST_WEIGHT_STD if last and layer is linears[-1] else _WEIGHT_STD)
        nn.init.zeros_(layer.bias)
