"""``PhotosEncoder``: real photographs in a text encoder's own space, without any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from clipmend.backbones.fingerprint import digest_facts
from clipmend.backbones.photos.classes import FRAME, class_vectors, consensus, load_centre, load_class_vectors
from clipmend.backbones.photos.classifiers import Classifier, EfficientNetLite0, TransformersClassifier
from clipmend.backbones.text import TextAndImageEncoder
from clipmend.backbones.tower import TextTower

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["TOP_K", "Centred", "PhotosEncoder", "load_photos"]

TOP_K = 10  # classes that speak for an image, as in the paper


class Centred(nn.Module):
    """The text side's projection: ``f(t) = m(t) - centre``, ``m`` the encoder's own mean-pooled embedding."""

    def __init__(self, centre: Tensor) -> None:
        super().__init__()
        self.register_buffer("centre", centre)
        self.centre: Tensor

    def forward(self, pooled: Tensor) -> Tensor:
        """``[..., D]`` -> ``[..., D]``."""
        return pooled - self.centre


class PhotosEncoder(TextAndImageEncoder):
    """A photograph as the mean of what its likely classes are called (ConSE).

    The ten most probable classes of a frozen classifier weigh the text embeddings of their names (each the mean over its
    synonyms, in the frame "a photo of a ..."); the mean over all classes is taken off images and texts alike, for it says
    nothing about any of them. The text side is all-MiniLM-L6-v2, the space its own.

    What it cannot do: it knows the classifier's classes and no others (1,000 for the bundled one: many animals, much
    household, no people), nor colours, counts or relations. Where there is a network, a real CLIP is the better choice.

    Source: Norouzi et al., "Zero-Shot Learning by Convex Combination of Semantic Embeddings", ICLR 2014.

    Args:
        tower: the text half, its projection a :class:`Centred`.
        classifier: gives class probabilities.
        vectors: ``[C, D]`` the classes in the joint space, centred.
        name: what :func:`clipmend.load` was given.
        top_k: classes that speak for an image.
    """

    def __init__(
        self, tower: TextTower, classifier: Classifier, vectors: Tensor, *, name: str = "photos", top_k: int = TOP_K
    ) -> None:
        super().__init__(tower, name=name, logit_scale=100.0)
        if len(vectors) != len(classifier.names):
            raise ValueError(f"{len(vectors)} class vectors for a classifier of {len(classifier.names)} classes")
        self.classifier = classifier
        self.class_names = classifier.names
        self.class_vectors = vectors.to(classifier.device)
        self.top_k = top_k

    def _encode_image_batch(self, images: list[Image]) -> Tensor:
        return consensus(self.classifier.probabilities(images), self.class_vectors, self.top_k)

    def _image_digest(self) -> str:
        return digest_facts({"classifier": self.classifier.digest(), "frame": FRAME, "top_k": self.top_k})


def load_photos(classifier: str | None = None, device: torch.device | str | None = None) -> PhotosEncoder:
    """Load the encoder for real photographs.

    Args:
        classifier: a hub id or folder of a transformers image classifier (``"google/vit-base-patch16-224"``); ``None``: the
            bundled EfficientNet-Lite0 (extra ``demo``), which needs no network.
        device: where to put it (default: the CPU).

    Returns:
        A frozen :class:`PhotosEncoder`, named ``"photos"`` or ``"photos:CLASSIFIER"``.

    Raises:
        ImportError: the bundled classifier's packages are not installed.
        OSError: a model can be neither found nor fetched.
        ValueError: weights that are not the official ones, or a classifier without class names.
    """
    from clipmend.backbones.minilm import load_minilm

    centre = load_centre()
    tower = load_minilm(device, projection=Centred(centre))
    if classifier is None:
        return PhotosEncoder(tower, EfficientNetLite0(device), load_class_vectors())
    from clipmend.backbones.text import TextOnlyEncoder

    chosen = TransformersClassifier(classifier, device)
    plain = TextOnlyEncoder(tower, name="photos")
    # The projection takes the shipped centre off already; what is left of these classes' own mean goes too.
    vectors, _ = class_vectors(chosen.names, lambda texts: plain.encode_texts(texts, normalize=False))
    return PhotosEncoder(tower, chosen, vectors, name=f"photos:{classifier}")
