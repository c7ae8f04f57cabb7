"""How any process comes to the same units of work: from the job, in words, and the tables that the survey left in the folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipmend.features.survey import DataSource, Place, StoredImages, read_captions, read_places
from clipmend.negation.features import extract_image_features, extract_text_features
from clipmend.negation.units import Maker, UnitFolder, planned

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder

__all__ = ["CAPTIONS", "IMAGES", "Job", "Layers", "Worker", "fixed_threads"]

IMAGES, CAPTIONS = "images", "captions"


@dataclass(frozen=True)
class Layers:
    """The layers whose states a fit reads; see :class:`clipmend.PeakPatchConfig`."""

    anchor: int
    peak: int
    scn_layers: tuple[int, ...]


@dataclass(frozen=True)
class Job:
    """What to make, in words that another process can follow.

    Args:
        model: the encoder's name; the encoder itself for a job that stays in its process.
        device: where it runs.
        folder: where the features go, with the survey's tables.
        source: where the images are.
        root: folder that names of image files start from.
        layers: for captions.
        threads: threads of the arithmetic in each process.
        readers: threads in each process that read and decode images.
        image_batch, text_batch: images and captions a forward pass.
        image_unit, text_unit: images and captions a unit.
        max_pixels, draft: see :func:`clipmend.negation.image_features.extract_image_features`.
    """

    model: Any
    device: str | None
    folder: Path
    source: DataSource
    root: Path | None
    layers: Layers | None
    threads: int
    readers: int | None
    image_batch: int
    text_batch: int
    image_unit: int
    text_unit: int
    max_pixels: int | None
    draft: bool

    def image_plan(self, encoder: DualEncoder, places: Sequence[Place]) -> tuple[UnitFolder, Maker]:
        """Units of image features, and how to make one."""
        return planned(lambda: self.image_features(encoder, places))

    def text_plan(self, encoder: DualEncoder, captions: Sequence[str]) -> tuple[UnitFolder, Maker]:
        """Units of text features, and how to make one."""
        assert self.layers is not None
        layers = self.layers
        return planned(
            lambda: extract_text_features(
                encoder, captions, anchor=layers.anchor, peak=layers.peak, scn_layers=layers.scn_layers,
                directory=self.folder / CAPTIONS, batch_size=self.text_batch, shard_size=self.text_unit, on_long="truncate",
            )
        )  # fmt: skip

    def image_features(self, encoder: DualEncoder, places: Sequence[Place]) -> Any:
        """Make the image features, or, within :func:`~clipmend.negation.units.planned`, plan them."""
        return extract_image_features(
            encoder, StoredImages(self.source, places, self.root), self.folder / IMAGES,
            batch_size=self.image_batch, shard_size=self.image_unit, on_error="skip", digests=[place.sha256 for place in places],
            max_pixels=self.max_pixels, draft=self.draft, workers=self.readers,
        )  # fmt: skip


class Worker:
    """Makes units of a job; loads the encoder and reads the tables when it first needs them.

    Args:
        job: the job.
        folder: the working directory that the job's paths start from.
    """

    def __init__(self, job: Job, folder: str | None = None) -> None:
        self.job = job
        if folder is not None and os.path.isdir(folder):
            os.chdir(folder)
        self._encoder: DualEncoder | None = None
        self._plans: dict[str, tuple[UnitFolder, Maker]] = {}

    def make(self, kind: str, unit: str) -> None:
        """Make one unit.

        Args:
            kind: :data:`IMAGES` or :data:`CAPTIONS`.
            unit: its id.

        Raises:
            ValueError: the unit cannot be made, or this machine would make another one than the manifest promises.
        """
        with fixed_threads(self.job.threads):
            if kind not in self._plans:
                self._plans[kind] = self._plan(kind)
            folder, make = self._plans[kind]
            (chosen,) = [u for u in folder.manifest["units"] if u["id"] == unit]
            folder.make(chosen, make)

    def _plan(self, kind: str) -> tuple[UnitFolder, Maker]:
        import clipmend

        if self._encoder is None:
            self._encoder = clipmend.load(self.job.model, device=self.job.device)
        if kind == IMAGES:
            return self.job.image_plan(self._encoder, read_places(self.job.folder / f"{IMAGES}.jsonl"))
        return self.job.text_plan(self._encoder, read_captions(self.job.folder / f"{CAPTIONS}.jsonl")[0])


@contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Arithmetic with ``count`` threads, since their number shows in the last bits."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Run = Callable[[Job, Sequence[tuple[str, str]], Callable[[], None]], None]
"""Makes units, (kind, id) each, and calls the last argument after every one."""
