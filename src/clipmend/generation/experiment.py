"""The whole measurement in the drawn world: every way to leave a thing out, on prompts of every form, judged and scored.

    python -m clipmend.generation.experiment --judge judge --out measured

Each way draws each prompt from the same noise, so that differences are paired. Rows "image embedding" draw from the embedding
of a scene that the prompt is true of: what is lost there is the decoder's. "Denials left out" draws from the asserted part of the
prompt alone: what is lost there and not in the former is the prior's, and what only the prompt as it stands loses, the embedding's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track
from clipmend.checkpoint import exclusive
from clipmend.data.records import Caption
from clipmend.data.scenes import make_scenes, render
from clipmend.data.sheets import contact_sheet
from clipmend.generation.distance import frechet_distance, kernel_distance
from clipmend.generation.presence import PresenceJudge, load_presence_judge
from clipmend.generation.prompts import FORMS, THINGS, excluded, prompts_with_scenes, required
from clipmend.generation.rivals import METHODS, conditions
from clipmend.generation.sampling import Condition, SceneGenerator, load_generator, to_images
from clipmend.generation.score import Score, negation_score, score_difference
from clipmend.generation.train import print_if

__all__ = ["TRUE_IMAGE", "ExperimentConfig", "Measured", "run_experiment", "table"]

TRUE_IMAGE = "image embedding"


@dataclass(frozen=True)
class ExperimentConfig:
    """What is drawn.

    Args:
        prompts: of each form.
        seeds: images of each prompt.
        methods: of :data:`~clipmend.generation.rivals.METHODS`, or ``"image embedding"``.
        subset: wordings and things denied.
        steps, guidance, method: of sampling.
        weight: of query arithmetic.
        threshold: from which probability on the judge counts a thing as there.
    """

    prompts: int = 500
    seeds: int = 3
    methods: tuple[str, ...] = (*METHODS, TRUE_IMAGE)
    subset: str = "standard"
    steps: int = 12
    guidance: float = 2.0
    method: str = "heun"
    weight: float = 0.5
    threshold: float = 0.5


@dataclass
class Measured:
    """What came out.

    Args:
        scores: by form and method.
        distances: by method, on affirmative prompts: ``frechet``, ``kernel`` and its ``error``, in the backbone's embedding space,
            to as many drawn scenes of the test split.
        config: what was drawn.
    """

    scores: dict[str, dict[str, Score]]
    distances: dict[str, dict[str, float]]
    config: ExperimentConfig

    def to_dict(self) -> dict[str, Any]:
        """For JSON: scores, and the paired difference of each to ``"plain"``."""
        rows: dict[str, Any] = {}
        for form, by_method in self.scores.items():
            rows[form] = {}
            for method, score in by_method.items():
                rows[form][method] = score.to_dict()
                if method != "plain" and "plain" in by_method:
                    found = score_difference(by_method["plain"], score)
                    rows[form][method]["against_plain"] = {
                        name: None if value is None else {"difference": value.difference, "low": value.low, "high": value.high}
                        for name, value in vars(found).items()
                    }
        return {"config": asdict(self.config), "scores": rows, "distances": self.distances}


def run_experiment(
    generator: SceneGenerator,
    plain: DualEncoder,
    mended: DualEncoder,
    judge: PresenceJudge,
    out: str | Path,
    config: ExperimentConfig | None = None,
    *,
    progress: bool = False,
    report: bool = False,
) -> Measured:
    """Draw, judge, score; what is drawn is kept in ``out``, so that a second call goes on where the first was stopped.

    Args:
        generator: decoder and prior.
        plain: the backbone.
        mended: the same with a patch.
        judge: says what is in a drawn image.
        out: folder: images of each part (``.npy``), ``scores.json``, ``table.md``, and sheets of prompts before and after.
        config: what to draw.
        progress: bars, on a terminal.
        report: print each part as it is done.

    Raises:
        ValueError: another encoder than the generator's, an unknown method, a folder in use.
    """
    config, out = config or ExperimentConfig(), Path(out)
    generator.check(plain)
    generator.check(mended)
    unknown = [method for method in config.methods if method not in (*METHODS, TRUE_IMAGE)]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}: choose of {', '.join((*METHODS, TRUE_IMAGE))}")
    scores: dict[str, dict[str, Score]] = {}
    distances: dict[str, dict[str, float]] = {}
    with exclusive(out):
        drawn: dict[tuple[str, str], Tensor] = {}
        for form in FORMS:
            pairs = prompts_with_scenes(form, config.prompts, 0, config.subset)
            prompts = [prompt for prompt, _ in pairs]
            clusters = np.repeat(np.arange(len(prompts)), config.seeds)
            wanted = [things for things in required(prompts) for _ in range(config.seeds)]
            barred = [things for things in excluded(prompts) for _ in range(config.seeds)]
            scores[form] = {}
            for method in config.methods:
                if form == "affirmative" and method not in ("plain", "mended", TRUE_IMAGE):
                    continue  # nothing is denied: they draw what "plain" does
                if method == TRUE_IMAGE:
                    vectors = plain.encode_images([render(scene, 64) for _, scene in pairs])
                    told: tuple[Condition, Condition | None] = generator.of_images(vectors), None
                else:
                    told = conditions(method, generator, plain, prompts, mended=mended, weight=config.weight)
                pixels = _drawn(generator, told, config, out / f"{form}-{method.replace(' ', '-')}", progress)
                drawn[form, method] = pixels
                present = judge.probabilities(pixels, THINGS, progress=progress)
                scores[form][method] = negation_score(
                    wanted, barred, present, things=THINGS, clusters=clusters, threshold=config.threshold
                )
                print_if(report, f"{form}, {method}: {scores[form][method].to_dict()}")
            _sheet(prompts, drawn, form, config).save(out / f"{form}.png")
        real = make_scenes(config.prompts * config.seeds, 7_900, "test")
        base = plain.encode_images([render(scene, 64) for scene in track(real, len(real), "drawing scenes", progress)])
        for method in scores["affirmative"]:
            made = plain.encode_images(to_images(drawn["affirmative", method]))
            kernel = kernel_distance(base.numpy(), made.numpy())
            distances[method] = {
                "frechet": frechet_distance(base.numpy(), made.numpy()), "kernel": kernel.value, "error": kernel.error
            }  # fmt: skip
        measured = Measured(scores, distances, config)
        for name, text in (("scores.json", json.dumps(measured.to_dict(), indent=2) + "\n"), ("table.md", table(measured))):
            part = out / f"{name}.part"
            part.write_text(text, encoding="utf-8")
            part.replace(out / name)
    return measured


def _drawn(
    generator: SceneGenerator, told: tuple[Condition, Condition | None], config: ExperimentConfig, place: Path, progress: bool
) -> Tensor:
    """uint8 ``[prompts * seeds, S, S, 3]``, read where an earlier run drew the same."""
    condition, away = told
    sha = hashlib.sha256(json.dumps([config.steps, config.guidance, config.method, config.seeds]).encode())
    weights = [value for module in (generator.decoder, generator.prior) for value in module.state_dict().values()]
    for tensor in (condition.vectors, *([] if away is None else [away.vectors]), *weights):
        sha.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    kept = place.with_name(f"{place.name}-{sha.hexdigest()[:12]}.npy")
    if kept.exists():
        return torch.from_numpy(np.load(kept))
    seeds = list(range(config.seeds)) * len(condition)
    pixels = generator.sample(
        condition.repeated(config.seeds),
        [1000 * (row // config.seeds) + seed for row, seed in enumerate(seeds)],  # other noise for every prompt
        away=None if away is None else away.repeated(config.seeds),
        guidance=config.guidance,
        steps=config.steps,
        method=config.method,  # type: ignore[arg-type]  # checked there
        progress=progress,
    )
    part = kept.with_suffix(".part.npy")
    np.save(part, pixels.numpy())
    os.replace(part, kept)
    return pixels


def _sheet(prompts: Sequence[Caption], drawn: dict[tuple[str, str], Tensor], form: str, config: ExperimentConfig) -> Image.Image:
    """The first eight prompts, before and after."""
    shown = [method for method in ("plain", "mended") if (form, method) in drawn] or [config.methods[-1]]
    rows = [row * config.seeds for row in range(min(8, len(prompts)))]
    images = [image for method in shown for image in to_images(drawn[form, method][rows])]
    captions = [f"{method}: {prompts[row // config.seeds].text}" for method in shown for row in rows]
    return contact_sheet(images, captions, len(rows), tile=128, caption_lines=4)


def table(measured: Measured) -> str:
    """A Markdown table: a row for each form and method, shares in percent with the half-width of their intervals."""
    lines = [
        "| Prompts | Drawn from | Negation score | against plain | Presence recall | Exclusion success |",
        "|---|---|---|---|---|---|",
    ]
    for form, by_method in measured.scores.items():
        for method, score in by_method.items():
            against = ""
            if method != "plain" and "plain" in by_method:
                found = score_difference(by_method["plain"], score).score
                against = (
                    "" if found is None else f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
                )
            cells = [f"{100 * v:.1f}" if v == v else "" for v in (score.score, score.presence_recall, score.exclusion_success)]
            lines.append(f"| {form} | {method} | {cells[0]} | {against} | {cells[1]} | {cells[2]} |")
    lines += ["", "| Affirmative prompts | Frechet distance | Kernel distance |", "|---|---|---|"]
    for method, found_distances in measured.distances.items():
        lines.append(
            f"| {method} | {found_distances['frechet']:.3f} | {found_distances['kernel']:.4f} ± {found_distances['error']:.4f} |"
        )
    return "\n".join(lines) + "\n"


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clipmend.generation.experiment", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for images, scores and sheets")
    parser.add_argument("--judge", type=Path, required=True, help="folder of a judge")
    parser.add_argument("--generator", default="scenes", help="the bundled one, or a folder")
    parser.add_argument("--patch", default="scenes")
    defaults = ExperimentConfig()
    for name in ("prompts", "seeds", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    for name in ("guidance", "weight", "threshold"):
        parser.add_argument(f"--{name}", type=float, default=getattr(defaults, name))
    parser.add_argument("--subset", default=defaults.subset)
    parser.add_argument("--method", default=defaults.method, help="euler or heun")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    import clipmend
    from clipmend.negation import PeakPatch

    config = ExperimentConfig(
        args.prompts, args.seeds, defaults.methods, args.subset, args.steps, args.guidance, args.method, args.weight, args.threshold
    )  # fmt: skip
    plain = clipmend.load("scenes")
    mended = PeakPatch.from_pretrained(args.patch).apply(plain)
    measured = run_experiment(
        load_generator(args.generator), plain, mended, load_presence_judge(args.judge), args.out, config, progress=True, report=True
    )  # fmt: skip
    print(table(measured))


if __name__ == "__main__":
    _main()
