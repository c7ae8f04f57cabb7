"""The networks: sizes, the folded attention against the framework's own, the score matrix against pairs one by one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.negation.networks import EmbeddingCorrectionNetwork, FoldedAttention, ScoreCorrectionNetwork, masked_mean


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def padded(batch: int, length: int, width: int, dtype: torch.dtype, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random tokens of random lengths, the first row full; padding holds large numbers that must not matter."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randn(batch, length, width, dtype=dtype, generator=generator)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    mask = torch.arange(length) < lengths[:, None]
    return torch.where(mask[..., None], tokens, 1e3), mask


def reference_of(folded: FoldedAttention) -> nn.MultiheadAttention:
    width = folded.query.numel()
    reference = nn.MultiheadAttention(width, folded.heads, folded.dropout, batch_first=True, dtype=folded.query.dtype)
    own = {name: value for name, value in folded.state_dict().items() if name != "query"}
    reference.load_state_dict(own)  # strict: same names, same shapes
    return reference


def attend(reference: nn.MultiheadAttention, query: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
    queries = query.expand(len(tokens), 1, -1)
    return reference(queries, tokens, tokens, key_padding_mask=~mask, need_weights=True)[0].squeeze(1)


def random_biases(folded: FoldedAttention) -> None:
    for bias in (folded.in_proj_bias, folded.out_proj.bias, folded.query):
        nn.init.normal_(bias)


@pytest.mark.parametrize("training", [False, True], ids=["eval", "dropout"])
@given(
    batch=st.integers(1, 5),
    length=st.integers(1, 9),
    heads=st.sampled_from([1, 2, 4]),
    size=st.integers(1, 4),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_folded_attention_equals_the_frameworks(training: bool, batch: int, length: int, heads: int, size: int, seed: int) -> None:
    torch.manual_seed(seed)
    folded = FoldedAttention(heads * size, heads, dropout=0.4 if training else 0.0).double().train(training)
    random_biases(folded)
    reference = reference_of(folded).train(training)
    tokens, mask = padded(batch, length, heads * size, torch.float64, seed)
    ours, theirs = tokens.clone().requires_grad_(), tokens.clone().requires_grad_()
    query = folded.query.detach().clone().requires_grad_()

    torch.manual_seed(seed)  # the same seed gives the same dropout mask to both
    output = folded(ours, mask)
    torch.manual_seed(seed)
    expected = attend(reference, query, theirs, mask)
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)

    weights = torch.randn_like(output)
    (output * weights).sum().backward()
    (expected * weights).sum().backward()
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(ours.grad, theirs.grad, **close)
    torch.testing.assert_close(folded.query.grad, query.grad, **close)
    for name, parameter in reference.named_parameters():
        torch.testing.assert_close(folded.get_parameter(name).grad, parameter.grad, **close)


def test_dropout_really_drops() -> None:
    """Guards the test above: with dropout the output differs from the one without."""
    torch.manual_seed(0)
    folded = FoldedAttention(16, 4, dropout=0.5)
    tokens, mask = padded(3, 7, 16, torch.float32)
    assert not torch.allclose(folded(tokens, mask), folded.eval()(tokens, mask))


def test_folded_attention_in_single_precision() -> None:
    torch.manual_seed(0)
    folded = FoldedAttention(512, 8).eval()
    random_biases(folded)
    tokens, mask = padded(16, 77, 512, torch.float32)
    expected = attend(reference_of(folded).eval(), folded.query, tokens, mask)
    torch.testing.assert_close(folded(tokens, mask), expected, rtol=1e-5, atol=1e-5)


def test_key_bias_gets_a_zero_gradient() -> None:
    folded = FoldedAttention(16, 4)
    tokens, mask = padded(3, 5, 16, torch.float32)
    folded(tokens, mask).sum().backward()
    gradient = folded.in_proj_bias.grad
    assert gradient is not None
    assert torch.equal(gradient[16:32], torch.zeros(16))
    assert gradient[:16].abs().sum() > 0
    assert gradient[32:].abs().sum() > 0


def test_a_text_of_padding_alone_is_never_nan() -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4)
    tokens, mask = padded(3, 5, 16, torch.float32)
    tokens.requires_grad_()
    mask[1] = False
    corrected = ecn(torch.randn(3, 8), tokens, mask, torch.randn(3, 16), torch.randn(3, 16))
    corrected.sum().backward()
    assert corrected.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in ecn.parameters())
    assert tokens.grad is not None
    assert tokens.grad[1].abs().sum() == 0


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="divide"):
        FoldedAttention(30, 8)


@pytest.mark.parametrize(("text_width", "embed_dim", "expected"), [(512, 512, 4_728_833), (384, 384, 3_613_697)])
def test_ecn_size(text_width: int, embed_dim: int, expected: int) -> None:
    w, h, d = text_width, 1024, embed_dim
    attention = w + 3 * w * w + 3 * w + w * w + w + 2 * w
    mlp = (4 * w * h + h) + 2 * h + (h * h + h) + 2 * h + (h * d + d)
    assert parameters(EmbeddingCorrectionNetwork(text_width, embed_dim)) == expected == attention + mlp + 1


@pytest.mark.parametrize(("layers", "expected"), [(2, 493_825), (3, 625_025)])
def test_scn_size(layers: int, expected: int) -> None:
    assert parameters(ScoreCorrectionNetwork(512, layers)) == expected


@pytest.mark.parametrize(
    ("options", "inputs"),
    [
        ({}, 4),
        ({"use_anchor": False}, 3),
        ({"use_pool": False}, 3),
        ({"use_anchor": False, "use_pool": False}, 2),
        ({"eos_only": True}, 1),
    ],
)
def test_ablations_change_what_the_mlp_reads(options: dict[str, bool], inputs: int) -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4, **options).eval()
    assert ecn.mlp[0].in_features == inputs * 16
    tokens, mask = padded(2, 5, 16, torch.float32)
    peak, anchor = torch.randn(2, 16), torch.randn(2, 16)
    plain = ecn.delta(tokens, mask, peak, anchor)
    assert torch.equal(plain, ecn.delta(tokens, mask, peak, anchor + 1)) == (not ecn.use_anchor)
    assert torch.equal(plain, ecn.delta(tokens + 1, mask, peak, anchor)) == ecn.eos_only


def test_the_direct_paths_equal_plain_lines() -> None:
    torch.manual_seed(0)
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4, use_direct=True).double().eval()
    for weight in (ecn.mlp[-1].weight, ecn.readout.value, ecn.readout.weigh[2].weight):
        nn.init.normal_(weight)
    assert ecn.mlp[0].in_features == 4 * 16 + 8
    assert ecn.mlp[-1].out_features == 8 + 1 + 2
    tokens, mask = padded(3, 5, 16, torch.float64)
    peak, anchor, embedding = torch.randn(3, 16).double(), torch.randn(3, 16).double(), torch.randn(3, 8).double()
    for b in range(3):
        f = embedding[b] / embedding[b].norm()
        valid = tokens[b][mask[b]]
        attended = ecn.attention_norm(ecn.attention(tokens[b : b + 1], mask[b : b + 1]))[0]
        out = ecn.mlp(torch.cat([peak[b], attended, anchor[b], valid.mean(0), f * 8**0.5]))
        expected = out[:8] - out[8] * f
        for k in range(2):
            weights = [torch.sigmoid(ecn.readout.weigh(x)[k]) for x in valid]
            read = sum(w * x for w, x in zip(weights, valid, strict=True)) / (1 + sum(weights))
            expected = expected + (1 + out[9 + k]) * (read @ ecn.readout.value[k])
        actual = ecn.delta(tokens, mask, peak, anchor, 3 * embedding)[b]  # the direction of the embedding counts, not its length
        torch.testing.assert_close(actual, expected)


def test_the_direct_paths_are_ours_and_off_by_default() -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4, use_direct=True).eval()
    tokens, mask = padded(2, 5, 16, torch.float32)
    states, embedding = (tokens, mask, torch.randn(2, 16), torch.randn(2, 16)), torch.randn(2, 8)
    with pytest.raises(ValueError, match="use_direct"):
        ecn.delta(*states)
    published = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4).eval()
    assert torch.equal(published.delta(*states, embedding), published.delta(*states))
    assert not EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4, eos_only=True, use_direct=True).use_direct


@pytest.mark.parametrize("use_direct", [False, True])
def test_padding_never_reaches_the_correction(use_direct: bool) -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4, use_direct=use_direct).double().eval()
    nn.init.normal_(ecn.mlp[-1].weight)
    tokens, mask = padded(4, 9, 16, torch.float64)
    mask[:, 6:] = False
    rest = (torch.randn(4, 16).double(), torch.randn(4, 16).double(), torch.randn(4, 8).double())
    full = ecn.delta(tokens, mask, *rest)
    torch.testing.assert_close(ecn.delta(tokens[:, :6], mask[:, :6], *rest), full, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ecn.delta(torch.where(mask[..., None], tokens, -7.0), mask, *rest), full, rtol=1e-12, atol=1e-12)


def test_initial_values_and_start_near_the_plain_embedding() -> None:
    torch.manual_seed(0)
    ecn = EmbeddingCorrectionNetwork(128, 128).eval()
    assert ecn.log_alpha.exp().item() == pytest.approx(0.5)
    assert ecn.mlp[0].weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert ecn.mlp[-1].weight.std().item() == pytest.approx(0.001, rel=0.02)
    assert ecn.mlp[-1].bias.abs().sum() == 0
    tokens, mask = padded(8, 9, 128, torch.float32)
    embedding = torch.randn(8, 128)
    corrected = ecn(embedding, tokens, mask, torch.randn(8, 128), torch.randn(8, 128))
    assert F.cosine_similarity(corrected, embedding).min() > 0.99
    torch.testing.assert_close(corrected.norm(dim=-1), torch.ones(8))


def test_alpha_can_be_overridden() -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4).eval()
    nn.init.normal_(ecn.mlp[-1].weight)
    tokens, mask = padded(4, 5, 16, torch.float32)
    inputs = (torch.randn(4, 8), tokens, mask, torch.randn(4, 16), torch.randn(4, 16))
    assert torch.equal(ecn(*inputs, alpha=0.0), F.normalize(F.normalize(inputs[0], dim=-1), dim=-1))
    torch.testing.assert_close(ecn(*inputs), ecn(*inputs, alpha=0.5))
    expected = F.normalize(F.normalize(inputs[0], dim=-1) + 2 * ecn.delta(*inputs[1:]), dim=-1)
    torch.testing.assert_close(ecn(*inputs, alpha=torch.tensor(2.0)), expected)


def test_padding_and_its_length_change_nothing() -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4).double().eval()
    tokens, mask = padded(4, 9, 16, torch.float64)
    mask[:, 6:] = False
    rest = (torch.randn(4, 16).double(), torch.randn(4, 16).double())
    full = ecn.delta(tokens, mask, *rest)
    trimmed = ecn.delta(tokens[:, :6], mask[:, :6], *rest)
    other = ecn.delta(torch.where(mask[..., None], tokens, -7.0), mask, *rest)
    torch.testing.assert_close(trimmed, full, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(other, full, rtol=1e-12, atol=1e-12)


def test_half_precision_features_are_read() -> None:
    ecn = EmbeddingCorrectionNetwork(16, 8, hidden=32, heads=4).eval()
    tokens, mask = padded(4, 5, 16, torch.float32)
    inputs = (torch.randn(4, 8), tokens, mask, torch.randn(4, 16), torch.randn(4, 16))
    halves = [x.half() if x.is_floating_point() else x for x in inputs]
    assert ecn(*halves).dtype == torch.float32
    torch.testing.assert_close(ecn(*halves), ecn(*inputs), rtol=1e-2, atol=1e-2)


def test_masked_mean() -> None:
    tokens, mask = padded(4, 6, 3, torch.float64)
    expected = torch.stack([row[valid].mean(0) for row, valid in zip(tokens, mask, strict=True)])
    torch.testing.assert_close(masked_mean(tokens, mask), expected)


def scorer(layers: int = 3, dim: int = 24) -> ScoreCorrectionNetwork:
    torch.manual_seed(0)
    scn = ScoreCorrectionNetwork(dim, layers, context=16).double().eval()
    for layer in scn.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.3)
            nn.init.normal_(layer.bias, std=0.3)
    return scn


@pytest.mark.parametrize("images", [1, 5, 70], ids=["one", "few", "more than the cross layer is wide"])
@pytest.mark.parametrize("texts", [1, 7])
@pytest.mark.parametrize("block", [1, 6, 16384])
def test_score_matrix_equals_pairs(images: int, texts: int, block: int) -> None:
    scn = scorer()
    i = F.normalize(torch.randn(images, 24, dtype=torch.float64), dim=-1)
    t = F.normalize(torch.randn(texts, 3, 24, dtype=torch.float64), dim=-1)
    expected = torch.stack([scn(i, t[j].expand(images, -1, -1)) for j in range(texts)], 1)
    torch.testing.assert_close(scn.matrix(i, t, block), expected, rtol=1e-11, atol=1e-11)
    cosine = i @ t[:, -1].T
    torch.testing.assert_close(scn.matrix(i, t, block, strength=0.5), (cosine + expected) / 2, rtol=1e-11, atol=1e-11)


def test_score_is_cosine_plus_a_bounded_correction() -> None:
    scn = scorer()
    nn.init.normal_(scn.head[-1].weight, std=100)
    i = F.normalize(torch.randn(500, 24, dtype=torch.float64), dim=-1)
    t = F.normalize(torch.randn(500, 3, 24, dtype=torch.float64), dim=-1)
    correction = scn.correction(i, t)
    assert correction.abs().max() <= 0.2
    assert correction.abs().max() > 0.19
    torch.testing.assert_close(scn(i, t), (i * t[:, -1]).sum(-1) + correction)


def test_score_matrix_of_nothing() -> None:
    scn = scorer()
    assert scn.matrix(torch.zeros(0, 24).double(), torch.zeros(4, 3, 24).double()).shape == (0, 4)
    assert scn.matrix(torch.zeros(4, 24).double(), torch.zeros(0, 3, 24).double()).shape == (4, 0)


def test_score_gradients_flow_into_the_corrected_embedding() -> None:
    scn = ScoreCorrectionNetwork(24, 2, context=16)
    contexts = F.normalize(torch.randn(5, 2, 24), dim=-1).requires_grad_()
    scn(F.normalize(torch.randn(5, 24), dim=-1), contexts).sum().backward()
    assert contexts.grad is not None
    assert (contexts.grad[:, -1].abs().sum(-1) > 0).all()
