"""Draw scenes from embeddings: a decoder and a prior, frozen, with noise that a seed and an image's number fix."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track
from clipmend.checkpoint import writing
from clipmend.generation.decoder import DecoderConfig, SceneDecoder
from clipmend.generation.flow import Method, integrate
from clipmend.generation.prior import LinearPrior

__all__ = ["BUNDLED", "Condition", "SceneGenerator", "load_generator", "noise_of", "to_images"]

BUNDLED = {"scenes": Path(__file__).parent / "weights"}
"""Generators that come with the package, by the name of their backbone."""


@dataclass(frozen=True)
class Condition:
    """What images are to be drawn from.

    Args:
        vectors: ``[N, D]`` image embeddings, or a prior's estimates of such.
        estimated: whether they are estimates.
    """

    vectors: Tensor
    estimated: bool

    def __len__(self) -> int:
        return len(self.vectors)

    def repeated(self, times: int) -> Condition:
        """Each row ``times`` times in a row."""
        return Condition(self.vectors.repeat_interleave(times, 0), self.estimated)


@dataclass
class SceneGenerator:
    """A decoder and a prior of one backbone.

    Args:
        decoder, prior: both frozen here.
        backbone: name of the encoder whose embeddings they read.
        image_digest: of that encoder's image side: an image embedding of any other means nothing here. ``""`` takes any.
        text_digest: of its text side.
        training: what the training cost.

    Example:
        >>> import clipmend
        >>> from clipmend.generation import load_generator
        >>> encoder = clipmend.load("scenes")  # doctest: +SKIP
        >>> images = load_generator("scenes").draw(encoder, ["a red cup on a beach"], seeds=[0])  # doctest: +SKIP
    """

    decoder: SceneDecoder
    prior: LinearPrior
    backbone: str = "scenes"
    image_digest: str = ""
    text_digest: str = ""
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.decoder.eval().requires_grad_(False)
        self.prior.eval()

    @property
    def device(self) -> torch.device:
        return self.decoder.nothing.device

    def check(self, encoder: DualEncoder) -> None:
        """Refuse an encoder other than the one that this was trained with; a mended one is the same.

        Raises:
            ValueError: it is another.
        """
        found = encoder.fingerprint
        for side, mine, theirs in (("image", self.image_digest, found.image), ("text", self.text_digest, found.text)):
            if mine and theirs != mine:
                raise ValueError(
                    f"this generator reads embeddings of {self.backbone}, and {encoder.name} has another {side} side; train one "
                    "for it with python -m clipmend.generation.train, or use the backbone it was made for"
                )

    def of_texts(self, embeddings: Tensor) -> Condition:
        """The prior's estimates for text embeddings ``[N, T]``, plain, mended or made by any rule."""
        return Condition(self.prior(embeddings.to(self.prior.weight.device)), True)

    def of_images(self, embeddings: Tensor) -> Condition:
        """Image embeddings ``[N, D]`` as they are: what the decoder draws where nothing is lost before it."""
        return Condition(F.normalize(embeddings.float(), dim=-1), False)

    def draw(self, encoder: DualEncoder, texts: Sequence[str], seeds: Sequence[int], **options: Any) -> list[Image.Image]:
        """One image for each text and seed, those of one text together; options as for :meth:`sample`.

        Raises:
            ValueError: as :meth:`check` and :meth:`sample` do.
        """
        self.check(encoder)
        condition = self.of_texts(encoder.encode_texts(texts)).repeated(len(seeds))
        return to_images(self.sample(condition, list(seeds) * len(texts), **options))

    @torch.no_grad()
    def sample(
        self,
        condition: Condition,
        seeds: Sequence[int],
        *,
        away: Condition | None = None,
        guidance: float = 3.5,
        steps: int = 16,
        method: Method = "heun",
        shift: float = 1.0,
        batch_size: int = 64,
        progress: bool = False,
    ) -> Tensor:
        """Draw one image for each row of the condition.

        Args:
            condition: ``[N]`` rows.
            seeds: ``[N]`` the seed of each image's noise. Equal seeds start from equal noise, whatever the condition and whichever
                images are drawn beside: so before and after a patch differ by the condition alone.
            away: a second condition, to steer away from in place of no condition: a negative prompt.
            guidance: velocity is ``away + guidance * (condition - away)``; 1 is no guidance.
            steps, method, shift: as for :func:`~clipmend.generation.flow.integrate`.
            batch_size: images at once.
            progress: show a bar.

        Returns:
            uint8 ``[N, S, S, 3]``.

        Raises:
            ValueError: not one seed for each image, a condition of another size, one that is not finite, a guidance that is not,
                or images that come out so.
        """
        count, size = len(condition), self.decoder.config.embed_dim
        if len(seeds) != count or (away is not None and len(away) != count):
            raise ValueError(f"{count} conditions need as many seeds and conditions to steer from, not {len(seeds)}")
        if not math.isfinite(guidance) or not math.isfinite(shift):
            raise ValueError(f"guidance and shift must be numbers, not {guidance:g} and {shift:g}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        for one in (condition, away):
            if one is not None and (one.vectors.shape[1:] != (size,) or not one.vectors.isfinite().all()):
                raise ValueError(f"a condition must be finite, {size} numbers an image, not {list(one.vectors.shape)}")
        done = []
        starts = range(0, count, batch_size)
        for start in track(starts, len(starts), "drawing", progress):
            rows = slice(start, min(start + batch_size, count))
            done.append(self._batch(condition, away, rows, seeds[rows], guidance, steps, method, shift))
        side = self.decoder.config.image_size
        return torch.cat(done) if done else torch.zeros(0, side, side, 3, dtype=torch.uint8)

    def _batch(
        self, condition: Condition, away: Condition | None, rows: slice, seeds: Sequence[int], guidance: float, steps: int,
        method: Method, shift: float,
    ) -> Tensor:  # fmt: skip
        net, device = self.decoder, self.device
        told = self._told(condition, rows)
        noise = torch.stack([noise_of(seed, net.config) for seed in seeds]).to(device)
        if guidance == 1:
            latents = integrate(lambda x, t: net(x, t, told), noise, steps, method, shift)
        else:
            other = net.nothing.expand_as(told) if away is None else self._told(away, rows)
            both = torch.cat([other, told])

            def velocity(x: Tensor, t: Tensor) -> Tensor:
                base, wanted = net(torch.cat([x, x]), torch.cat([t, t]), both).chunk(2)
                return base + guidance * (wanted - base)

            latents = integrate(velocity, noise, steps, method, shift)
        pixels = net.pixels(latents)
        if not pixels.isfinite().all():
            raise ValueError(
                f"the drawn images are not finite: with guidance {guidance:g} the flow leaves all bounds; choose a smaller "
                "one, or more steps"
            )
        pixels = pixels.clamp(-1, 1)
        return ((pixels + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1).cpu()

    def _told(self, condition: Condition, rows: slice) -> Tensor:
        vectors = condition.vectors[rows].to(self.device, torch.float32)
        return self.decoder.embed_condition(vectors, torch.full((len(vectors),), float(condition.estimated), device=self.device))

    def save(self, folder: str | Path, dtype: torch.dtype = torch.float16) -> None:
        """Write ``model.safetensors`` and ``config.json`` to a folder, each beside its place and renamed into it.

        Raises:
            OSError: it cannot be written. ValueError: weights that are not finite, or too large for ``dtype``.
        """
        where = Path(folder)
        parts = {"decoder.": self.decoder, "prior.": self.prior}
        weights = {
            prefix + name: value.detach().to("cpu", dtype).contiguous()
            for prefix, module in parts.items()
            for name, value in module.state_dict().items()
        }
        broken = [name for name, value in weights.items() if not value.isfinite().all()]
        if broken:
            raise ValueError(f"{broken[0]} is not finite in {str(dtype).removeprefix('torch.')}: such a generator draws nothing")
        where.mkdir(parents=True, exist_ok=True)
        config = {
            "decoder": self.decoder.config.to_dict(),
            "prior": {"text_dim": self.prior.weight.shape[1], "image_dim": self.prior.weight.shape[0]},
            "backbone": self.backbone,
            "image_digest": self.image_digest,
            "text_digest": self.text_digest,
            "training": self.training,
        }
        part = where / "model.safetensors.part"
        with writing(part):
            save_file(weights, part, metadata={"format": "pt"})
        os.replace(part, where / "model.safetensors")
        (where / "config.json.part").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        os.replace(where / "config.json.part", where / "config.json")


def load_generator(name: str | Path = "scenes", device: str | torch.device | None = None) -> SceneGenerator:
    """Load a generator: the bundled ``"scenes"``, or a folder that :meth:`SceneGenerator.save` wrote.

    Raises:
        OSError: nothing there. ValueError: files that do not fit. ImportError: without diffusers.
    """
    where = BUNDLED.get(str(name), Path(name))
    try:
        config = json.loads((where / "config.json").read_text(encoding="utf-8"))
        weights = {key: value.float() for key, value in load_file(where / "model.safetensors").items()}
    except (FileNotFoundError, NotADirectoryError) as error:
        if str(name) in BUNDLED:
            raise OSError(f"the bundled generator is missing from {where}: install clipmend again") from error
        raise OSError(
            f"{where}: no trained generator there; train one, which takes an hour, with "
            "python -m clipmend.generation.train --out FOLDER"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{where / 'config.json'}: not JSON ({error})") from error
    except SafetensorError as error:
        raise ValueError(f"{where / 'model.safetensors'} cannot be read ({error})") from error
    try:
        about = {name: config.get(name, "") for name in ("backbone", "image_digest", "text_digest")}
        wrong = [name for name, value in about.items() if not isinstance(value, str)]
        if wrong or not isinstance(config.get("training", {}), dict):
            raise TypeError(f"{wrong[0] if wrong else 'training'} is of another type in config.json")
        strange = [name for name in weights if not name.startswith(("decoder.", "prior."))]
        broken = [name for name, value in weights.items() if not value.isfinite().all()]
        if strange or broken:
            raise ValueError(f"{strange[0]} is of no generator" if strange else f"{broken[0]} holds values that are not finite")
        decoder = SceneDecoder(DecoderConfig.from_dict(config["decoder"]))
        prior = LinearPrior(**config["prior"])
        for prefix, module in (("decoder.", decoder), ("prior.", prior)):
            module.load_state_dict({k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)})
    except (KeyError, TypeError, RuntimeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where}: model.safetensors and config.json are not those of a generator: {error}") from error
    training = config.get("training", {})
    return SceneGenerator(decoder.to(device or "cpu"), prior.to(device or "cpu"), **about, training=training)


def noise_of(seed: int, config: DecoderConfig) -> Tensor:
    """``[C, G, G]`` standard normal noise that a seed fixes.

    Raises:
        ValueError: a negative seed.
    """
    if seed < 0:
        raise ValueError(f"the seed must not be negative, got {seed}")
    # Seeds in a row give unrelated noise: a hash of the seed starts the generator.
    state = int(np.random.SeedSequence([seed, 0x5EED]).generate_state(1, np.uint64)[0] >> 1)
    generator = torch.Generator().manual_seed(state)
    return torch.randn(config.components, config.grid, config.grid, generator=generator)


def to_images(pixels: Tensor) -> list[Image.Image]:
    """uint8 ``[N, S, S, 3]`` to PIL images."""
    return [Image.fromarray(image) for image in pixels.numpy()]
