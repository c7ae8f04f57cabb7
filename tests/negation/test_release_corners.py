"""``import_release`` on files that somebody made to break it, or that broke by themselves."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from clipmend.negation import import_release
from helpers import RandomDualEncoder
from negation.test_release import ECN_CONFIG, SCN_CONFIG, Corrector, Scorer, W, build, saved

HUGE = torch.zeros(1).half().expand(10**5, 10**5)  # 2 bytes on disk, 40 GB as it says
ODD = {
    "huge": (HUGE, r"states 10,000,000,000 numbers \(\[100000, 100000\]\), but the file holds 1 of them"),
    "sparse": (torch.eye(3).to_sparse(), "is no plain array but torch.sparse_coo"),
    "meta": (torch.zeros(3, 3, device="meta"), "without numbers"),
    "complex": (torch.zeros(3, 3, dtype=torch.complex64), "complex numbers"),
    "whole": (torch.zeros(3, 3, dtype=torch.int64), "whole numbers"),
}


@pytest.fixture
def scn(tmp_path: Path) -> Path:
    return saved(build(Scorer, 1), tmp_path / "scn.pt", SCN_CONFIG)


def ecn_file(path: Path, config: Any = None, **weights: Tensor) -> Path:
    named = {name.replace("__", "."): tensor for name, tensor in weights.items()}
    state = {**build(Corrector).state_dict(), **named}
    torch.save({"model_state_dict": state, "config": {**ECN_CONFIG, **(config or {})}}, path)
    return path


@pytest.mark.parametrize("kind", list(ODD))
def test_weights_that_are_no_plain_arrays(tmp_path: Path, scn: Path, kind: str) -> None:
    tensor, message = ODD[kind]
    with pytest.raises(ValueError, match=rf"ecn\.pt: mlp\.0\.weight .*{message}"):
        import_release(ecn_file(tmp_path / "ecn.pt", mlp__0__weight=tensor), scn)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0,)], ids=str)
def test_weights_of_other_dimensions(tmp_path: Path, scn: Path, shape: tuple[int, ...]) -> None:
    """Every weight of both networks in turn: an error that names the file, never another."""
    tensor = torch.zeros(shape)
    networks = {"ecn": build(Corrector).state_dict(), "scn": build(Scorer, 1).state_dict()}
    for side, state in networks.items():
        for name in state:
            if name == "log_alpha" and tensor.numel() == 1:
                continue
            path = tmp_path / "odd.pt"
            torch.save({"model_state_dict": {**state, name: tensor}, "config": ECN_CONFIG if side == "ecn" else SCN_CONFIG}, path)
            files = (path, scn) if side == "ecn" else (ecn_file(tmp_path / "ecn.pt"), path)
            with pytest.raises(ValueError, match=r"\.pt|scn_layers are"):
                import_release(*files, encoder=RandomDualEncoder(width=W, embed_dim=W))


@pytest.mark.parametrize(
    ("side", "entry", "value"),
    [
        ("ecn", "target_layer", "3"), ("ecn", "num_heads", None), ("ecn", "dropout", 2), ("ecn", "use_gate", torch.zeros(2)),
        ("scn", "layers", 3), ("scn", "layers", torch.tensor([2, 4])), ("scn", "layers", "24"),
        ("scn", "max_correction", float("nan")), ("scn", "max_correction", "0.2"),
    ],
)  # fmt: skip
def test_settings_of_other_types(tmp_path: Path, side: str, entry: str, value: Any) -> None:
    ecn = ecn_file(tmp_path / "ecn.pt", {entry: value} if side == "ecn" else None)
    scn = saved(build(Scorer, 1), tmp_path / "scn.pt", {**SCN_CONFIG, **({entry: value} if side == "scn" else {})})
    with pytest.raises(ValueError, match=rf"{side}\.pt"):
        import_release(ecn, scn)


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("how", ["zip", "legacy", 2, 4])
def test_a_file_that_would_run_code(tmp_path: Path, scn: Path, how: str | int) -> None:
    content = {"model_state_dict": build(Corrector).state_dict(), "config": ECN_CONFIG, "x": Evil(tmp_path / "was run")}
    path = tmp_path / "ecn.pt"
    if isinstance(how, int):
        path.write_bytes(pickle.dumps({"x": content["x"]}, protocol=how))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "zip")
    for files in ((path, scn), (ecn_file(tmp_path / "good.pt"), path)):
        with pytest.raises(ValueError, match=r"ecn\.pt (holds Python objects|is damaged)"):
            import_release(*files)
    assert not (tmp_path / "was run").exists()


def test_config_of_another_type(tmp_path: Path, scn: Path) -> None:
    with pytest.raises(TypeError, match="config must be a PeakPatchConfig, not dict"):
        import_release(ecn_file(tmp_path / "ecn.pt"), scn, {"peak": 3})  # type: ignore[arg-type]
