"""The configuration: defaults filled in from an encoder, mistakes refused, JSON there and back."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from typing import Any

import pytest

from clipmend.negation.config import PeakPatchConfig, default_layers
from helpers import RandomDualEncoder


@dataclasses.dataclass
class Suggestion:
    """The part of a diagnosis that a config reads."""

    peak: int
    anchor: int
    scn_layers: tuple[int, ...]


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        (12, (6, 8, (8, 12))),
        (6, (2, 4, (4, 6))),
        (24, (14, 16, (16, 24))),
        (3, (1, 2, (2, 3))),
        (4, (1, 3, (3, 4))),
        (2, (1, 1, (1, 2))),
        (1, (1, 1, (1,))),
    ],
)
def test_default_layers(blocks: int, expected: tuple[int, int, tuple[int, ...]]) -> None:
    assert default_layers(blocks) == expected


@pytest.mark.parametrize("blocks", range(1, 40))
def test_default_layers_are_always_allowed(blocks: int) -> None:
    anchor, peak, scn_layers = default_layers(blocks)
    assert 1 <= anchor <= peak <= blocks
    assert blocks < 3 or anchor < peak < blocks
    PeakPatchConfig(anchor=anchor, peak=peak, scn_layers=scn_layers)


def test_no_blocks() -> None:
    with pytest.raises(ValueError, match="no blocks"):
        default_layers(0)


def test_every_field_is_documented() -> None:
    documented = PeakPatchConfig.__doc__ or ""
    for field in dataclasses.fields(PeakPatchConfig):
        assert re.search(rf"^        {field.name}: \S", documented, re.MULTILINE), field.name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"anchor": 9, "peak": 8}, "anchor must not lie after the peak"),
        ({"peak": 0}, "layers start at 1"),
        ({"scn_layers": (12, 8)}, "ascending"),
        ({"scn_layers": (8, 8)}, "ascending"),
        ({"scn_layers": ()}, "ascending"),
        ({"peak": 9, "scn_layers": (4, 8)}, "before the peak"),
        ({"objective": "best"}, "truthful, released"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"text_width": 30}, "heads must divide"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"grad_clip": 0}, "grad_clip must be above 0"),
        ({"bound": float("nan")}, "bound must be a finite number"),
        ({"scn_weight": -1}, "scn_weight must not be below 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_mistakes_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PeakPatchConfig(**values)


def test_resolved_takes_defaults_then_diagnosis_then_own_layers() -> None:
    encoder = RandomDualEncoder(layers=6)
    plain = PeakPatchConfig().resolved(encoder)
    assert (plain.anchor, plain.peak, plain.scn_layers, plain.text_width, plain.embed_dim) == (2, 4, (4, 6), 24, 16)
    assert plain.is_resolved
    assert not PeakPatchConfig().is_resolved
    suggested = PeakPatchConfig().resolved(encoder, Suggestion(peak=5, anchor=2, scn_layers=(2, 5, 6)))
    assert (suggested.anchor, suggested.peak, suggested.scn_layers) == (2, 5, (2, 5, 6))
    own = PeakPatchConfig(peak=3).resolved(encoder, Suggestion(peak=5, anchor=4, scn_layers=(5, 6)))
    assert (own.anchor, own.peak, own.scn_layers) == (1, 3, (3, 6))
    assert own.resolved(encoder) == own


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"peak": 7, "scn_layers": (7,)}, "has 6 text layers"),
        ({"scn_layers": (4, 5)}, "end with the last text layer"),
        ({"text_width": 32}, "text_width is 32 in the config but 24"),
        ({"embed_dim": 32}, "embed_dim is 32 in the config but 16"),
    ],
)
def test_resolved_checks_the_encoder(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PeakPatchConfig(**values).resolved(RandomDualEncoder(layers=6))


def test_json_there_and_back() -> None:
    config = PeakPatchConfig(anchor=2, peak=4, scn_layers=(2, 4, 6), epochs=None, steps=7, eos_only=True, objective="released")
    assert PeakPatchConfig.from_dict(json.loads(config.to_json())) == config


def test_unknown_and_wrong_entries_name_their_source() -> None:
    with pytest.raises(ValueError, match=r"here\.json: unknown fields colour, heat"):
        PeakPatchConfig.from_dict({"heat": 1, "colour": 2}, "here.json")
    with pytest.raises(ValueError, match=r"here\.json: .*dropout"):
        PeakPatchConfig.from_dict({"dropout": 2.0}, "here.json")
    with pytest.raises(ValueError, match=r"here\.json: "):
        PeakPatchConfig.from_dict({"hidden": "wide"}, "here.json")


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, clipmend.negation as n; n.PeakPatchConfig; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_of_the_package() -> None:
    import clipmend.negation

    assert "PeakPatch" in dir(clipmend.negation)
    with pytest.raises(AttributeError, match="Peakpatch"):
        clipmend.negation.Peakpatch  # noqa: B018


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", "3"), ("steps", 2.5), ("steps", True), ("steps", None), ("hidden", 16.0), ("seed", -1), ("seed", None),
        ("gate", "yes"),
        ("use_scn", 0), ("dropout", None), ("dropout", float("nan")), ("scn_layers", "24"), ("scn_layers", [2.5, 4]), ("peak", 1.5),
        ("logit_scale", 0), ("logit_scale", float("nan")), ("weight_decay", float("inf")), ("guidance_until", "x"),
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_named(name, value):
    with pytest.raises(ValueError, match=rf"^my\.json: {name} must"):
        PeakPatchConfig.from_dict({name: value}, source="my.json")


def test_numpy_numbers_can_be_saved():
    import numpy as np

    config = PeakPatchConfig(
        peak=np.int64(4), dropout=np.float32(0.5), scn_layers=np.array([4, 6]).tolist(), grad_clip=float("inf")
    )
    assert PeakPatchConfig.from_dict(config.to_dict()) == config
    assert '"peak": 4' in config.to_json()


def test_no_heads_are_told_before_anything_is_divided_by_them():
    with pytest.raises(ValueError, match="heads must be at least 1"):
        PeakPatchConfig(text_width=16, heads=0)
