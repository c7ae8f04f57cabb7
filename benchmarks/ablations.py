"""What each part of the method brings, on drawn scenes: every variant fitted with several seeds on the same scenes and steps.

    python benchmarks/ablations.py --work ablations --json benchmarks/results/ablations.json
    python benchmarks/ablations.py --table --json benchmarks/results/ablations.json --page docs/ablations.md
    python benchmarks/ablations.py --work ablations --pictures scenes --page docs/ablations.md

The first fits and measures: the published network and ours with either objective, the published one without each of its parts and
with its peak at every layer, the backbone, and every rival. Each fit is one file in the folder ``--work``, and what lies there is
not made again, so that a run that was broken off is simply started again. The second writes tables and plot into the page, the
third a picture of searches before and after a patch (``scenes``: the one that comes with the backbone). All fits are on images
only: noun sets would make every variant several times as long.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch as substituted

import torch
from ablations_page import write_page, write_pictures
from acceptance import drawn, plain_texts
from rich.console import Console

import clipmend
from clipmend.backbones.base import DualEncoder
from clipmend.data.records import NegationData
from clipmend.data.scenes import negation_data_from_folder
from clipmend.evaluation import Evaluation, EvaluationData, evaluate, evaluate_rivals, read_folder, read_pairs
from clipmend.evaluation.remembering import RememberedTexts
from clipmend.evaluation.results import write_json
from clipmend.negation import networks
from clipmend.negation.features import extract_image_features

TASKS = ["choice", "retrieval", "negated_retrieval", "exclusion"]
TRAIN_SEED, VALIDATION_SEED, TEST_SEED = 100, 999, 20261129  # of the scenes; nothing was tuned on those of the test
VALIDATION_SCENES = 300  # that the rivals are tuned on
NO_ECN = 1e-30  # an alpha that leaves every embedding as it is, in float32, to the last bit
# The SCN alone: an ECN that starts at no effect and stays there, and none of the terms that would train it.
SCN_ONLY = {
    "ecn_learning_rate": 1e-12,
    "contrast_weight": 0.0,
    "guidance_weight": 0.0,
    "preservation_weight": 0.0,
    "free_penalty": 0.0,
}


@dataclass(frozen=True)
class Variant:
    """One way to fit.

    Args:
        label: its name in a table.
        part: the table it stands in: ``"main"``, ``"parts"`` or ``"peaks"``.
        changes: what its configuration changes.
        scn_only: leave the ECN without effect.
    """

    label: str
    part: str
    changes: dict[str, Any] = field(default_factory=dict)
    scn_only: bool = False


def variants(diagnosis: clipmend.Diagnosis) -> dict[str, Variant]:
    """Every variant by name, those that read the same layers one after another. The suggested peak is not fitted a second time."""
    last = len(diagnosis.layers)
    own = {"peak": diagnosis.peak, "anchor": diagnosis.anchor, "scn_layers": diagnosis.scn_layers, "text_only_weight": 0.0}
    paper = {**own, "use_direct": False}
    found = {
        "published-released": Variant("published network, `released`", "main", {**paper, "objective": "released"}),
        "published": Variant("published network, `truthful`", "main", paper),
        "direct-released": Variant("with direct paths, `released`", "main", {**own, "objective": "released"}),
        "direct": Variant("with direct paths, `truthful`", "main", own),
        "ecn-only": Variant("ECN only", "parts", {**paper, "use_scn": False}),
        "scn-only": Variant("SCN only", "parts", {**paper, **SCN_ONLY}, scn_only=True),
        "no-guidance": Variant("no guidance by the true parse", "parts", {**paper, "guidance_weight": 0.0}),
        "no-pool": Variant("no pool", "parts", {**paper, "use_pool": False}),
        "no-anchor": Variant("no anchor", "parts", {**paper, "use_anchor": False}),
        "pooled-only": Variant("pooled state only", "parts", {**paper, "eos_only": True}),
    }
    for peak in range(1, last + 1):
        if peak != diagnosis.peak:
            layers = {"peak": peak, "anchor": max(1, peak - 2), "scn_layers": tuple(sorted({peak, last}))}
            found[f"peak-{peak}"] = Variant(f"peak {peak}", "peaks", {**paper, **layers})
    return found


class Study:
    """Scenes, embeddings and results of one ``--work`` folder.

    Raises:
        ValueError: the folder holds another study.
    """

    def __init__(self, work: Path, settings: dict[str, int], console: Console) -> None:
        self.work, self.settings, self.console = work, settings, console
        known = work / "settings.json"
        if known.exists() and json.loads(known.read_text(encoding="utf-8")) != settings:
            raise ValueError(f"{known}: made with other scenes or steps than {settings}; choose another folder with --work")
        write_json(known, settings)
        self.encoder: DualEncoder = clipmend.load("scenes")
        self.measured = RememberedTexts(self.encoder)
        kept = work / "diagnosis.json"
        if not kept.exists():
            clipmend.diagnose(self.encoder, probes=False, bootstrap=200).to_json(kept)
        self.diagnosis = clipmend.Diagnosis.from_json(kept)
        self.variants = variants(self.diagnosis)
        self._data: tuple[NegationData, torch.Tensor, EvaluationData, dict[str, Any], torch.Tensor] | None = None

    def data(self) -> tuple[NegationData, torch.Tensor, EvaluationData, dict[str, Any], torch.Tensor]:
        """Training data and the embeddings of its images; tests, their image embeddings and those of their plain captions."""
        if self._data is None:
            drawn(self.work / "test", self.settings["test_scenes"], TEST_SEED, "test")
            drawn(self.work / "train", self.settings["scenes"], TRAIN_SEED, "train")
            training = negation_data_from_folder(self.work / "train")
            images = torch.as_tensor(extract_image_features(self.encoder, training.images, directory=self.work / "train-images"))
            tests = read_folder(self.work / "test")
            paths = [self.work / "test" / name for name in tests.images()]
            vectors = torch.as_tensor(extract_image_features(self.encoder, paths, directory=self.work / "test-images"))
            plain = self.encoder.encode_texts(plain_texts(tests))
            self._data = training, images, tests, dict(zip(tests.images(), vectors, strict=True)), plain
        return self._data

    def result(self, name: str) -> Path:
        return self.work / "results" / f"{name}.json"

    def backbone(self) -> None:
        """Measure the backbone."""
        _, _, tests, vectors, _ = self.data()
        write_json(self.result("backbone"), _kept(evaluate(self.encoder, tests, tasks=TASKS, image_embeddings=vectors)))

    def rivals(self) -> None:
        """Measure every rival, given the true parse and tuned on scenes of its own, task by task."""
        _, _, tests, vectors, _ = self.data()
        drawn(self.work / "validation", min(VALIDATION_SCENES, self.settings["scenes"]), VALIDATION_SEED, "train")
        pairs = read_pairs(self.work / "train" / "pairs.csv")[:500]
        tuning = self.work / "validation"
        found = evaluate_rivals(self.encoder, tests, tuning, pairs, tasks=TASKS, image_embeddings=vectors)
        write_json(self.result("rivals"), {name: _kept(evaluation) for name, evaluation in found.items()})

    def fit(self, name: str, seed: int) -> None:
        """Fit one variant with one seed and measure it."""
        training, images, tests, vectors, plain = self.data()
        variant = self.variants[name]
        began, worked = time.monotonic(), time.process_time()
        config = replace(clipmend.PeakPatchConfig(seed=seed, steps=self.settings["steps"]), **variant.changes)
        layers = "-".join(map(str, (config.anchor, config.peak, *(config.scn_layers or ()))))
        folder = self.work / "fits" / layers  # variants that read the same layers share their features
        (folder / "checkpoint.pt").unlink(missing_ok=True)  # of a fit that was broken off; starting it again costs little
        start: AbstractContextManager[Any] = nullcontext()
        if variant.scn_only:
            start = substituted.object(networks, "_INITIAL_ALPHA", NO_ECN)
        with start:
            patch = clipmend.fit(self.encoder, training, config, image_embeddings=images, directory=folder)
        (folder / "checkpoint.pt").unlink()
        if variant.scn_only and not patch.ecn.log_alpha.exp().item() < 10 * NO_ECN:
            raise RuntimeError("the ECN was to have no effect, but was trained")
        fitted = time.monotonic() - began
        mended = patch.apply(self.measured)
        kept = _kept(evaluate(mended, tests, tasks=TASKS, image_embeddings=vectors, samples=100))
        # Without an SCN the choice is the ECN's already.
        ecn = kept
        if patch.scn is not None:
            ecn = _kept(evaluate(mended, tests, tasks=["choice"], image_embeddings=vectors, score_correction=False))
        for group, values in kept.items():
            values.update({f"ecn/{key}": value for key, value in ecn[group].items() if key.startswith("choice/")})
            if patch.scn is None:
                kept[group] = {key: value for key, value in values.items() if not key.startswith("choice/")}
        kept["metrics"]["kept"] = (plain * mended.encode_texts(plain_texts(tests))).sum(-1).mean().item()
        made = {
            "variant": name,
            "seed": seed,
            "config": patch.config.to_dict(),
            "best_step": patch.metrics["best_step"],
            "seconds": {
                "fit": round(fitted, 1),
                "all": round(time.monotonic() - began, 1),
                "cpu": round(time.process_time() - worked, 1),
            },
            **kept,
        }
        write_json(self.result(f"{name}-seed{seed}"), made)
        values = made["metrics"]
        scn = f", {values['choice/acc/standard']:.3f} with the SCN" if patch.scn is not None else ""
        self.console.print(
            f"{name}, seed {seed}: {made['seconds']['all']:.0f} s; choice {values['ecn/choice/acc/standard']:.3f} by the ECN{scn}; "
            f"exclusion {values['exclusion/auroc/standard']:.3f}"
        )

    def run(self, wanted: Iterable[str], seeds: Sequence[int], out: Path | None) -> None:
        """Make what is not there yet, and gather it in ``out`` after every step."""
        wanted = list(wanted)
        todo: list[tuple[str, int | None]] = [(name, None) for name in ("backbone", "rivals") if name in wanted]
        # Seed by seed, so that a run that is broken off has something of every variant.
        todo += [(name, seed) for seed in seeds for name in self.variants if name in wanted]
        for number, (name, seed) in enumerate(todo, 1):
            path = self.result(name if seed is None else f"{name}-seed{seed}")
            if path.exists():
                continue
            self.console.print(f"[{number} of {len(todo)}]", end=" ", markup=False)
            if seed is not None:
                self.fit(name, seed)
            else:
                self.backbone() if name == "backbone" else self.rivals()
                self.console.print(name)
            if out is not None:
                write_json(out, self.gathered())
        if out is not None:
            write_json(out, self.gathered())

    def gathered(self) -> dict[str, Any]:
        """Everything measured so far, of any variant and seed, as ``--table`` reads it."""
        fits = [json.loads(p.read_text(encoding="utf-8")) for p in sorted((self.work / "results").glob("*-seed*.json"))]
        single = {name: self.result(name) for name in ("backbone", "rivals")}
        return {
            "settings": self.settings,
            "diagnosis": {
                "peak": self.diagnosis.peak,
                "anchor": self.diagnosis.anchor,
                "relative_lcd": {
                    str(row.layer): row.relative_lcd.to_dict() for row in self.diagnosis.layers if row.relative_lcd is not None
                },
            },
            "variants": {name: {"label": v.label, "part": v.part} for name, v in self.variants.items()},
            **{name: json.loads(path.read_text(encoding="utf-8")) for name, path in single.items() if path.exists()},
            "fits": [fit for fit in fits if fit["variant"] in self.variants],
        }


def _kept(found: Evaluation) -> dict[str, dict[str, Any]]:
    """Values, counts and intervals of an evaluation, flat: ``"choice/acc/standard"``; without single kinds of thing."""
    kept: dict[str, dict[str, Any]] = {"metrics": {}, "counts": {}, "intervals": {}}
    for task, result in found.results.items():
        for name, measure in result.measures().items():
            if "kind=" in name or not math.isfinite(measure.value):
                continue
            kept["metrics"][f"{task}/{name}"] = measure.value
            kept["counts"][f"{task}/{name}"] = measure.count
            if math.isfinite(measure.low) and math.isfinite(measure.high):
                kept["intervals"][f"{task}/{name}"] = [measure.low, measure.high]
    kept["settings"] = {task: result.pretrained for task, result in found.results.items() if result.pretrained}
    return kept


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--variants", nargs="+", metavar="NAME", help="some of the variants, backbone, rivals (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scenes", type=int, default=1200, help="training scenes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--test-scenes", type=int, default=400, help="held-out scenes")
    parser.add_argument("--work", type=Path, metavar="DIR", help="scenes, features and results, kept from run to run")
    parser.add_argument("--json", type=Path, metavar="OUT", help="everything measured in one file")
    parser.add_argument("--table", action="store_true", help="no fits: tables and plot from what --json OUT holds")
    parser.add_argument("--pictures", metavar="PATCH", help="no fits: searches among the held-out scenes before and after a patch")
    parser.add_argument("--page", type=Path, metavar="FILE", help="the page that gets the tables, with its pictures in images/")
    args = parser.parse_args(arguments)
    console = Console(width=130, highlight=False)
    if args.table:
        if args.json is None or not args.json.is_file():
            parser.error("--table reads what an earlier run wrote: give its --json OUT")
        text = write_page(json.loads(args.json.read_text(encoding="utf-8")), args.page)
        if args.page is None:
            print(text)
        return
    if args.work is None:
        parser.error("give a folder with --work")
    settings = {"scenes": args.scenes, "steps": args.steps, "test_scenes": args.test_scenes}
    if args.pictures:
        drawn(args.work / "test", args.test_scenes, TEST_SEED, "test")
        target = (args.page.parent / "images" if args.page else args.work) / "ablations-search.png"
        console.print(write_pictures(args.pictures, args.work / "test", args.work / "test-index", target), markup=False)
        return
    study = Study(args.work, settings, console)
    before = study.encoder.fingerprint
    names = ["backbone", "rivals", *study.variants]
    wanted = args.variants or names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no variant {', '.join(unknown)}; there are {', '.join(names)}")
    study.run(wanted, args.seeds, args.json)
    if study.encoder.fingerprint != before or clipmend.load("scenes").fingerprint != before:
        sys.exit("the backbone changed")


if __name__ == "__main__":
    main()
