"""What a reproduction will take: counts, disk, hours, from a measured rate of a few batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from clipmend.backbones.base import DualEncoder
from clipmend.negation.config import PeakPatchConfig
from clipmend.negation.networks import EmbeddingCorrectionNetwork, ScoreCorrectionNetwork
from clipmend.reproduce.inputs import Counts

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["GPU_FLOPS", "Plan", "Rates", "Work", "make_plan", "matmul_rate", "measure_rates", "work_of"]

GPU_FLOPS = 10e12
"""Float32 operations a second that a GPU is taken to sustain where none is there to measure: half of an A100's peak."""
_DECODERS = 8
"""Threads that decode images beside a GPU, in the estimate."""
_TEXTS_A_SET = 9.4
_TRUTHFUL_MORE = 9  # statements and options an image beside its captions, plain and denied: see Denials
_TABLE_BYTES = 400
_BUILDING = {"released": 0.001, "truthful": 0.005}
"""Seconds an image that captions and questions take to make and to read back (0.0007 and 0.003 measured on drawn scenes)."""


@dataclass(frozen=True)
class Rates:
    """What was measured on one device.

    Args:
        device: ``"cpu"`` or ``"cuda"``, ...
        images, texts: per second through the encoder.
        decoded: images a second decoded, without the encoder.
        tokens: mean valid tokens of a caption.
        step: seconds that a caption of a batch costs in the networks, forward and back.
        gather: seconds that its features take out of memory and onto the device.
    """

    device: str
    images: float
    texts: float
    decoded: float
    tokens: float
    step: float
    gather: float = 0.0


@dataclass(frozen=True)
class Work:
    """How much is to be done.

    Args:
        training_images, test_images: to embed.
        texts: distinct texts through the encoder, by purpose.
        rows: captions through the correction networks in training, forward and back.
        stored: distinct captions whose features are kept.
        guided: captions whose guidance is kept.
    """

    training_images: int
    test_images: int
    texts: Mapping[str, int]
    rows: int
    stored: int
    guided: int


@dataclass(frozen=True)
class Plan:
    """What it will take.

    Args:
        counts, work, rates: what it rests on; rates of every device that is there.
        hours: by device and by part (``"captions"``, ``"features"``, ``"training"``, ``"evaluation"``).
        assumed: the devices whose hours are not measured but calculated.
        disk: bytes to be written.
        free: bytes free where they go.
    """

    counts: Counts
    work: Work
    rates: Mapping[str, Rates]
    hours: Mapping[str, Mapping[str, float]]
    assumed: Mapping[str, str]
    disk: int
    free: int

    def to_dict(self) -> dict[str, Any]:
        """All numbers, ready for JSON."""
        return {
            "training_images": self.counts.images,
            "captions": self.counts.originals,
            "test_images": self.counts.test_images,
            "questions": self.counts.questions,
            "queries": self.counts.queries,
            "images_missing": self.counts.missing,
            "work": asdict(self.work),
            "rates": {name: asdict(rates) for name, rates in self.rates.items()},
            "hours": {name: dict(parts) for name, parts in self.hours.items()},
            "assumed": dict(self.assumed),
            "disk_bytes": self.disk,
            "free_bytes": self.free,
        }

    def table(self) -> Table:
        """Hours by part and device, as a Rich table."""
        from rich.table import Table

        table = Table(title=f"Time, hours; disk: {gigabytes(self.disk)} needed, {gigabytes(self.free)} free", title_justify="left")
        table.add_column("device")
        parts = list(next(iter(self.hours.values())))
        for part in (*parts, "in all"):
            table.add_column(part, justify="right")
        table.add_column("how it was found", overflow="fold")
        for device, hours in self.hours.items():
            how = self.assumed.get(device, "rate of a few batches, measured here")
            table.add_row(device, *(shown_hours(hours[part]) for part in parts), shown_hours(sum(hours.values())), how)
        return table


def work_of(counts: Counts, configs: Mapping[str, PeakPatchConfig]) -> Work:
    """How much there is to do for some fits (by objective)."""
    texts: dict[str, int] = {}
    rows = guided = stored = 0
    for objective, config in configs.items():
        released = objective == "released"
        own = 2 * counts.originals + (0 if released else _TRUTHFUL_MORE * counts.images)
        steps = config.steps
        if config.epochs:
            steps = -(-config.epochs * round((1 - config.validation_fraction) * counts.images) // config.batch_size)
        asked = 4 * config.question_batch if config.use_scn else 0
        if released:
            rows += steps * (2 * config.batch_size + asked) + config.pretrain_steps * config.batch_size
        else:
            rows += steps * (4 * config.batch_size + asked)
            if config.text_only_weight:
                rows += steps * 6 * config.text_only_batch
                sets = round(_TEXTS_A_SET * config.text_only_sets)
                own, guided = own + sets, guided + sets
            guided += 2 * counts.originals + _TRUTHFUL_MORE * counts.images
            texts["truthful, guidance"] = counts.originals + 3 * counts.images
        texts[f"{objective}, training"] = own
        stored += own
    # The backbone answers everything once; a patch answers questions with and without its score correction.
    texts["evaluation"] = counts.options + counts.queries + len(configs) * (2 * counts.options + counts.queries)
    return Work(counts.images, counts.test_images, texts, rows, stored, guided)


def make_plan(
    counts: Counts, configs: Mapping[str, PeakPatchConfig], rates: Mapping[str, Rates], out: Path, cpu_flops: float
) -> Plan:
    """Hours and bytes.

    Args:
        counts: from :func:`~clipmend.reproduce.inputs.look_at`.
        configs: by objective, resolved.
        rates: of every device that is there, ``"cpu"`` among them.
        out: where everything goes.
        cpu_flops: float32 operations a second of this CPU (:func:`matmul_rate`), for the estimate of a GPU that is not there.
    """
    work = work_of(counts, configs)
    everything = dict(rates)
    assumed = {}
    if set(rates) == {"cpu"}:
        cpu = rates["cpu"]
        faster = GPU_FLOPS / cpu_flops
        everything["gpu"] = Rates(
            "gpu",
            min(cpu.images * faster, cpu.decoded * _DECODERS),
            cpu.texts * faster,
            cpu.decoded,
            cpu.tokens,
            cpu.step / faster,
            cpu.gather,
        )
        assumed["gpu"] = (
            f"no GPU here: the CPU's times its {cpu_flops / 1e9:.0f} GFLOP/s to an assumed {GPU_FLOPS / 1e12:.0f} TFLOP/s, and "
            f"images as fast as {_DECODERS} threads decode them"
        )
    hours = {
        name: {
            "captions": counts.images * sum(_BUILDING[objective] for objective in configs) / 3600,
            "features": (
                work.training_images / r.images + sum(n for what, n in work.texts.items() if what != "evaluation") / r.texts
            )
            / 3600,
            "training": work.rows * (r.step + r.gather) / 3600,
            "evaluation": (work.test_images / r.images + work.texts["evaluation"] / r.texts) / 3600,
        }
        for name, r in everything.items()
    }
    tokens = next(iter(rates.values())).tokens
    disk = 0
    for config in configs.values():
        assert config.scn_layers is not None
        disk += 4 * 4 * 6_000_000  # checkpoint and patch
    any_config = next(iter(configs.values()))
    assert any_config.text_width is not None
    assert any_config.embed_dim is not None
    assert any_config.scn_layers is not None
    width, dim, layers = any_config.text_width, any_config.embed_dim, len(any_config.scn_layers)
    disk += round(work.stored * (2 * width * (tokens + 2) + 4 * dim * (layers + 1) + _TABLE_BYTES))
    disk += 4 * dim * (work.training_images + work.test_images + work.guided)
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return Plan(counts, work, rates, hours, assumed, disk, shutil.disk_usage(existing).free)


def measure_rates(
    encoder: DualEncoder, images: Sequence[Path], texts: Sequence[str], config: PeakPatchConfig, *, seconds: float = 5.0
) -> Rates:
    """Time a few batches of images, of captions and of training.

    Args:
        encoder: the backbone, where it is to be measured.
        images, texts: a sample of the data.
        config: resolved; its layers and sizes.
        seconds: about how long each of the three is timed.
    """
    from clipmend.data.images import open_image

    assert config.peak is not None
    assert config.anchor is not None
    peak, layers = config.peak, sorted({config.peak, config.anchor, *(config.scn_layers or ())})
    encoder.encode_images(images[:2])  # the first pass pays for what later ones do not
    image_rate = _rate(lambda part: encoder.encode_images(part), images, 32, seconds)
    decoded = _rate(lambda part: [open_image(path) for path in part], images, 32, seconds / 2)
    encoder.encode_texts(texts[:2])
    lengths: list[int] = []

    def read(part: Sequence[str]) -> None:
        states = encoder.text_states(part, layers, token_layers=[peak], batch_size=len(part), on_long="truncate")
        lengths.extend(states.mask.sum(1).tolist())

    ordered = sorted(texts, key=len)  # features are taken so, for little padding
    text_rate = _rate(read, ordered, 64, seconds)
    tokens = sum(lengths) / len(lengths)
    step, gather = _seconds_a_row(config, encoder.device, tokens, seconds)
    return Rates(encoder.device.type, image_rate, text_rate, decoded, tokens, step, gather)


def _rate(work: Callable[[Any], Any], items: Sequence[Any], batch: int, seconds: float) -> float:
    """Items a second, over batches taken from all over ``items`` until the time is up."""
    batches = [items[k : k + batch] for k in range(0, len(items), batch)]
    # Every part of a sorted list is met early: first, middle and last batches in turn.
    order = sorted(range(len(batches)), key=lambda k: (k * 7) % len(batches)) if len(batches) % 7 else list(range(len(batches)))
    done, started = 0, time.perf_counter()
    for number in order:
        work(batches[number])
        done += len(batches[number])
        if time.perf_counter() - started > seconds:
            break
    return done / max(time.perf_counter() - started, 1e-6)


def _seconds_a_row(config: PeakPatchConfig, device: torch.device, tokens: float, seconds: float) -> tuple[float, float]:
    """Seconds that a caption costs in a training step: both networks, forward and back; and its token states, taken from memory."""
    assert config.text_width is not None
    assert config.embed_dim is not None
    width, dim, layers = config.text_width, config.embed_dim, len(config.scn_layers or ())
    rows, long = 256, max(2, round(tokens))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        ecn = EmbeddingCorrectionNetwork(
            width, dim, config.hidden, config.heads, config.dropout, config.use_anchor, config.use_pool, config.eos_only,
            config.use_direct,
        ).to(device)  # fmt: skip
        scn = ScoreCorrectionNetwork(dim, layers, config.context, config.bound).to(device)
        token_states = torch.randn(rows, long, width, device=device)
        embedding = torch.nn.functional.normalize(torch.randn(rows, dim, device=device), dim=-1)
        contexts = embedding[:, None].repeat(1, layers, 1)
        mask = torch.ones(rows, long, dtype=torch.bool, device=device)
        done, started = 0, 0.0
        for turn in range(1000):
            if turn == 1:  # the first is not timed
                started = time.perf_counter()
            corrected = ecn(embedding, token_states, mask, token_states[:, -1], token_states[:, 0])
            loss = corrected.square().sum() + scn.correction(embedding, torch.cat([contexts[:, :-1], corrected[:, None]], 1)).sum()
            loss.backward()
            loss.item()  # waits for the device
            done = turn
            if turn and time.perf_counter() - started > seconds / 2:
                break
    step = (time.perf_counter() - started) / (done * rows)
    stored = np.full((4096 * long, width), 0.5, np.float16)  # larger than a cache; zeros would take no memory
    rng, taken, started = np.random.default_rng(0), 0, time.perf_counter()
    while time.perf_counter() - started < seconds / 5 or not taken:
        first = rng.integers(4096, size=rows) * long
        torch.from_numpy(stored[(first[:, None] + np.arange(long)).reshape(-1)]).to(device).float()
        taken += rows
    return step, (time.perf_counter() - started) / taken


def matmul_rate(size: int = 1024, seconds: float = 0.5) -> float:
    """Float32 operations a second of this CPU, by the product of two matrices of the size of the networks'."""
    a, b = torch.rand(size, size), torch.rand(size, size)
    a @ b
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        a @ b
        done += 1
    return done * 2 * size**3 / (time.perf_counter() - started)


def gigabytes(count: float) -> str:
    """Bytes as people read them."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.0f} MB"


def shown_hours(hours: float) -> str:
    """Hours with two digits that say something."""
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}" if hours >= 0.01 else "< 0.01"
