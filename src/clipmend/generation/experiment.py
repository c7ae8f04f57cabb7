"""The whole measurement in the drawn world: every way to leave a thing out, on prompts of every form, judged and scored.

    python -m clipmend.generation.experiment --generator generator --judge judge --out measured

Each way draws each prompt from the same noise, so that differences are paired. Four rows tell where things are lost.

- "Scene itself": drawn scenes that the prompts are true of, judged. What is lost there is the judge's.
- "Image embedding" draws from the embeddings of these scenes. What is lost there besides is the decoder's.
- "Denials left out" draws from the asserted part of a prompt alone. Presence that is lost there besides is the prior's, or was
  never in the text embedding; what only the prompt as it stands loses goes with its denial.
- "Any scene": how often scenes of the test split fit a prompt by chance. Their content is known, and no judge is asked. Most scenes
  do not show a given kind, so that exclusion success begins there and not at 0: "denials left out" respects about that many.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
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
from clipmend.data.scenes import render, scene_facts
from clipmend.data.sheets import contact_sheet
from clipmend.generation.command import print_if, run_main, save_png
from clipmend.generation.distance import frechet_distance, kernel_distance
from clipmend.generation.flow import METHODS as FLOWS
from clipmend.generation.hand_check import Judged, write_sample
from clipmend.generation.presence import PresenceJudge, load_presence_judge
from clipmend.generation.prompts import FORMS, THINGS, excluded, prompts_with_scenes, required
from clipmend.generation.rivals import METHODS, conditions
from clipmend.generation.sampling import Condition, SceneGenerator, load_generator, to_images
from clipmend.generation.score import Score, negation_score, score_difference
from clipmend.generation.world import few_objects_scenes

__all__ = ["SCENE", "TRUE_IMAGE", "ExperimentConfig", "Measured", "run_experiment", "table"]

TRUE_IMAGE, SCENE, ANY = "image embedding", "scene itself", "any scene"


@dataclass(frozen=True)
class ExperimentConfig:
    """What is drawn.

    Args:
        prompts: of each form.
        seeds: images of each prompt.
        methods: of :data:`~clipmend.generation.rivals.METHODS`, or ``"image embedding"``, or ``"scene itself"``.
        subset: wordings and things denied.
        steps, guidance, method: of sampling.
        weight: of query arithmetic.
        threshold: from which probability on the judge counts a thing as there.

    Raises:
        ValueError: fewer than two images, an unknown or repeated method, or numbers outside their bounds.
    """

    prompts: int = 500
    seeds: int = 3
    methods: tuple[str, ...] = (*METHODS, TRUE_IMAGE, SCENE)
    subset: str = "standard"
    steps: int = 12
    guidance: float = 3.5
    method: str = "euler"
    weight: float = 0.5
    threshold: float = 0.5

    def __post_init__(self) -> None:
        if min(self.prompts, self.seeds, self.steps) < 1 or self.prompts * self.seeds < 2:
            raise ValueError("prompts, seeds and steps must be at least 1, and images at least 2")
        if not (math.isfinite(self.guidance) and math.isfinite(self.weight) and 0 < self.threshold <= 1):
            raise ValueError("guidance and weight must be numbers, and threshold above 0 and at most 1")
        if self.method not in FLOWS:
            raise ValueError(f"unknown method of sampling {self.method!r}: choose one of {', '.join(FLOWS)}")
        known = (*METHODS, TRUE_IMAGE, SCENE)
        unknown = [method for method in self.methods if method not in known]
        if unknown or not self.methods or len(set(self.methods)) < len(self.methods):
            told = f"unknown method {unknown[0]!r}" if unknown else "one method at least, each once"
            raise ValueError(f"{told}: choose of {', '.join(known)}")


@dataclass
class Measured:
    """What came out.

    Args:
        scores: by form and method.
        distances: by method, on affirmative prompts: ``frechet``, ``kernel`` and its ``error``, in the backbone's embedding space,
            to as many drawn scenes of the test split. ``"any scene"``: of as many others of these, which is the least to expect.
        config: what was drawn.
        chance: by form, how often any drawn scene fits: ``score``, ``presence_recall``, ``exclusion_success`` (``None``: nothing
            asks for it).
    """

    scores: dict[str, dict[str, Score]]
    distances: dict[str, dict[str, float | None]]
    config: ExperimentConfig
    chance: dict[str, dict[str, float | None]] = field(default_factory=dict)

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
        return {"config": asdict(self.config), "scores": rows, "chance": self.chance, "distances": self.distances}


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
        out: folder: images of each part (``.npy``), ``scores.json``, ``table.md``, sheets of prompts before and after, and, to
            judge by hand, 100 of the images (:func:`~clipmend.generation.hand_check.write_sample`).
        config: what to draw.
        progress: bars, on a terminal.
        report: print each part as it is done.

    Raises:
        ValueError: another encoder than the generator's, a folder in use.
    """
    config, out = config or ExperimentConfig(), Path(out)
    generator.check(plain)
    generator.check(mended)
    scores: dict[str, dict[str, Score]] = {}
    distances: dict[str, dict[str, float | None]] = {}
    with exclusive(out):
        real = few_objects_scenes(config.prompts * config.seeds, 7_900, "test")
        facts = [scene_facts(scene) for scene in real]
        chance: dict[str, dict[str, float | None]] = {}
        drawn: dict[tuple[str, str], Tensor] = {}
        asked: list[Judged] = []
        for form in FORMS:
            pairs = prompts_with_scenes(form, config.prompts, 0, config.subset)
            prompts, scenes = [prompt for prompt, _ in pairs], [render(scene, 64) for _, scene in pairs]
            clusters = np.repeat(np.arange(len(prompts)), config.seeds)
            wanted = [things for things in required(prompts) for _ in range(config.seeds)]
            barred = [things for things in excluded(prompts) for _ in range(config.seeds)]
            scores[form], chance[form] = {}, _by_chance(prompts, facts)
            for method in config.methods:
                if form == "affirmative" and method not in ("plain", "mended", TRUE_IMAGE, SCENE):
                    continue  # nothing is denied: they draw what "plain" does
                if method == SCENE:
                    shown = np.stack([np.asarray(image) for image in scenes])
                    pixels = torch.from_numpy(shown).repeat_interleave(config.seeds, 0)
                else:
                    told: tuple[Condition, Condition | None]
                    if method == TRUE_IMAGE:
                        told = generator.of_images(plain.encode_images(scenes)), None
                    else:
                        told = conditions(method, generator, plain, prompts, mended=mended, weight=config.weight)
                    pixels = _drawn(generator, told, config, out / f"{form}-{method.replace(' ', '-')}", progress)
                    drawn[form, method] = pixels
                present = judge.probabilities(pixels, THINGS, progress=progress)
                scores[form][method] = negation_score(
                    wanted, barred, present, things=THINGS, clusters=clusters, threshold=config.threshold
                )
                if method in ("plain", "mended"):
                    asked += [
                        Judged(form, method, prompts[row // config.seeds], pixels[row], row % config.seeds, present[row])
                        for row in range(len(present))
                    ]
                print_if(report, f"{form}, {method}: {scores[form][method].to_dict()}")
            if any(form == kind for kind, _ in drawn):
                save_png(_sheet(prompts, drawn, form, config), out / f"{form}.png")
        if asked:
            write_sample(asked, config.threshold, out)
        base = plain.encode_images([render(scene, 64) for scene in track(real, len(real), "drawing scenes", progress)])
        others = few_objects_scenes(len(real), 7_901, "test")
        for method in (ANY, *(method for form, method in drawn if form == "affirmative")):
            images = [render(scene, 64) for scene in others] if method == ANY else to_images(drawn["affirmative", method])
            made = plain.encode_images(images)
            kernel = kernel_distance(base.numpy(), made.numpy())
            distances[method] = {
                "frechet": frechet_distance(base.numpy(), made.numpy()), "kernel": kernel.value, "error": kernel.error
            }  # fmt: skip
        measured = Measured(scores, distances, config, chance)
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
    there = [method for kind, method in drawn if kind == form]
    shown = [method for method in ("plain", "mended") if method in there] or there[-1:]
    rows = [row * config.seeds for row in range(min(8, len(prompts)))]
    images = [image for method in shown for image in to_images(drawn[form, method][rows])]
    captions = [f"{method}: {prompts[row // config.seeds].text}" for method in shown for row in rows]
    return contact_sheet(images, captions, len(rows), tile=128, caption_lines=4)


def _by_chance(prompts: Sequence[Caption], facts: Sequence[frozenset[str]]) -> dict[str, float | None]:
    """The three shares for scenes of known content, each against every prompt."""
    hits, presence, exclusion = [], [], []
    for want, bar in zip(required(prompts), excluded(prompts), strict=True):
        hits.append(np.mean([want <= known and not bar & known for known in facts]))
        presence += [np.mean([thing in known for known in facts]) for thing in want]
        exclusion += [np.mean([not bar & known for known in facts])] if bar else []
    return {
        name: float(np.mean(values)) if values else None
        for name, values in (("score", hits), ("presence_recall", presence), ("exclusion_success", exclusion))
    }


_MEASURES = {"score": "Negation score", "presence_recall": "Presence recall", "exclusion_success": "Exclusion success"}


def table(measured: Measured) -> str:
    """Markdown: a row for each form and way, shares in percent with their 95 % intervals, and in brackets the paired difference to
    plain with its own."""
    lines = [f"| Prompts | Drawn from | {' | '.join(_MEASURES.values())} |", "|---|---|---|---|---|"]
    for form, by_method in measured.scores.items():
        for method, score in by_method.items():
            change = score_difference(by_method["plain"], score) if method != "plain" and "plain" in by_method else None
            told, cells = score.to_dict(), []
            for name in _MEASURES:
                cell = "" if told[name] is None else f"{100 * told[name]:.1f} ({_span(*told[f'{name}_interval'])})"
                against = None if change is None else getattr(change, name)
                if cell and against is not None:
                    cell += f" [{100 * against.difference:+.1f}: {_span(against.low, against.high, '+')}]"
                cells.append(cell)
            lines.append(f"| {form} | {method} | {' | '.join(cells)} |")
        if form in measured.chance:
            cells = ["" if value is None else f"{100 * value:.1f}" for value in measured.chance[form].values()]
            lines.append(f"| {form} | *{ANY}* | {' | '.join(cells)} |")
    lines += ["", "| Affirmative prompts | Frechet distance | Kernel distance |", "|---|---|---|"]
    for method, found in measured.distances.items():
        error = "" if found["error"] is None else f" ± {found['error']:.4f}"
        lines.append(f"| {method} | {found['frechet']:.3f} | {found['kernel']:.4f}{error} |")
    return "\n".join(lines) + "\n"


def _span(low: float | None, high: float | None, sign: str = "") -> str:
    return " to ".join("?" if bound is None or bound != bound else f"{100 * bound:{sign}.1f}" for bound in (low, high))


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m clipmend.generation.experiment", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for images, scores and sheets")
    parser.add_argument("--judge", type=Path, required=True, help="folder that python -m clipmend.generation.presence wrote")
    parser.add_argument("--generator", default="scenes", help="the bundled one, or a folder (default scenes)")
    parser.add_argument("--patch", default="scenes", help="the bundled one, or a folder (default scenes)")
    defaults = ExperimentConfig()
    told = {
        "prompts": "prompts of each form", "seeds": "images of each prompt", "steps": "steps from noise to image",
        "guidance": "how strongly a condition leads", "weight": "of what is denied, in query arithmetic",
        "threshold": "probability from which the judge sees a thing",
    }  # fmt: skip
    for name, text in told.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default {default:g})")
    parser.add_argument(
        "--subset", default=defaults.subset, choices=("standard", "reserved_wording", "reserved_kind"),
        help="wordings and things denied: those of the patch's training, or reserved ones (default standard)",
    )  # fmt: skip
    parser.add_argument("--method", default=defaults.method, choices=FLOWS, help="how a step is taken (default euler)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (0: torch's own choice)")
    args = parser.parse_args()
    if args.threads > 0:
        torch.set_num_threads(args.threads)
    config = ExperimentConfig(
        args.prompts, args.seeds, defaults.methods, args.subset, args.steps, args.guidance, args.method, args.weight, args.threshold
    )  # fmt: skip
    import clipmend
    from clipmend.negation import PeakPatch

    plain = clipmend.load("scenes")
    mended = PeakPatch.from_pretrained(args.patch).apply(plain)
    measured = run_experiment(
        load_generator(args.generator), plain, mended, load_presence_judge(args.judge), args.out, config, progress=True, report=True
    )  # fmt: skip
    print(table(measured))


if __name__ == "__main__":
    run_main(_main)
