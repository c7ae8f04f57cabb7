"""Guidance targets against the arithmetic they stand for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from clipmend.data.phrases import photo_of, without_implied
from clipmend.data.records import Caption
from clipmend.negation.guidance import guidance_targets
from helpers import RandomDualEncoder

CAPTIONS = [
    Caption("a photo of a cup", 0, "affirmative", ("cup",)),
    Caption("no cat", 0, "negative", (), ("cat",), "no"),
    Caption("a red cup on a beach but no cat", 0, "hybrid", ("cup", "red cup", "at beach"), ("cat",), "no"),
    Caption("neither a cat nor a dog", 0, "negative", (), ("cat", "dog"), "neither nor"),
]


def test_targets_are_the_arithmetic_of_the_true_parse():
    encoder = RandomDualEncoder()
    targets = guidance_targets(encoder, CAPTIONS, hybrid_strength=0.6)
    atoms = ["at beach", "cat", "dog", "red cup"]
    vectors = dict(zip(atoms, encoder.encode_texts([photo_of([a]) for a in atoms]), strict=True))
    mean = (vectors["at beach"] + vectors["red cup"]) / 2  # what is asserted
    assert targets[0].abs().max() == 0
    torch.testing.assert_close(targets[1], F.normalize(mean - (vectors["cat"] - mean), dim=0))
    said = encoder.encode_texts(["a photo of a red cup at the beach"])[0]
    torch.testing.assert_close(targets[2], F.normalize(said - 0.6 * (vectors["cat"] - mean), dim=0))
    torch.testing.assert_close(targets[3], F.normalize(mean - (vectors["cat"] + vectors["dog"] - 2 * mean), dim=0))


def test_nothing_denied_needs_no_forward_pass():
    encoder = RandomDualEncoder()
    assert guidance_targets(encoder, CAPTIONS[:1]).abs().max() == 0
    assert encoder.text_passes == 0


@pytest.mark.parametrize(
    ("atoms", "left"),
    [
        (("cup", "red cup"), ["red cup"]),
        (("cup", "red cup", "small red cup", "cat"), ["small red cup", "cat"]),
        (("large cat", "red cat"), ["large cat", "red cat"]),
        (("at beach", "at beach"), ["at beach"]),
        ((), []),
    ],
)
def test_implied_atoms_are_left_out(atoms, left):
    assert without_implied(atoms) == left
