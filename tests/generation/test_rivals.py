"""What each way to leave a thing out draws from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.generation.prior import LinearPrior
from clipmend.generation.prompts import generation_prompts
from clipmend.generation.rivals import METHODS, conditions
from clipmend.generation.sampling import SceneGenerator
from helpers import RandomDualEncoder

pytest.importorskip("diffusers")

from clipmend.generation.decoder import DecoderConfig, SceneDecoder  # needs what was just looked for


class Turned(RandomDualEncoder):
    """Stands for a mended encoder: embeddings turned round."""

    def encode_texts(self, texts: Sequence[str], **options: Any) -> Tensor:  # type: ignore[override]
        return -super().encode_texts(texts, **options)


@pytest.fixture(scope="module")
def generator() -> SceneGenerator:
    prior = LinearPrior(16, 16)
    prior.weight.copy_(torch.eye(16))  # estimates are the normalised text embeddings
    shape = DecoderConfig(embed_dim=16, image_size=16, components=4, width=16, heads=2, layers=1, tokens=1, embedding=16, refiner=0)
    return SceneGenerator(SceneDecoder(shape), prior)


def test_each_method(generator: SceneGenerator) -> None:
    plain = RandomDualEncoder()
    prompts = generation_prompts("hybrid", 5)
    own = plain.encode_texts([prompt.text for prompt in prompts])
    found = {method: conditions(method, generator, plain, prompts, mended=Turned()) for method in METHODS}
    assert torch.allclose(found["plain"][0].vectors, own, atol=1e-6)
    assert torch.allclose(found["mended"][0].vectors, -own, atol=1e-6)
    assert all(condition.estimated for condition, _ in found.values())
    assert [away is None for _, away in found.values()] == [True, True, False, True, True]
    from clipmend.data.phrases import photo_of

    wanted = plain.encode_texts([photo_of(prompt.asserts) for prompt in prompts])
    denied = torch.stack([plain.encode_texts([photo_of([atom]) for atom in prompt.denies]).sum(0) for prompt in prompts])
    assert torch.allclose(found["query arithmetic"][0].vectors, F.normalize(wanted - 0.5 * denied, dim=-1), atol=1e-5)
    condition, away = found["negative prompt"]
    assert away is not None
    assert torch.allclose(condition.vectors, wanted, atol=1e-5)
    assert torch.equal(found["denials left out"][0].vectors, condition.vectors)
    single = [row for row, prompt in enumerate(prompts) if len(prompt.denies) == 1]
    assert torch.allclose(away.vectors[single], F.normalize(denied[single], dim=-1), atol=1e-5)


def test_affirmative_prompts_are_the_same_for_every_rival(generator: SceneGenerator) -> None:
    plain, prompts = RandomDualEncoder(), generation_prompts("affirmative", 4)
    base, _ = conditions("plain", generator, plain, prompts)
    for method in ("negative prompt", "query arithmetic", "denials left out"):
        condition, away = conditions(method, generator, plain, prompts)
        assert torch.allclose(condition.vectors, base.vectors, atol=1e-6)
        assert away is None


def test_refusals(generator: SceneGenerator) -> None:
    plain = RandomDualEncoder()
    mixed = [*generation_prompts("affirmative", 1), *generation_prompts("hybrid", 1)]
    with pytest.raises(ValueError, match="some prompts deny"):
        conditions("negative prompt", generator, plain, mixed)
    with pytest.raises(ValueError, match="needs an encoder with a patch"):
        conditions("mended", generator, plain, mixed)
    with pytest.raises(ValueError, match="unknown method"):
        conditions("magic", generator, plain, mixed)
