"""The page of the experiment on dense captions: tables, plots and pictures from what ``dense_experiment.py`` measured."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _pages import half_width, put_between, table, write
from dense_runs import FRAMEWORKS, GAMMAS, SHARES, WEIGHTINGS, runs
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

BEGIN, END = "<!-- dense: begin -->", "<!-- dense: end -->"
SMALL = (1000, 100)  # fewer scenes or steps show that the script runs, and nothing else
DRAWS = 2000
FORTH, BACK = "image_retrieval_recall@1", "text_retrieval_recall@1"
COLUMNS = (
    ("text → image R@1", FORTH),
    ("R@5", "image_retrieval_recall@5"),
    ("image → text R@1", BACK),
    ("R@5", "text_retrieval_recall@5"),
    ("twins: image by text", "twins/image_by_text"),
    ("text by image", "twins/text_by_image"),
)
Hits = dict[str, NDArray[np.float64]]


class Found:
    """What was measured, by run and seed.

    Args:
        gathered: what ``dense_experiment.py --json`` writes.
        work: its folder, with the answers to every question.
    """

    def __init__(self, gathered: dict[str, Any], work: Path) -> None:
        self.settings, self.work, self.known = gathered["settings"], work, runs()
        self.runs: dict[str, dict[int, dict[str, Any]]] = {}
        self.untrained: dict[str, dict[str, Any]] = {}
        for run in gathered["runs"]:
            if "seed" in run:
                self.runs.setdefault(run["variant"], {})[run["seed"]] = run
            else:
                self.untrained[run["variant"]] = run
        self._hits: dict[str, Hits] = {}

    def there(self, *names: str) -> list[str]:
        return [name for name in names if name in self.runs]

    def values(self, name: str, measure: str) -> dict[int, float]:
        return {seed: run["measures"][measure][0] for seed, run in self.runs[name].items()}

    def hits(self, name: str, seed: int) -> Hits:
        """By measure whether each question was answered; ``of``: image of each caption, ``leader``: first of its twins."""
        label = f"{name}-seed{seed}"
        if label not in self._hits:
            with np.load(self.work / "results" / f"{label}.npz") as kept:
                texts, images, of = kept["text_ranks"], kept["image_ranks"], kept["image_of"]
                self._hits[label] = {
                    FORTH: (texts <= 1).astype(float), BACK: (images <= 1).astype(float), "of": of, "leader": kept["leader"],
                    "twins/image_by_text": kept["twins_image_by_text"].astype(float),
                }  # fmt: skip
        return self._hits[label]

    def difference(self, name: str, base: str) -> dict[str, Any]:
        """R@1, mean of both ways, less another run's, paired by seed and question: mean, each seed's, interval over scenes."""
        seeds = sorted(set(self.runs[name]) & set(self.runs[base]))
        per_seed, rows = [], []
        for seed in seeds:
            one, other = self.hits(name, seed), self.hits(base, seed)
            count = len(one[BACK])
            row = np.zeros(count)
            np.add.at(row, one["of"].astype(int), (one[FORTH] - other[FORTH]) / 2)
            row += (one[BACK] - other[BACK]) / 2
            rows.append(row)
            leader = one["leader"]
            per_seed.append(100 * float(row.mean()))
        mean = np.mean(rows, axis=0)  # [images], over seeds
        _, place = np.unique(leader, return_inverse=True)  # a scene and its twin are drawn together
        scenes = np.bincount(place, weights=mean) / np.bincount(place)
        draws = np.random.default_rng(0).integers(len(scenes), size=(DRAWS, len(scenes)))
        low, high = np.quantile(100 * scenes[draws].mean(1), (0.025, 0.975))
        return {"mean": 100 * float(mean.mean()), "seeds": per_seed, "low": float(low), "high": float(high)}


def _cell(values: Sequence[float]) -> str:
    mean, half = 100 * float(np.mean(values)), 100 * half_width(values)
    return f"{mean:.1f}" + ("" if np.isnan(half) else f" ± {half:.1f}")


def _gain(found: Found, name: str, base: str) -> str:
    if name == base or base not in found.runs:
        return ""
    d = found.difference(name, base)
    text = f"{d['mean']:+.1f} ({d['low']:+.1f} to {d['high']:+.1f})"
    if len(d["seeds"]) > 1:
        text += "; " + ", ".join(f"{value:+.1f}" for value in d["seeds"])
    return text


def _rows(found: Found, names: Sequence[str], base: Callable[[str], str] | None) -> list[list[str]]:
    rows = []
    for name in names:
        row = [found.known[name].label, *(_cell(list(found.values(name, key).values())) for _, key in COLUMNS)]
        rows.append(row + ([_gain(found, name, base(name))] if base else []))
    return rows


def write_page(gathered: dict[str, Any], work: Path, page: Path | None) -> str:
    """Tables, plots and pictures as Markdown.

    Args:
        gathered: what ``dense_experiment.py --json`` writes.
        work: its folder.
        page: put them between its two marks, and plots and pictures into ``images/`` beside it.

    Raises:
        ValueError: nothing was trained yet, or the page lacks the marks.
    """
    found = Found(gathered, work)
    if "plain" not in found.runs:
        raise ValueError("InfoNCE was not trained yet: there is nothing to compare with")
    blocks = [
        _heading(found),
        *_main(found),
        *_saturation(found),
        *_gammas(found),
        *_shares(found),
        *_frameworks(found),
        *_others(found),
    ]
    if page is not None:
        images = page.parent / "images"
        images.mkdir(exist_ok=True)
        plot(found, images / "dense-experiment.png")
        blocks.append(
            "![Recall by gamma and by share of the data, losses and captions' likeness while training](images/dense-experiment.png)"
        )
        if (work / "models" / "margin").exists():
            from dense_pictures import write_pictures

            blocks += [
                "### Searches",
                write_pictures(work, images / "dense-searches.png"),
                "![Searches](images/dense-searches.png)",
            ]
    text = "\n\n".join(block for block in blocks if block)
    if page is not None:
        put_between(page, (BEGIN, END), text)
    return text


def _heading(found: Found) -> str:
    s = found.settings
    seconds = [run["seconds"]["training"] for seeds in found.runs.values() for run in seeds.values()]
    cpu = sum(run["seconds"]["cpu"] for seeds in found.runs.values() for run in seeds.values()) / 3600
    lines = []
    if s["scenes"] < SMALL[0] or s["steps"] < SMALL[1]:
        lines.append("**From a tiny run, which shows that the script runs: these are no results.**\n")
    lines.append(
        f"{s['scenes']:,} training scenes, {s['steps']} steps of {s['batch_size']} pairs "
        f"({s['batch_size'] - 1} negatives a query), learning rate {s['rate']:g}, {s['test_scenes']:,} held-out scenes with a "
        f"near-twin each: a gallery of {2 * s['test_scenes']:,}. "
        f"{len(seconds)} trainings of {min(seconds):.0f} to {max(seconds):.0f} s, {cpu:.1f} hours of processor time with measuring."
    )
    return "\n".join(lines)


def _main(found: Found) -> list[str]:
    head = ["", *(heading for heading, _ in COLUMNS), "R@1 (both ways) less InfoNCE's"]
    rows = []
    for name, label in (("untrained-77", "as it was made, 77 positions"), ("untrained-248", "stretched to 248, not trained")):
        if name in found.untrained:
            measures = found.untrained[name]["measures"]
            rows.append([label, *(f"{100 * measures[key][0]:.1f}" for _, key in COLUMNS), ""])
    names = found.there("plain", "margin", "hn-clip", "tokens", "frozen")
    rows += _rows(found, names, lambda name: "plain")
    blocks = ["### InfoNCE against HN-CLIP", table(head, rows)]
    counts = next(iter(found.runs["plain"].values()))["measures"]
    blocks.append(
        f"*n* is {counts[FORTH][3]:,} captions and {counts[BACK][3]:,} images; twins "
        f"{counts['twins/image_by_text'][3]:,} questions with two answers each: chance is 50."
    )
    pairs = [("margin", "frozen", "Live less frozen margin"), ("hn-clip", "tokens", "L_HN less InfoNCE beside L_tok")]
    for one, other, label in pairs:
        if one in found.runs and other in found.runs:
            blocks.append(f"{label}: {_gain(found, one, other)}.")
    return blocks + _twins(found)


def _twins(found: Found) -> list[str]:
    """How often a caption finds its image before the twin, by what the twins differ in."""
    lines = [json.loads(line) for line in (found.work / "test" / "dense.jsonl").read_text(encoding="utf-8").splitlines()]
    kinds = np.array([line["change"]["attribute"] for line in lines])
    names = found.there("plain", "margin", "hn-clip")
    first = next(iter(found.runs["plain"]))
    if len(found.hits("plain", first)["twins/image_by_text"]) != 2 * len(kinds):
        return []
    wanted = [kind for kind in ("background", "kind", "colour", "size") if (kinds == kind).any()]
    rows = []
    for name in names:
        cells = []
        for kind in wanted:
            shares = [found.hits(name, s)["twins/image_by_text"].reshape(-1, 2)[kinds == kind].mean() for s in found.runs[name]]
            cells.append(_cell([float(value) for value in shares]))
        rows.append([found.known[name].label, *cells])
    rows.append(["*n*", *(f"{2 * int((kinds == kind).sum()):,}" for kind in wanted)])
    return ["Captions that find their own image before its twin, by what the two differ in:", table(["", *wanted], rows)]


def _saturation(found: Found) -> list[str]:
    rows = []
    for name in found.there("plain", "margin"):
        lens = [run["lens"] for run in found.runs[name].values()]
        ends = [entry for run in found.runs[name].values() for entry in run["curve"][-max(1, len(run["curve"]) // 10) :]]
        mean, end = partial(_mean, lens), partial(_mean, ends)
        ratio = end("hard_negative_gradient") / max(end("info_nce_gradient"), 1e-12)
        rows.append([
            found.known[name].label, f"{100 * mean('saturated'):.0f} %", f"{100 * mean('zero_gradient'):.0f} %",
            f"{end('info_nce'):.3g}", f"{end('hard_negative'):.3g}", f"{ratio:.1f}", f"{mean('gradient_cosine'):.2f}",
            f"{end('caption_cosine'):.2f}", f"{end('hardest_cosine'):.2f}",
        ])  # fmt: skip
    if not rows:
        return []
    head = [
        "trained with", "batches under .001", "gradient exactly 0", "InfoNCE at the end", "L_HN at the end",
        "its gradient, times InfoNCE's", "cosine of the two", "caption cosine", "nearest",
    ]  # fmt: skip
    return [
        "### Is InfoNCE saturated?",
        "Every fourth batch through the saturation lens; *at the end*: the last tenth.",
        table(head, rows),
    ]


def _mean(entries: Sequence[dict[str, float]], key: str) -> float:
    return float(np.mean([entry[key] for entry in entries if key in entry] or [np.nan]))


def _gammas(found: Found) -> list[str]:
    names = found.there("plain", f"gamma-{GAMMAS[0]:g}", "margin", *(f"gamma-{gamma:g}" for gamma in GAMMAS[1:]))
    if len(names) < 3:
        return []
    head = ["", *(heading for heading, _ in COLUMNS), "R@1 (both ways) less InfoNCE's"]
    return ["### The weight of the margin", table(head, _rows(found, names, lambda name: "plain"))]


def _shares(found: Found) -> list[str]:
    names = [name for share in SHARES for name in found.there(f"plain-{share}", f"margin-{share}")]
    if not names:
        return []
    rows = [[f"{found.known[name].share} %: {row[0]}", *row[1:]] for name, row in
            zip(names, _rows(found, names, lambda name: f"plain-{found.known[name].share}"), strict=True)]  # fmt: skip
    head = ["", *(heading for heading, _ in COLUMNS), "R@1 (both ways) less InfoNCE's"]
    return ["### Less data", "The same number of steps on a part of the training images.", table(head, rows)]


def _frameworks(found: Found) -> list[str]:
    names = [name for framework in FRAMEWORKS for name in found.there(framework, f"{framework}-margin")]
    if not names:
        return []
    base = lambda name: name.removesuffix("-margin")  # noqa: E731
    rows = _rows(found, names, base)
    for name, row in zip(names, rows, strict=True):
        row.append(_gain(found, base(name), "plain") if base(name) == name else "")
        row.append(f"{found.runs[name][min(found.runs[name])]['seconds']['cpu'] / found.runs['plain'][0]['seconds']['cpu']:.1f}")
    head = ["", *(heading for heading, _ in COLUMNS), "R@1 less without L_HN", "less InfoNCE's", "processor time, times InfoNCE's"]
    return [
        "### Every recipe with and without L_HN",
        "One seed each, against the same seed of the other; the time is the processor's, validation and measuring included.",
        table(head, rows),
    ]


def _others(found: Found) -> list[str]:
    blocks = []
    head = ["", *(heading for heading, _ in COLUMNS), "R@1 less InfoNCE's"]
    names = found.there(*WEIGHTINGS)
    if names:
        rows = _rows(found, [*found.there("plain", "margin"), *names], None)
        only = [
            [found.known[n].label, *row[1:], _gain(found, n, "plain")]
            for n, row in zip([*found.there("plain", "margin"), *names], rows, strict=True)
        ]
        blocks += [
            "### Other weightings of negatives",
            "With their losses' defaults; one seed (the first two: all seeds).",
            table(head, only),
        ]
    names = found.there(*(name for name, run in found.known.items() if run.part == "product"))
    if names:
        blocks += [
            "### Scale and margin",
            "A logit scale that does not learn: with the margin at s x gamma = 25, and without one; one seed.",
            table([*head[:-1], ""], [[*row, ""] for row in _rows(found, names, None)]),
        ]
    return blocks


def plot(found: Found, path: Path) -> None:
    """Recall by gamma and by share, both losses and how alike captions are while training."""
    figure = Figure(figsize=(9.5, 6.4), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    _plot_gammas(found, axes[0, 0])
    _plot_shares(found, axes[0, 1])
    for name, colour in (("plain", "#0072B2"), ("margin", "#D55E00")):
        for seed, run in found.runs.get(name, {}).items():
            steps = [entry["step"] for entry in run["curve"]]
            label = found.known[name].label if seed == min(found.runs[name]) else None
            axes[1, 0].plot(
                steps, [max(entry["info_nce"], 1e-6) for entry in run["curve"]], color=colour, lw=1, alpha=0.8, label=label
            )
            axes[1, 1].plot(steps, [entry["hardest_cosine"] for entry in run["curve"]], color=colour, lw=1, alpha=0.8, label=label)
    axes[1, 0].set(yscale="log", xlabel="step", title="InfoNCE of the batch, trained with")
    axes[1, 0].axhline(1e-3, color="#9a9a9a", ls=":", lw=1)
    axes[1, 1].set(xlabel="step", title="Cosine of a caption to its nearest, trained with")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write(path, buffer.getvalue())


def _both(found: Found, name: str) -> list[float]:
    forth, back = found.values(name, FORTH), found.values(name, BACK)
    return [50 * (forth[seed] + back[seed]) for seed in forth]


def _plot_gammas(found: Found, axis: Axes) -> None:
    at = {0.0: "plain", 0.5: "margin", **{gamma: f"gamma-{gamma:g}" for gamma in GAMMAS}}
    known = {gamma: _both(found, at[gamma]) for gamma in sorted(at) if at[gamma] in found.runs}
    axis.plot(list(known), [np.mean(v) for v in known.values()], "o-", color="#D55E00", ms=4)
    for gamma, values in known.items():
        axis.plot([gamma] * len(values), values, ".", color="#D55E00", ms=4, alpha=0.5)
    axis.set(xlabel="gamma", ylabel="R@1, mean of both ways", title="Weight of the margin")


def _plot_shares(found: Found, axis: Axes) -> None:
    for base, colour in (("plain", "#0072B2"), ("margin", "#D55E00")):
        at = {**{share: f"{base}-{share}" for share in SHARES}, 100: base}
        known = {share: _both(found, name) for share, name in at.items() if name in found.runs}
        axis.plot(list(known), [np.mean(v) for v in known.values()], "o-", color=colour, ms=4, label=found.known[base].label)
        for share, values in known.items():
            axis.plot([share] * len(values), values, ".", color=colour, ms=4, alpha=0.5)
    axis.set(xlabel="% of the training images", ylabel="R@1, mean of both ways", title="Less data, equal steps")
