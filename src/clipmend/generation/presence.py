"""A judge of drawn scenes: which things are to be seen in an image, and where, by a small network trained with ground truth.

    python -m clipmend.generation.presence --out judge --scenes 12000 --steps 2500

It reads pixels alone and shares nothing with any backbone, so that it does not see generated images as the encoder does that they
were made from. Each cell of a grid says what object it belongs to and of which colour (boxes are known, so that it learns from few
scenes); a thing is in the image if the surest cell says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from clipmend.backbones.progress import track, training_bar
from clipmend.backbones.scenes.model import ResidualConvolution, pixels_of, to_float
from clipmend.checkpoint import CHECKPOINT, exclusive, load_checkpoint, save_checkpoint, writing
from clipmend.data.images import open_image
from clipmend.data.scenes import BACKGROUNDS, COLOURS, KINDS, Scene, make_scenes, render, scene_facts
from clipmend.generation.command import print_if, run_main
from clipmend.generation.prompts import THINGS

__all__ = ["JudgeAccuracy", "JudgeConfig", "PresenceJudge", "PresenceNet", "load_presence_judge", "measure_judge", "train_judge"]

_KINDS = {kind: row for row, kind in enumerate(KINDS)}
_COLOURS = {colour: row for row, colour in enumerate(COLOURS)}
_PLACES = {background.atom: row for row, background in enumerate(BACKGROUNDS.values())}
_GRID = 16  # cells a side
_INNER = 0.5  # of an object's box: the cells that must say so; the rest of the box may say either


@dataclass(frozen=True)
class JudgeConfig:
    """How the judge is trained: drawn scenes of the train split, seed, steps, and the damage that images are given.

    Args:
        scenes, seed, steps, batch_size, learning_rate: as usual; the rate falls to 0 along a line.
        noise: most noise added to pixels in -1..1, and the most share of a blurred copy is ``blur``: generated images are not as
            clean as drawn ones, and the judge is to read through that.
        width: channels.
    """

    scenes: int = 12_000
    seed: int = 60
    steps: int = 2_500
    batch_size: int = 64
    learning_rate: float = 2e-3
    noise: float = 0.15
    blur: float = 0.7
    width: int = 48

    def __post_init__(self) -> None:
        if min(self.scenes, self.steps, self.batch_size) < 1 or self.width < 2 or self.seed < 0:
            raise ValueError("scenes, steps and batch_size must be at least 1, width at least 2, and seed not negative")
        if not (0 < self.learning_rate < math.inf and 0 <= self.noise < math.inf and 0 <= self.blur <= 1):
            raise ValueError("learning_rate must be above 0, noise at least 0, both finite, and blur a share between 0 and 1")


class PresenceNet(nn.Module):
    """64 x 64 pixels to what each of 16 x 16 cells shows, and the background.

    Args:
        width: channels at a quarter of the resolution; twice as many at an eighth.
    """

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.width = width
        self.stem = nn.Sequential(
            nn.Conv2d(3, width // 2, 3, 2, 1), nn.GroupNorm(1, width // 2), nn.GELU(),
            nn.Conv2d(width // 2, width, 3, 2, 1), ResidualConvolution(width), ResidualConvolution(width),
        )  # fmt: skip
        self.coarse = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, 1), ResidualConvolution(2 * width), ResidualConvolution(2 * width),
        )  # fmt: skip
        self.back = nn.Conv2d(2 * width, width, 1)
        self.join = nn.Sequential(ResidualConvolution(width), nn.GroupNorm(1, width), nn.GELU())
        self.kinds = nn.Conv2d(width, len(KINDS), 1)
        self.colours = nn.Conv2d(width, len(COLOURS), 1)
        self.places = nn.Linear(2 * width, len(BACKGROUNDS))
        nn.init.constant_(self.kinds.bias, -4.0)  # type: ignore[arg-type]  # typed as optional; most cells show no given kind

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``[B, 3, 64, 64]`` in -1..1 to logits: kinds ``[B, K, 16, 16]``, colours ``[B, C, 16, 16]``, backgrounds ``[B, P]``."""
        fine = self.stem(pixels)
        coarse = self.coarse(fine)
        x = self.join(fine + F.interpolate(self.back(coarse), scale_factor=2.0, mode="nearest"))
        return self.kinds(x), self.colours(x), self.places(coarse.mean((2, 3)))


@dataclass
class PresenceJudge:
    """The trained network as a judge (see :class:`clipmend.evaluation.judged.Judge`).

    Args:
        net: the network.
        about: how it was trained, and its accuracy.
    """

    net: PresenceNet
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.net.eval().requires_grad_(False)

    @torch.no_grad()
    def probabilities(
        self,
        images: Sequence[Image.Image] | Tensor,
        things: Sequence[str] = THINGS,
        *,
        batch_size: int = 128,
        progress: bool = False,
    ) -> NDArray[np.float64]:
        """Probability that each thing is in each image.

        Args:
            images: RGB images, or uint8 ``[N, 64, 64, 3]``.
            things: kinds ("cat"), kinds of a colour ("red cat"), backgrounds ("at beach"); NaN for any other.
            batch_size: images at once.
            progress: show a bar.

        Returns:
            float ``[N, len(things)]``.
        """
        done = []
        starts = range(0, len(images), batch_size)
        for start in track(starts, len(starts), "judging", progress):
            part = images[start : start + batch_size]
            pixels = to_float(part) if isinstance(part, Tensor) else pixels_of(list(part), 64)
            kinds, colours, places = self.net(pixels)
            sure = kinds.sigmoid()
            tinted = (sure[:, :, None] * colours.softmax(1)[:, None]).amax((3, 4))  # [B, K, C]
            whole, there = sure.amax((2, 3)), places.softmax(1)
            columns = [_column(thing, whole, tinted, there) for thing in things]
            done.append(torch.stack(columns, 1) if columns else torch.zeros(len(pixels), 0))
        joined = torch.cat(done) if done else torch.zeros(0, len(things))
        return joined.double().numpy()

    def judge(self, image_path: Path, things: Sequence[str]) -> list[float]:
        """Probability that each of ``things`` is in the image, NaN for what this world does not have."""
        return self.probabilities([open_image(image_path)], things)[0].tolist()

    def save(self, folder: str | Path) -> None:
        """Write ``model.safetensors`` (float16) and ``config.json``."""
        where = Path(folder)
        where.mkdir(parents=True, exist_ok=True)
        part = where / "model.safetensors.part"
        with writing(part):
            save_file({k: v.half().contiguous() for k, v in self.net.state_dict().items()}, part, metadata={"format": "pt"})
        os.replace(part, where / "model.safetensors")
        text = json.dumps({"width": self.net.width, **self.about}, indent=2) + "\n"
        (where / "config.json.part").write_text(text, encoding="utf-8")
        os.replace(where / "config.json.part", where / "config.json")


def _column(thing: str, whole: Tensor, tinted: Tensor, there: Tensor) -> Tensor:
    if thing in _KINDS:
        return whole[:, _KINDS[thing]]
    if thing in _PLACES:
        return there[:, _PLACES[thing]]
    colour, _, kind = thing.partition(" ")
    if colour in _COLOURS and kind in _KINDS:
        return tinted[:, _KINDS[kind], _COLOURS[colour]]
    return torch.full((len(whole),), float("nan"))


def load_presence_judge(folder: str | Path) -> PresenceJudge:
    """Load what :meth:`PresenceJudge.save` wrote.

    Raises:
        OSError: nothing there. ValueError: files that do not fit.
    """
    where = Path(folder)
    try:
        about = json.loads((where / "config.json").read_text(encoding="utf-8"))
        net = PresenceNet(about["width"])
        net.load_state_dict({k: v.float() for k, v in load_file(where / "model.safetensors").items()})
        if not all(value.isfinite().all() for value in net.state_dict().values()):
            raise ValueError("some weights are not finite")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise OSError(f"{where}: no trained judge there; make one with python -m clipmend.generation.presence") from error
    except (SafetensorError, KeyError, TypeError, RuntimeError, ValueError) as error:  # UnicodeDecodeError too
        raise ValueError(f"{where}: model.safetensors and config.json are not those of a judge: {error}") from error
    return PresenceJudge(net, about)


@dataclass(frozen=True)
class JudgeAccuracy:
    """How often the judge is right about images whose content is known.

    Args:
        recall: of the kinds that are there, the share it sees.
        specificity: of the kinds that are not there, the share it does not see.
        lowest_recall: of the kind that it sees least.
        coloured: of the kinds of a colour that are there, the share it sees.
        places: share of backgrounds it names.
        images: how many.
    """

    recall: float
    specificity: float
    lowest_recall: float
    coloured: float
    places: float
    images: int


def measure_judge(judge: PresenceJudge, pixels: Tensor, facts: Sequence[frozenset[str]], threshold: float = 0.5) -> JudgeAccuracy:
    """Accuracy on ``[N, 64, 64, 3]`` images of which ``facts`` holds all that is true.

    Raises:
        ValueError: no images, or not as many facts.
    """
    if not len(pixels) or len(pixels) != len(facts):
        raise ValueError(f"{len(pixels)} images and {len(facts)} sets of facts")
    told = judge.probabilities(pixels, THINGS) >= threshold
    truth = np.array([[thing in known for thing in THINGS] for known in facts])
    kinds, places = slice(0, len(KINDS)), slice(len(KINDS), len(KINDS) + len(BACKGROUNDS))
    rest = slice(places.stop, None)
    seen, true = told[:, kinds], truth[:, kinds]
    each = [float(seen[true[:, k], k].mean()) for k in range(len(KINDS)) if true[:, k].any()]
    return JudgeAccuracy(
        float(seen[true].mean()), float((~seen[~true]).mean()), min(each), float(told[:, rest][truth[:, rest]].mean()),
        float(told[:, places][truth[:, places]].mean()), len(pixels),
    )  # fmt: skip


def targets(scenes: Sequence[Scene]) -> tuple[Tensor, Tensor, Tensor]:
    """What each cell should say: kinds int8 ``[N, K, 16, 16]`` (1, 0, or -1 for either), colours ``[N, 16, 16]`` (-1 where it does
    not matter), backgrounds ``[N]``."""
    kinds = np.zeros((len(scenes), len(KINDS), _GRID, _GRID), np.int8)
    colours = np.full((len(scenes), _GRID, _GRID), -1, np.int64)
    middle = (np.arange(_GRID) + 0.5) / _GRID
    for row, scene in enumerate(scenes):
        for thing in scene.objects:
            (x, y), (x0, y0, x1, y1) = thing.centre, thing.box
            off = np.maximum(np.abs(middle[None] - x) / max(x1 - x0, 1e-6), np.abs(middle[:, None] - y) / max(y1 - y0, 1e-6))
            inner = off <= _INNER / 2
            inner[min(int(y * _GRID), _GRID - 1), min(int(x * _GRID), _GRID - 1)] = True
            of_kind = kinds[row, _KINDS[thing.kind]]
            of_kind[(off <= 0.5) & (of_kind == 0)] = -1
            of_kind[inner] = 1
            colours[row][inner] = _COLOURS[thing.colour]
    places = torch.tensor([_PLACES[BACKGROUNDS[scene.background].atom] for scene in scenes])
    return torch.from_numpy(kinds), torch.from_numpy(colours), places


def judge_loss(net: PresenceNet, pixels: Tensor, kinds: Tensor, colours: Tensor, places: Tensor) -> Tensor:
    """Loss of a batch; targets as in :func:`targets`."""
    said, tints, where = net(pixels)
    known = kinds >= 0
    each = F.binary_cross_entropy_with_logits(said, (kinds > 0).float(), reduction="none")
    found = (each * known).sum() / (kinds > 0).sum().clamp(min=1)
    colour = F.cross_entropy(tints, colours, ignore_index=-1) if (colours >= 0).any() else tints.sum() * 0
    return found + colour + F.cross_entropy(where, places)


def damaged(pixels: Tensor, config: JudgeConfig, generator: torch.Generator) -> Tensor:
    """Half of the images blurred and noisy, each by its own amount."""
    odds, share, amount = (torch.rand(len(pixels), 1, 1, 1, generator=generator) for _ in range(3))
    soft = F.avg_pool2d(F.pad(pixels, (1, 1, 1, 1), mode="replicate"), 3, 1)
    worse = pixels + config.blur * share * (soft - pixels)
    worse = worse + config.noise * amount * torch.randn(pixels.shape, generator=generator)
    return torch.where(odds < 0.5, pixels, worse.clamp(-1, 1))


def train_judge(
    out: str | Path, config: JudgeConfig | None = None, *, checkpoint_every: int = 250, stop_after: int | None = None,
    progress: bool = False, report: bool = False,
) -> PresenceJudge:  # fmt: skip
    """Train a judge and write it to ``out``; goes on from ``out/checkpoint.pt``.

    Its accuracy is measured on 1,000 scenes of the test split, and goes into ``config.json``. Mirror images are not used in
    training, since cells have places.

    Args:
        out: folder.
        config: hyper-parameters.
        checkpoint_every: steps between checkpoints.
        stop_after: leave after this many steps in all, with a checkpoint, as a kill would.
        progress: bars, on a terminal.
        report: print losses every 50 steps.

    Raises:
        ValueError: the folder holds a checkpoint of another training, or a judge that is finished, or is in use; a gradient that
            is no longer finite.
    """
    out, config = Path(out), config or JudgeConfig()
    if checkpoint_every < 1 or (stop_after is not None and stop_after < 1):
        raise ValueError(f"checkpoint_every and stop_after must be at least 1, not {checkpoint_every} and {stop_after}")
    with exclusive(out):
        if (out / "model.safetensors").exists() and not (out / CHECKPOINT).exists():
            raise ValueError(f"{out} holds a judge that is finished; choose another folder, or delete this one")
        scenes = make_scenes(config.scenes, config.seed, "train")
        drawn = np.stack([np.asarray(render(s, 64)) for s in track(scenes, len(scenes), "drawing scenes", progress)])
        pixels = torch.from_numpy(drawn)
        kinds, colours, places = targets(scenes)
        torch.manual_seed(config.seed)
        net = PresenceNet(config.width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.AdamW(net.parameters(), lr=config.learning_rate, weight_decay=0.01)
        identity = json.dumps({**asdict(config), "pixels": hashlib.sha256(drawn.tobytes()).hexdigest()})
        place, start, spent = out / CHECKPOINT, 0, 0.0
        if place.exists():
            saved = load_checkpoint(
                place, identity, ("net", "optimizer", "step", "seconds"), torch.device("cpu"), what="training of a judge"
            )
            net.load_state_dict(saved["net"])
            optimizer.load_state_dict(saved["optimizer"])
            start, spent = saved["step"], saved["seconds"]
        began, smooth = time.process_time(), 0.0
        last = min(config.steps, stop_after or config.steps)
        with training_bar("training the judge", config.steps, progress, start) as tell:
            for number in range(start, last):
                rng = np.random.default_rng((config.seed, number))
                generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
                rows = torch.from_numpy(rng.integers(len(pixels), size=config.batch_size))
                batch = damaged(to_float(pixels[rows]), config, generator)
                for group in optimizer.param_groups:
                    group["lr"] = config.learning_rate * min(1.0, (number + 1) / 100) * (1 - number / config.steps)
                loss = judge_loss(net, batch, kinds[rows], colours[rows], places[rows])
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                if not nn.utils.clip_grad_norm_(net.parameters(), 1.0).isfinite():
                    raise ValueError(
                        f"step {number + 1}: the gradient is no longer finite; start again with a smaller learning rate"
                    )
                optimizer.step()
                value, done = float(loss.detach()), number + 1
                smooth = value if number == start else 0.95 * smooth + 0.05 * value
                tell(done, {"loss": value})
                if done % 50 == 0:
                    seconds = spent + time.process_time() - began
                    print_if(report, f"step {done}/{config.steps}  loss {smooth:.3f}  {seconds:.0f} s of a processor")
                if done < config.steps and (done % checkpoint_every == 0 or done == last):
                    seconds = spent + time.process_time() - began
                    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": done, "seconds": seconds}
                    save_checkpoint(place, {"identity": identity, **state})
        judge = PresenceJudge(
            net, {"training": {**asdict(config), "processor_seconds": round(spent + time.process_time() - began)}}
        )
        if last == config.steps:
            test = make_scenes(1000, config.seed, "test")
            shown = torch.from_numpy(np.stack([np.asarray(render(s, 64)) for s in test]))
            judge.about["accuracy"] = asdict(measure_judge(judge, shown, [scene_facts(s) for s in test]))
            judge.save(out)
            place.unlink(missing_ok=True)
    return judge


def _main() -> None:
    defaults = JudgeConfig()
    parser = argparse.ArgumentParser(prog="python -m clipmend.generation.presence", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model.safetensors and config.json")
    for name, text in (
        ("scenes", "drawn training scenes"),
        ("steps", "steps"),
        ("batch_size", "images a step"),
        ("seed", "of all"),
    ):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=f"{text} (default {default})")
    parser.add_argument("--checkpoint-every", type=int, default=250, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    config = JudgeConfig(scenes=args.scenes, seed=args.seed, steps=args.steps, batch_size=args.batch_size)
    judge = train_judge(args.out, config, checkpoint_every=args.checkpoint_every, progress=True, report=True)
    print(json.dumps(judge.about, indent=2))


if __name__ == "__main__":
    run_main(_main)
