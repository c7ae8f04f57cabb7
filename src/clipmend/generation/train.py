"""Train the generator of a drawn world: basis and prior in closed form, then the decoder by flow matching.

    python -m clipmend.generation.train --out generator --threads 2

The backbone stays as it is; each scene is embedded once, plain and mirrored. Prior and decoder see affirmative captions, or none.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track, training_bar
from clipmend.backbones.scenes.model import to_float
from clipmend.checkpoint import CHECKPOINT, exclusive, load_checkpoint, save_checkpoint, writing
from clipmend.data.scenes import Scene, render, tower_captions
from clipmend.generation.command import print_if, run_main
from clipmend.generation.decoder import DecoderConfig, SceneDecoder
from clipmend.generation.flow import flow_loss, sample_times
from clipmend.generation.muon import Muon
from clipmend.generation.prior import EstimateChannel, FittedPrior, estimate_channel, fit_prior
from clipmend.generation.sampling import SceneGenerator, to_images
from clipmend.generation.world import LIMIT, MOST, few_objects_scenes

__all__ = ["GenerationData", "TrainConfig", "prepare", "train"]


@dataclass(frozen=True)
class TrainConfig:
    """How the decoder is trained.

    Args:
        scenes: drawn training scenes.
        most: objects in one of them, at most (:mod:`clipmend.generation.world`).
        seed: fixes scenes, captions, initial weights and batches. Scenes are of the train split.
        captions: affirmative captions of each scene that the prior is fitted on.
        steps: optimiser steps; the learning rate falls to 0 along a cosine.
        batch_size: images a step.
        learning_rate: AdamW's at its peak, after ``warm_up`` steps: for embeddings, norms, first and last layers and the refiner.
        muon_rate: the same for the matrices and kernels between, which :class:`~clipmend.generation.muon.Muon` updates.
        warm_up: steps.
        estimated: share of the rows whose condition is what the prior would say, instead of the image's own embedding.
        dropped: share of the rows without condition, for guidance.
        average: decay of the average of the weights, which is what is kept.
        weight_decay: AdamW's.
        time_mean, time_std: where on the way from noise to data; see :func:`~clipmend.generation.flow.sample_times`.
        refined: images of each batch that the refiner learns from.
        refiner_noise: most noise that the refiner's input is given, so that it mends what the flow leaves too.
        bfloat16: compute the decoder in bfloat16 (weights, loss and optimiser stay float32); for processors that have it.
    """

    scenes: int = 24_000
    most: int = MOST
    seed: int = 40
    captions: int = 1
    steps: int = 7_000
    batch_size: int = 48
    learning_rate: float = 2e-3
    muon_rate: float = 3e-3
    warm_up: int = 100
    estimated: float = 0.5
    dropped: float = 0.1
    average: float = 0.999
    weight_decay: float = 0.01
    time_mean: float = -0.4
    time_std: float = 1.0
    refined: int = 16
    refiner_noise: float = 0.3
    bfloat16: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.most <= LIMIT:
            raise ValueError(f"most must be from 1 to {LIMIT}, not {self.most}")
        if min(self.scenes, self.captions, self.steps, self.batch_size) < 1:
            raise ValueError("scenes, captions, steps and batch_size must be at least 1")
        if not (0 <= self.estimated <= 1 and 0 <= self.dropped < 1 and 0 <= self.average < 1):
            raise ValueError("estimated, dropped and average are shares between 0 and 1")
        if min(self.seed, self.refined) < 0 or self.warm_up < 1:
            raise ValueError("seed and refined must not be negative, and warm_up at least 1")
        positive, others = (self.learning_rate, self.muon_rate, self.time_std), (self.weight_decay, self.refiner_noise)
        if not all(0 < v < math.inf for v in positive) or not all(0 <= v < math.inf for v in others):
            raise ValueError(
                "learning_rate, muon_rate and time_std must be above 0, weight_decay and refiner_noise at least 0, and finite"
            )
        if not math.isfinite(self.time_mean):
            raise ValueError(f"time_mean must be a number, not {self.time_mean}")


@dataclass
class GenerationData:
    """Scenes ready to train on.

    Args:
        pixels: uint8 ``[N, S, S, 3]``.
        embeddings: ``[2, N, D]`` unit image embeddings, of the scene and of its mirror image.
        texts: ``[M, T]`` unit embeddings of affirmative captions.
        owners: ``[M]`` the scene of each.
    """

    pixels: Tensor
    embeddings: Tensor
    texts: Tensor
    owners: Tensor


def prepare(
    encoder: DualEncoder, scenes: Sequence[Scene], size: int, captions: int, seed: int, *, cache: Path | None = None,
    progress: bool = False,
) -> GenerationData:  # fmt: skip
    """Draw scenes and embed them and their captions, once: a second call reads ``cache``.

    Args:
        encoder: the backbone.
        scenes: what to draw.
        size: side of the images in pixels.
        captions: affirmative captions of each scene.
        seed: of the captions.
        cache: folder for the embeddings.
        progress: show bars.
    """
    told = tower_captions(scenes, seed, captions, negated=0.0)
    pixels = np.empty((len(scenes), size, size, 3), np.uint8)
    for row, scene in enumerate(track(scenes, len(scenes), "drawing scenes", progress)):
        pixels[row] = np.asarray(render(scene, size))
    owners = torch.tensor([caption.image for caption in told])
    fingerprint = encoder.fingerprint
    digest = hashlib.sha256(f"{fingerprint.to_dict()}{captions}{seed}".encode() + pixels.tobytes()).hexdigest()
    kept = None if cache is None else cache / f"embeddings-{digest[:16]}.safetensors"
    if kept is not None and kept.exists():
        try:
            saved = load_file(kept)
        except SafetensorError as error:
            raise ValueError(f"{kept} cannot be read ({error}); delete it to embed the scenes again") from error
    else:
        images = [Image.fromarray(row) for row in pixels]
        plain = encoder.encode_images(images, batch_size=128, progress=progress)
        mirrored = encoder.encode_images([ImageOps.mirror(image) for image in images], batch_size=128, progress=progress)
        texts = encoder.encode_texts([caption.text for caption in told], batch_size=256, progress=progress)
        saved = {"images": torch.stack([plain, mirrored]).float().contiguous(), "texts": texts.float().contiguous()}
        if kept is not None:
            part = kept.with_suffix(".part")
            with writing(part):
                save_file(saved, part)
            part.replace(kept)
    return GenerationData(torch.from_numpy(pixels), saved["images"], saved["texts"], owners)


class _Training:
    """The state of one training, and its steps; a step depends on nothing but the state and its number."""

    def __init__(
        self, data: GenerationData, config: TrainConfig, shape: DecoderConfig, fitted: FittedPrior, compiled: bool = False
    ) -> None:
        self.data, self.config, self.fitted = data, config, fitted
        owned = data.embeddings[0][data.owners]
        self.channel: EstimateChannel = estimate_channel(fitted.prior(data.texts), owned)
        torch.manual_seed(config.seed)
        self.net = SceneDecoder(shape)
        self.kept_variance = self.net.basis.fit(to_float(data.pixels[: min(len(data.pixels), 2000)]))
        every = data.embeddings.flatten(0, 1)
        self.net.condition_mean.copy_(every.mean(0))
        self.net.condition_scale.copy_(1 / (every - every.mean(0)).square().mean().sqrt().clamp(min=1e-6))
        self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.velocity: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compile(self.net) if compiled else self.net
        self.average = deepcopy(self.net).requires_grad_(False)
        inner: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, p in self.net.named_parameters():
            hidden = name.startswith(("layers.", "convolutions.")) and p.dim() > 1 and not name.endswith("scale_shift_table")
            (inner if hidden else others).append(p)
        groups = [
            {"params": [p for p in others if p.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in others if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.optimizers: dict[str, tuple[Optimizer, float]] = {
            "adamw": (torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.99)), config.learning_rate),
            "muon": (Muon(inner, config.muon_rate, weight_decay=config.weight_decay), config.muon_rate),
        }

    def step(self, number: int) -> dict[str, float]:
        """One optimiser step; its batch, noise and times are fixed by seed and number, so that resuming is exact."""
        config, data, net = self.config, self.data, self.net
        rng = np.random.default_rng((config.seed, number))
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        size = config.batch_size
        rows = torch.from_numpy(rng.integers(len(data.pixels), size=size))
        mirrored = torch.from_numpy(rng.integers(2, size=size))
        pixels = data.pixels[rows]
        pixels = to_float(torch.where(mirrored.bool()[:, None, None, None], pixels.flip(2), pixels))
        latents = net.basis.encode(pixels)
        condition = data.embeddings[mirrored, rows]
        estimates = self.channel(condition, torch.randn(condition.shape, generator=generator))
        estimated = torch.rand(size, generator=generator) < config.estimated
        condition = torch.where(estimated[:, None], estimates, condition)
        told = net.embed_condition(condition, estimated.float(), torch.rand(size, generator=generator) < config.dropped)
        noise = torch.randn(latents.shape, generator=generator)
        times = sample_times(size, generator, config.time_mean, config.time_std)

        def velocity(x: Tensor, t: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=config.bfloat16):
                return self.velocity(x.contiguous(memory_format=torch.channels_last), t, told)

        loss = flow_loss(velocity, latents, noise, times)
        losses = {"flow": loss}
        if net.refiner is not None and config.refined:
            few = slice(0, config.refined)
            amount = config.refiner_noise * torch.rand(len(latents[few]), 1, 1, 1, generator=generator)
            blurred = latents[few] + amount * torch.randn(latents[few].shape, generator=generator)
            losses["refiner"] = (net.pixels(blurred) - pixels[few]).abs().mean()
        for optimizer, rate in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = rate * min(1.0, (number + 1) / config.warm_up) * _cosine(number, config.steps)
            optimizer.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()
        length = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        if not length.isfinite():  # before it gets into weights and checkpoints
            raise ValueError(
                f"step {number + 1}: the gradient is no longer finite; start again, with a smaller learning rate, from the last "
                "checkpoint or from none"
            )
        for optimizer, _ in self.optimizers.values():
            optimizer.step()
        decay = min(config.average, (1 + number) / (10 + number))  # early weights are not worth remembering
        with torch.no_grad():
            for mean, now in zip(self.average.parameters(), net.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
        return {name: float(value.detach()) for name, value in losses.items()}

    def state(self) -> dict[str, Any]:
        return {
            "net": self.net.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, (optimizer, _) in self.optimizers.items()},
        }

    def restore(self, saved: dict[str, Any]) -> None:
        self.net.load_state_dict(saved["net"])
        self.average.load_state_dict(saved["average"])
        for name, (optimizer, _) in self.optimizers.items():
            optimizer.load_state_dict(saved["optimizers"][name])


def train(
    encoder: DualEncoder,
    out: str | Path,
    config: TrainConfig | None = None,
    shape: DecoderConfig | None = None,
    *,
    checkpoint_every: int = 200,
    stop_after: int | None = None,
    compiled: bool = False,
    progress: bool = False,
    report: bool = False,
) -> SceneGenerator:
    """Train, and write the generator to ``out``; goes on from ``out/checkpoint.pt`` where a training was stopped.

    Args:
        encoder: the backbone, whose embeddings the generator is to read.
        out: folder. Each checkpoint writes the generator as it is so far to ``out/so-far``, with ``samples.png``.
        config: hyper-parameters.
        shape: of the decoder; its ``embed_dim`` is taken from the encoder.
        checkpoint_every: steps between checkpoints.
        stop_after: leave after this many steps in all, with a checkpoint, as a kill would.
        compiled: train through ``torch.compile``, which needs a C++ compiler and some minutes at the start. With it, or with
            another processor, a resumed training ends near the uninterrupted one instead of exactly on it.
        progress: bars, on a terminal.
        report: print losses and speed every 50 steps.

    Raises:
        ValueError: the folder holds a checkpoint of another training, or a generator that is finished, or is in use; a loss that is
            no longer finite, in which case the last checkpoint stays as it was.
        ImportError: diffusers is not installed.
    """
    out, config = Path(out), config or TrainConfig()
    if checkpoint_every < 1 or (stop_after is not None and stop_after < 1):
        raise ValueError(f"checkpoint_every and stop_after must be at least 1, not {checkpoint_every} and {stop_after}")
    shape = DecoderConfig.from_dict({**(shape or DecoderConfig()).to_dict(), "embed_dim": encoder.embed_dim})
    with exclusive(out):
        fingerprint = encoder.fingerprint
        identity = json.dumps({"train": asdict(config), "shape": shape.to_dict(), "encoder": fingerprint.to_dict()})
        place = out / CHECKPOINT
        saved: dict[str, Any] | None = None
        if place.exists():  # read first: scenes take minutes
            keys = ("net", "average", "optimizers", "step", "seconds")
            saved = load_checkpoint(place, identity, keys, torch.device("cpu"), what="training of a generator")
        elif (out / "model.safetensors").exists():
            raise ValueError(f"{out} holds a generator that is finished; choose another folder, or delete this one")
        scenes = few_objects_scenes(config.scenes, config.seed, "train", config.most)
        data = prepare(encoder, scenes, shape.image_size, config.captions, config.seed, cache=out, progress=progress)
        fitted = fit_prior(data.texts, data.embeddings[0][data.owners], data.owners)
        training = _Training(data, config, shape, fitted, compiled)
        print_if(
            report,
            f"{len(data.pixels)} scenes; the prior explains {fitted.r2:.3f} of image embeddings (penalty {fitted.penalty:g}); the "
            f"basis keeps {training.kept_variance:.4f}; {sum(p.numel() for p in training.net.parameters()):,} parameters",
        )
        start, spent = 0, 0.0
        if saved is not None:
            training.restore(saved)
            start, spent = saved["step"], saved["seconds"]
            saved = None
            print_if(report, f"going on at step {start}")
        began = time.process_time()

        def finished(step: int, losses: dict[str, float]) -> SceneGenerator:
            seconds = spent + time.process_time() - began
            about = {
                **asdict(config), "steps_done": step, "processor_seconds": round(seconds), "threads": torch.get_num_threads(),
                "losses": {name: round(value, 4) for name, value in losses.items()}, "prior_r2": round(fitted.r2, 4),
                "prior_penalty": fitted.penalty, "basis_keeps": round(training.kept_variance, 5),
                "parameters": sum(p.numel() for p in training.net.parameters()),
            }  # fmt: skip
            decoder = deepcopy(training.average).to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
            return SceneGenerator(  # laid out as one that is loaded, so that it draws the same to the bit
                decoder, fitted.prior, encoder.name, fingerprint.image, fingerprint.text, about
            )  # fmt: skip

        smooth: dict[str, float] = {}
        last = min(config.steps, stop_after or config.steps)
        with training_bar("training the decoder", config.steps, progress, start) as tell:
            for number in range(start, last):
                losses = training.step(number)
                smooth = {name: 0.98 * smooth.get(name, value) + 0.02 * value for name, value in losses.items()}
                tell(number + 1, losses)
                done = number + 1
                if done % 50 == 0:
                    seconds = spent + time.process_time() - began
                    speed = (done - start) * config.batch_size / max(1e-9, time.process_time() - began)
                    told = "  ".join(f"{name} {value:.4f}" for name, value in smooth.items())
                    print_if(report, f"step {done}/{config.steps}  {told}  {seconds:.0f} s of a processor  {speed:.0f} images/s")
                if done < config.steps and (done % checkpoint_every == 0 or done == last):
                    seconds = spent + time.process_time() - began
                    save_checkpoint(place, {"identity": identity, **training.state(), "step": done, "seconds": seconds})
                    so_far = finished(done, smooth)
                    so_far.save(out / "so-far")
                    _samples(so_far, data).save(out / "so-far" / "samples.png")
        generator = finished(last, smooth)
        if last == config.steps:
            generator.save(out)
            _samples(generator, data).save(out / "samples.png")
            place.unlink(missing_ok=True)
    return generator


def _samples(generator: SceneGenerator, data: GenerationData, count: int = 8) -> Image.Image:
    """Real scenes, what is drawn from their embeddings, and from the prior's estimates of a caption of each."""
    from clipmend.data.sheets import contact_sheet

    count = min(count, len(data.pixels))
    seeds = list(range(count))
    captions = torch.stack([data.texts[(data.owners == row).nonzero()[0, 0]] for row in range(count)])
    conditions = (generator.of_images(data.embeddings[0, :count]), generator.of_texts(captions))
    drawn = [image for condition in conditions for image in to_images(generator.sample(condition, seeds, steps=12))]
    return contact_sheet([*to_images(data.pixels[:count]), *drawn], columns=count, tile=128)


def _cosine(step: int, steps: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * step / steps))


def _main() -> None:
    defaults = TrainConfig()
    parser = argparse.ArgumentParser(
        prog="python -m clipmend.generation.train", description=(__doc__ or "").split("\n")[0],
        epilog="The same command in the same folder goes on from the last checkpoint. Example: python -m clipmend.generation.train "
        "--out generator --threads 2",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors and config.json")
    parser.add_argument("--model", default="scenes", help="backbone whose embeddings the generator reads")
    told = {
        "scenes": "drawn training scenes", "most": "objects in one of them, at most", "steps": "optimiser steps",
        "batch_size": "images a step",
        "seed": "of scenes, captions, weights and batches", "captions": "affirmative captions a scene, for the prior",
    }  # fmt: skip
    for name, text in told.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"{text} (default {default})")
    for name, text in {"learning_rate": "AdamW's peak", "muon_rate": "Muon's peak"}.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=default, help=f"{text} (default {default:g})")
    parser.add_argument("--checkpoint-every", type=int, default=200, help="steps between checkpoints (default 200)")
    parser.add_argument("--bfloat16", action="store_true", help="compute the decoder in bfloat16, where the processor has it")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile (needs a C++ compiler)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    import clipmend

    config = TrainConfig(
        scenes=args.scenes, most=args.most, seed=args.seed, captions=args.captions, steps=args.steps, batch_size=args.batch_size,
        learning_rate=args.learning_rate, muon_rate=args.muon_rate, bfloat16=args.bfloat16,
    )  # fmt: skip
    generator = train(
        clipmend.load(args.model), args.out, config, checkpoint_every=args.checkpoint_every, compiled=args.compile, progress=True,
        report=True,
    )  # fmt: skip
    print(json.dumps(generator.training, indent=2))


if __name__ == "__main__":
    run_main(_main)
