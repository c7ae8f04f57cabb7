"""Fine-tuning on long captions in the drawn world: InfoNCE against HN-CLIP and the other recipes, at an equal budget.

    python benchmarks/dense_model.py --out small-clip --work small-clip.work
    python benchmarks/dense_experiment.py --model small-clip --work dense --json benchmarks/results/dense.json
    python benchmarks/dense_experiment.py --table --work dense --json benchmarks/results/dense.json --page docs/dense-experiment.md

The second line trains and measures, and takes hours; each run is a file in ``--work``, a killed one goes on from its checkpoint,
and what is there is not made again. ``--jobs 2 --job 0`` and ``--jobs 2 --job 1`` share the runs between two processes. The
learning rate was chosen for InfoNCE, on a part of the training images (``--choose-rate``), and every other run has the same. The
third line writes tables, plots and pictures into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from dense_runs import THREE_SEEDS, Run, runs

import clipmend
from clipmend.cli.app import main as command
from clipmend.data.dense import DenseData, read_dense
from clipmend.dense import FinetuneConfig, finetune
from clipmend.dense.pairs import Pairs, open_pairs
from clipmend.dense.progress import METRICS, read_metrics
from clipmend.evaluation import DenseResult, evaluate_dense

LENGTH = 248
PIXELS = 60
TRAIN_SEED, TEST_SEED = 41_000, 20_261_130  # of the scenes; nothing was tuned on those of the test
KEPT_WEIGHTS = ("plain", "margin", "hn-clip")  # of the first seed, for the pictures
LENS_EVERY = 4


class Experiment:
    """Scenes, runs and results of one ``--work`` folder.

    Raises:
        ValueError: the folder holds another experiment.
    """

    def __init__(self, model: Path, work: Path, settings: dict[str, Any]) -> None:
        self.model, self.work, self.settings = model, work, settings
        work.mkdir(parents=True, exist_ok=True)
        known = work / "settings.json"
        described = settings | {"model": clipmend.load(str(model), device="cpu").fingerprint.to_dict()}
        if known.exists() and json.loads(known.read_text(encoding="utf-8")) != described:
            raise ValueError(f"{known}: made with another model or other settings; choose another folder with --work")
        _write(known, described)
        self._draw("train", settings["scenes"], TRAIN_SEED)
        self._draw("test", settings["test_scenes"], TEST_SEED)
        self._test: DenseData | None = None

    def _draw(self, split: str, count: int, seed: int) -> None:
        folder = self.work / split
        if (folder / "dense.jsonl").exists():
            return
        fresh = self.work / f".{split}.{os.getpid()}"
        _run(["scenes", str(fresh), "--count", str(count), "--size", str(PIXELS), "--seed", str(seed), "--split", split])
        try:
            os.replace(fresh, folder)
        except OSError:  # another process was first
            shutil.rmtree(fresh, ignore_errors=True)

    @property
    def parts(self) -> Path:
        """The training images' parts with their sentences, in GOAL's format, made by the documented command."""
        made = self.work / "train" / "parts.json"
        if not made.exists():
            _run(["data", "segments", str(self.work / "train"), "-o", str(made), "--by", "skimage", "--match", str(self.model),
                  "--set", "scale=60"])  # fmt: skip
        return made

    def test(self) -> DenseData:
        if self._test is None:
            self._test = read_dense("scenes", self.work / "test")
        return self._test

    def pairs(self, run: Run) -> Pairs:
        """The training pairs: of a share, the first images, whatever the seed."""
        source = f"goal:{self.parts}" if run.recipe in ("goal", "structxlip") else str(self.work / "train")
        pairs = open_pairs(source)
        if run.share == 100:
            return pairs
        count = round(len(pairs.images) * run.share / 100)
        rows = np.flatnonzero(pairs.image_of < count)
        return Pairs(
            name=f"{run.share} % of {pairs.name}", images=pairs.images[:count], captions=[pairs.captions[row] for row in rows],
            image_of=pairs.image_of[rows], image_ids=pairs.image_ids[:count],
        )  # fmt: skip

    def config(self, run: Run, seed: int, rate: float) -> FinetuneConfig:
        return FinetuneConfig(
            recipe=run.make(rate), length=LENGTH, steps=self.settings["steps"], batch_size=self.settings["batch_size"],
            validate_every=max(1, self.settings["steps"] // 4), choose="last", seed=seed, lens_every=LENS_EVERY if run.lens else 0,
        )  # fmt: skip

    def result(self, name: str) -> Path:
        return self.work / "results" / f"{name}.json"

    def backbone(self) -> None:
        """The model as it is, and stretched without a training."""
        stretched = self.work / "models" / "stretched"
        if not stretched.exists():
            _run(["stretch", str(self.model), "-o", str(stretched), "--length", str(LENGTH)])
        for name, folder in (("untrained-77", self.model), ("untrained-248", stretched)):
            if not self.result(name).exists():
                encoder = clipmend.load(str(folder), device="cpu")
                self._keep(name, {"variant": name}, evaluate_dense(encoder, self.test()))

    def train(self, name: str, run: Run, seed: int) -> None:
        """Train and measure one run."""
        label = f"{name}-seed{seed}"
        folder = self.work / "runs" / label
        began, worked = time.monotonic(), time.process_time()
        done = finetune(
            str(self.model), self.pairs(run), self.config(run, seed, self.settings["rate"]), directory=folder, workers=1
        )
        trained = time.monotonic() - began
        measured = evaluate_dense(done.encoder, self.test())
        seen = {"lens": done.lens, "curve": _lens_curve(read_metrics(folder / METRICS))} if run.lens else {}
        about = {
            "variant": name, "seed": seed, "negatives": self.settings["batch_size"] - 1, "truncated": done.truncated.told(),
            "validation": done.history, "seconds": {"training": round(trained, 1), "cpu": round(time.process_time() - worked, 1)},
            **seen,
        }  # fmt: skip
        if name in KEPT_WEIGHTS and seed == 0:
            done.save(self.work / "models" / name, overwrite=True)
        self._keep(label, about, measured)
        shutil.rmtree(folder)  # checkpoints; what matters is kept
        values = measured.metrics
        print(f"{label}: {trained:.0f} s; recall@1 {values['image_retrieval_recall@1']:.3f} / "
              f"{values['text_retrieval_recall@1']:.3f}", flush=True)  # fmt: skip

    def _keep(self, label: str, about: dict[str, Any], measured: DenseResult) -> None:
        target = self.result(label)
        target.parent.mkdir(exist_ok=True)
        answers: dict[str, Any] = {f"twins_{name}": share.hits for name, share in measured.twin_shares.items()}
        answers |= {
            "text_ranks": measured.text_ranks.astype(np.int32), "image_ranks": measured.image_ranks.astype(np.int32),
            "image_of": measured.image_of, "leader": measured.leader,
        }  # fmt: skip
        part = target.with_suffix(".npz.part")
        with part.open("wb") as file:
            np.savez_compressed(file, **answers)
        os.replace(part, target.with_suffix(".npz"))
        measures = {name: [m.value, m.low, m.high, m.count] for name, m in measured.measures().items()}
        _write(target, about | {"measures": measures})

    def run(self, wanted: Sequence[str], seeds: Sequence[int], job: int, jobs: int) -> None:
        """Make what is not there yet."""
        if job == 0:
            self.backbone()
        known = runs()
        todo = [
            (name, run, seed) for name, run in known.items() for seed in seeds
            if name in wanted and (seed == seeds[0] or run.part in THREE_SEEDS)
        ]  # fmt: skip
        for name, run, seed in todo[job::jobs]:
            if not self.result(f"{name}-seed{seed}").exists():
                self.train(name, run, seed)

    def choose_rate(self, rates: Sequence[float]) -> None:
        """InfoNCE with several learning rates: their recall on the training images that are held out (never the test)."""
        for rate in rates:
            done = finetune(
                str(self.model), self.pairs(Run("", "", "plain")), self.config(Run("", "", "plain"), 100, rate), workers=1
            )
            print(f"{rate:g}: " + "; ".join(f"step {h['step']} {h['score']:.1f}" for h in done.history), flush=True)

    def gathered(self) -> dict[str, Any]:
        """Everything measured so far."""
        found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((self.work / "results").glob("*.json"))]
        return {"settings": self.settings, "runs": found}


def _lens_curve(metrics: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    from clipmend.dense.lens import entries_of

    return [{name: round(value, 6) for name, value in entry.items()} for entry in entries_of(metrics)]


def _write(path: Path, content: Any) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(part, path)


def _run(arguments: list[str]) -> None:
    """A command of the command line, in this process."""
    before = sys.argv
    sys.argv = ["clipmend", *arguments]
    try:
        command()
    except SystemExit as stop:
        if stop.code:
            raise RuntimeError(f"clipmend {' '.join(arguments)} failed") from stop
    finally:
        sys.argv = before


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="what dense_model.py made")
    parser.add_argument("--work", type=Path, required=True, help="scenes, checkpoints and results, kept from run to run")
    parser.add_argument("--json", type=Path, help="everything measured in one file")
    parser.add_argument("--runs", nargs="+", metavar="NAME", help="some of the runs (default: all)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scenes", type=int, default=4_000, help="training scenes")
    parser.add_argument("--test-scenes", type=int, default=1_000, help="held-out scenes, each with a near-twin in the gallery")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2.5e-4)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--job", type=int, default=0)
    parser.add_argument(
        "--choose-rate", type=float, nargs="+", metavar="RATE", help="only: InfoNCE with these rates, by held-out training images"
    )
    parser.add_argument("--table", action="store_true", help="no training: tables and plots from what is there")
    parser.add_argument("--page", type=Path, help="the page that gets them, with its pictures in images/")
    args = parser.parse_args(arguments)
    if args.table:
        from dense_page import write_page

        text = write_page(json.loads(args.json.read_text(encoding="utf-8")), args.work, args.page)
        if args.page is None:
            print(text)
        return
    if args.model is None:
        parser.error("give --model")
    settings = {name: getattr(args, name) for name in ("scenes", "test_scenes", "steps", "batch_size", "rate")}
    known = runs()
    if unknown := sorted(set(args.runs or ()) - set(known)):
        parser.error(f"no run {', '.join(unknown)}; there are {', '.join(known)}")
    if args.choose_rate:
        Experiment(args.model, args.work / "rates", settings | {"rate": 0.0}).choose_rate(args.choose_rate)
        return
    experiment = Experiment(args.model, args.work, settings)
    experiment.run(args.runs or list(known), args.seeds, args.job, args.jobs)
    if args.json is not None:
        _write(args.json, experiment.gathered())


if __name__ == "__main__":
    main()
