"""What a fit is trained on: images and noun sets, each with its features, its guidance and a part held out."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import NegationData
from clipmend.negation.borrowed import with_borrowed_denials
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.features import TextFeatures, extract_image_features, extract_text_features
from clipmend.negation.guidance import kept_guidance
from clipmend.negation.sampling import Source, split_images
from clipmend.negation.text_only import text_only_data
from clipmend.negation.validation import Validation

__all__ = ["Preparation", "digest_of"]

CAPTIONS, TEXT_ONLY = "captions", "text-only-texts"
"""Folders of the features of the data's captions and of those of noun sets."""


class Preparation:
    """Makes the sources of a fit.

    Args:
        encoder: the frozen backbone.
        config: hyper-parameters, resolved.
        directory: keep features and guidance in ``directory / "features"``; ``None`` keeps nothing.
        progress: show progress bars.
    """

    def __init__(self, encoder: DualEncoder, config: PeakPatchConfig, directory: Path | None, progress: bool) -> None:
        self.encoder, self.config, self.directory, self.progress = encoder, config, directory, progress

    def sources(
        self,
        data: NegationData | str | os.PathLike[str] | None,
        nouns: Sequence[str] | int | None,
        image_embeddings: Tensor | None,
    ) -> tuple[dict[str, Source], dict[str, Validation]]:
        """``"images"`` and ``"text"``, whichever the fit has: what is trained on, and what is held out. Arguments as of ``fit``."""
        config = self.config
        sources: dict[str, Source] = {}
        held: dict[str, Validation] = {}
        # The published objective knows no noun sets.
        with_nouns = data is None or (config.text_only_weight > 0 and config.objective == "truthful")
        if nouns is not None and not with_nouns:
            raise ValueError("nouns are for text-only pairs, which this fit has none of (text_only_weight=0, or not truthful)")
        image_mean = None
        reserved: frozenset[str] = frozenset()
        if data is not None:
            data = data if isinstance(data, NegationData) else self._read(Path(data))
            images = self._unit(image_embeddings if image_embeddings is not None else self._image_features(data), data)
            image_mean, reserved = images.mean(0), data.reserved
            own = len(data.captions)
            if with_nouns and config.borrowed_denials > 0:
                data = with_borrowed_denials(data, nouns, share=config.borrowed_denials, exclude=reserved)
            groups = None if data.groups is None else np.asarray(data.groups)
            sources["images"], held["images"] = self._source(CAPTIONS, data, images, groups, own)
        elif image_embeddings is not None:
            image_mean = self._unit(image_embeddings, None).mean(0)
        if with_nouns:
            # The sets are data: seed 0 whatever the seed of the training.
            noun_data, stand_ins, worlds = text_only_data(
                self.encoder, nouns, count=config.text_only_sets, seed=0, image_mean=image_mean,
                exclude=reserved, progress=self.progress,
            )  # fmt: skip
            sources["text"], held["text"] = self._source(TEXT_ONLY, noun_data, stand_ins, worlds, len(noun_data.captions))
        return sources, held

    def _read(self, folder: Path) -> NegationData:
        from clipmend.data.purpose import check_for_fit
        from clipmend.data.scenes import negation_data_from_folder

        for note in check_for_fit(folder, self.config.objective):
            warnings.warn(note, stacklevel=5)
        return negation_data_from_folder(folder)

    def _unit(self, embeddings: Tensor, data: NegationData | None) -> Tensor:
        """Float32 unit rows, after a check of shape and values; ``data`` names the images in an error."""
        name = "image_embeddings" if data is None else data.name
        embeddings = torch.as_tensor(embeddings).float().cpu()
        if embeddings.ndim != 2 or embeddings.shape[1] != self.encoder.embed_dim or not len(embeddings):
            raise ValueError(
                f"{name}: image embeddings must be [images, {self.encoder.embed_dim}] for {self.encoder.name}, "
                f"not {list(embeddings.shape)}"
            )
        finite = torch.isfinite(embeddings).all(1)
        if not finite.all():
            bad = int((~finite).nonzero()[0])
            shown = f" ({data.images[bad]})" if data is not None and bad < len(data.images) else ""
            raise ValueError(f"{name}: the embedding of image {bad}{shown} holds NaN or infinity")
        return F.normalize(embeddings, dim=-1)

    def _folder(self, name: str) -> Path | None:
        return None if self.directory is None else self.directory / "features" / name

    def _image_features(self, data: NegationData) -> Tensor:
        return torch.as_tensor(
            np.asarray(extract_image_features(self.encoder, data.images, directory=self._folder("images"), progress=self.progress))
        )

    def _text_features(self, folder: str, texts: Sequence[str]) -> TextFeatures:
        config = self.config
        assert config.anchor is not None
        assert config.peak is not None
        assert config.scn_layers is not None
        return extract_text_features(
            self.encoder, texts, anchor=config.anchor, peak=config.peak, scn_layers=config.scn_layers,
            directory=self._folder(folder), progress=self.progress,
        )  # fmt: skip

    def _source(
        self, folder: str, data: NegationData, images: Tensor, groups: np.ndarray | None, own: int
    ) -> tuple[Source, Validation]:
        """``own`` captions are the data's; those behind them are borrowed."""
        if not any(c.denies for c in data.captions):
            raise ValueError(f"{data.name}: not one caption denies anything; there is nothing to learn negation from")
        config = self.config
        written = [c.text for c in data.captions]
        texts = self._text_features(folder, written[:own])
        if written[own:]:  # apart, so that the features of the data's captions are those that `clipmend features` makes
            texts = texts.followed_by(self._text_features(f"{folder}-borrowed", written[own:]))
        if groups is None:
            train, out = split_images(len(images), config.validation_fraction, config.seed)
        else:  # whole worlds are held out, so that no noun set of a held-out world was trained on
            names = np.unique(groups)
            kept, left = split_images(len(names), min(config.validation_fraction, 4 / max(len(names), 1)), config.seed)
            train, out = np.flatnonzero(np.isin(groups, names[kept])), np.flatnonzero(np.isin(groups, names[left]))
        targets = None
        if config.guidance_weight > 0 and config.objective == "truthful":
            strength = config.text_only_strength if folder == TEXT_ONLY else config.guidance_strength
            targets = kept_guidance(self.encoder, data.captions, strength, self._folder(f"{folder}-guidance"), self.progress)
        training = Source(data, images, texts, train, groups, targets, balanced=config.objective == "truthful")
        return training, Validation(Source(data, images, texts, out, groups), seed=config.seed)


def digest_of(sources: Mapping[str, Source]) -> str:
    """SHA-256 of the captions and the image embeddings of all sources."""
    digest = hashlib.sha256()
    for name, source in sorted(sources.items()):
        digest.update(name.encode())
        for caption in source.data.captions:
            digest.update(f"{caption.image}\t{caption.text}\t{caption.asserts}\t{caption.denies}\n".encode())
        digest.update(np.ascontiguousarray(source.images.numpy()).tobytes())
    return digest.hexdigest()
