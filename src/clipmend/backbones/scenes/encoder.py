"""Load the bundled ``"scenes"`` backbone."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from clipmend.backbones.fingerprint import digest_weights, named_weights
from clipmend.backbones.minilm import load_minilm
from clipmend.backbones.scenes.model import ImageTower, ImageTowerConfig, pixels_of
from clipmend.backbones.text import TextAndImageEncoder
from clipmend.backbones.tower import TextTower

__all__ = ["WEIGHTS", "ScenesEncoder", "load_scenes"]

WEIGHTS = Path(__file__).parent / "weights"


class ScenesEncoder(TextAndImageEncoder):
    """all-MiniLM-L6-v2 with a linear map, beside an :class:`ImageTower`.

    Args:
        tower: the text half, projection included.
        image_tower: the image half.
        logit_scale: multiplier of the cosine that training ended with.
        device: where both are.
    """

    def __init__(
        self, tower: TextTower, image_tower: ImageTower, logit_scale: float, device: torch.device | str | None = None
    ) -> None:
        super().__init__(tower, name="scenes", logit_scale=logit_scale, device=device)
        self.image_tower = image_tower.to(self.device).eval().requires_grad_(False)

    def _encode_image_batch(self, images: list[Image.Image]) -> Tensor:
        return self.image_tower(pixels_of(images, self.image_tower.config.image_size).to(self.device))

    def _image_digest(self) -> str:
        # Preprocessing has one free choice, the input size.
        return digest_weights(named_weights(self.image_tower), {"image_size": self.image_tower.config.image_size})

    def patch_embeddings(self, images: list[Image.Image]) -> Tensor:
        """``[B, P, D]``: every 8 x 8 patch in the joint space, not normalised, on the CPU."""
        with torch.inference_mode():
            return self.image_tower.patch_embeddings(pixels_of(images, self.image_tower.config.image_size).to(self.device)).cpu()


def load_scenes(device: str | torch.device | None = None, folder: str | Path | None = None) -> ScenesEncoder:
    """Load the bundled backbone.

    Args:
        device: where to put it (default: the CPU).
        folder: another training run's output instead of the bundled weights.

    Raises:
        OSError: the text encoder (extra ``demo``) or the weights are missing.
        ValueError: the weights do not fit.
    """
    where = Path(folder) if folder is not None else WEIGHTS
    try:
        config = json.loads((where / "config.json").read_text(encoding="utf-8"))
        weights = {name: value.float() for name, value in load_file(where / "model.safetensors").items()}
    except FileNotFoundError as error:
        raise OSError(
            f"{error.filename or where}: no trained backbone there; make one with python -m clipmend.backbones.scenes.train"
        ) from error
    image_tower = ImageTower(ImageTowerConfig(**config["image_tower"]))
    projection = nn.Linear(weights["text_projection.weight"].shape[1], weights["text_projection.weight"].shape[0])
    try:
        image_tower.load_state_dict(_part(weights, "image."))
        projection.load_state_dict(_part(weights, "text_projection."))
    except RuntimeError as error:
        raise ValueError(f"{where / 'model.safetensors'} does not fit its config.json: {error}") from error
    tower = load_minilm(device, projection=projection.requires_grad_(False).to(device or "cpu"))
    return ScenesEncoder(tower, image_tower, min(100.0, weights["log_scale"].exp().item()), device=device)


def _part(weights: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
