"""The page of the ablations: tables and plot from what ``ablations.py`` measured, and searches before and after as a picture."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _pages import half_width, put_between, table, write
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image, ImageDraw, ImageFont

import clipmend
from clipmend.data.images import open_image
from clipmend.data.scenes import read_scenes, scene_facts
from clipmend.demo.searches import Asked, Query, ask
from clipmend.search import ImageIndex, build_index

BEGIN, END = "<!-- ablations: begin -->", "<!-- ablations: end -->"
PLOT = "ablations-peaks.png"
SMALL = (600, 100)  # fewer scenes or steps show that the script runs, and nothing else
RECALL = "image_retrieval_recall@5"

Fit = dict[str, Any]
Column = tuple[str, str]  # heading, name of the measure
CHOICE: tuple[Column, ...] = tuple(
    (f"{heading} {form}".strip(), f"{prefix}choice/acc{'_' * bool(name)}{name}/standard")
    for heading, prefix in (("ECN", "ecn/"), ("ECN + SCN", ""))
    for form, name in (("", ""), ("aff.", "affirmative"), ("neg.", "negative"), ("hybrid", "hybrid"))
)
UNSEEN: tuple[Column, ...] = (
    ("choice, reserved wordings: ECN", "ecn/choice/acc/reserved_wording"),
    ("ECN + SCN", "choice/acc/reserved_wording"),
    ("choice, reserved kinds: ECN", "ecn/choice/acc/reserved_kind"),
    ("ECN + SCN", "choice/acc/reserved_kind"),
    ("exclusion AUROC", "exclusion/auroc/standard"),
    ("reserved wordings", "exclusion/auroc/reserved_wording"),
    ("reserved kinds", "exclusion/auroc/reserved_kind"),
)
SEARCH: tuple[Column, ...] = (
    ("negated R@5", f"negated_retrieval/{RECALL}"),
    ("gap closed", "gap"),
    ("plain R@5", f"retrieval/{RECALL}"),
    ("change", "change"),
    ("cosine kept", "kept"),
)
PARTS: tuple[Column, ...] = (
    ("choice, ECN", "ecn/choice/acc/standard"),
    ("choice, ECN + SCN", "choice/acc/standard"),
    ("choice, ECN, reserved wordings", "ecn/choice/acc/reserved_wording"),
    ("exclusion", "exclusion/auroc/standard"),
    ("exclusion, reserved kinds", "exclusion/auroc/reserved_kind"),
    ("negated R@5", f"negated_retrieval/{RECALL}"),
    ("plain R@5", f"retrieval/{RECALL}"),
)
PEAK_SCORES: tuple[Column, ...] = (
    ("choice, ECN", "ecn/choice/acc/standard"),
    ("exclusion", "exclusion/auroc/standard"),
    ("negated R@5", f"negated_retrieval/{RECALL}"),
    ("mean of choice and exclusion", "mean"),
)
QUERIES = (
    Query("a beach with no tree", "tree", ("at beach",)),
    Query("there is a house, but no bird can be seen", "bird", ("house",)),
    Query("a photo without a car", "car"),
    Query("a picture devoid of flowers", "flower"),
)


class Measured:
    """What was measured, by row of a table.

    Args:
        found: what ``ablations.py --json`` writes.
    """

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.backbone: dict[str, float] = found.get("backbone", {}).get("metrics", {})
        plain, negated = (self.backbone.get(f"{task}/{RECALL}", np.nan) for task in ("retrieval", "negated_retrieval"))
        self.base = {"plain": plain, "negated": negated, "gap": plain - negated}
        self.fits: dict[str, dict[int, dict[str, float]]] = {}
        for fit in found["fits"]:
            self.fits.setdefault(fit["variant"], {})[fit["seed"]] = self._with_derived(fit["metrics"])

    def _with_derived(self, metrics: dict[str, float]) -> dict[str, float]:
        """With the share of the gap closed, the change of plain recall, and the score of a peak."""
        values = dict(metrics)
        values["gap"] = (metrics.get(f"negated_retrieval/{RECALL}", np.nan) - self.base["negated"]) / (self.base["gap"] or np.nan)
        values["change"] = metrics.get(f"retrieval/{RECALL}", np.nan) - self.base["plain"]
        answered = metrics.get("ecn/choice/acc/standard", metrics.get("choice/acc/standard", np.nan))
        values["mean"] = (answered + metrics.get("exclusion/auroc/standard", np.nan)) / 2
        return values

    def names(self, *parts: str) -> list[str]:
        """Variants of some tables that were fitted."""
        return [name for name, v in self.found["variants"].items() if v["part"] in parts and name in self.fits]

    def label(self, name: str) -> str:
        return str(self.found["variants"][name]["label"])

    def fitted(self, name: str, key: str) -> str:
        """Mean over the seeds and half the width of its interval, in per cent."""
        return with_interval([values[key] for values in self.fits[name].values() if key in values])

    def single(self, measured: dict[str, Any], key: str) -> str:
        """A value that no chance of training is in, with its interval over the questions."""
        if key.startswith("choice/"):  # no SCN: what the cosine answers stands in the columns without
            return ""
        at = key.removeprefix("ecn/")
        values = self._with_derived(measured["metrics"])
        if at == "kept" or not np.isfinite(values.get(at, np.nan)):
            return ""
        text = f"{100 * values[at]:.1f}"
        if at in measured["intervals"]:
            low, high = measured["intervals"][at]
            text += f" ({100 * low:.1f}–{100 * high:.1f})"
        return text


def with_interval(values: Sequence[float], signed: bool = False) -> str:
    """``"91.2 ± 0.8"``, in per cent; without the interval for a single value, nothing for none. ``signed`` marks with bold what is
    not zero by its interval."""
    if not values:
        return ""
    mean, half = 100 * float(np.mean(values)), 100 * half_width(values)
    text = f"{mean:{'+' * signed}.1f}" + ("" if np.isnan(half) else f" ± {half:.1f}")
    return f"**{text}**" if signed and abs(mean) > half else text


def write_page(found: dict[str, Any], page: Path | None) -> str:
    """Tables and findings as Markdown.

    Args:
        found: what ``ablations.py --json`` writes.
        page: put them between its two marks, and the plot into ``images/`` beside it.

    Raises:
        ValueError: nothing was fitted yet, or the page lacks the marks.
    """
    if not found["fits"]:
        raise ValueError("nothing was fitted yet")
    measured = Measured(found)
    blocks = [_heading(measured), *_main(measured), *_parts(measured), *_peaks(measured)]
    text = "\n\n".join(blocks)
    if page is not None:
        if len(_layers(measured)) > 1:
            (page.parent / "images").mkdir(exist_ok=True)
            plot_peaks(measured, page.parent / "images" / PLOT)
        put_between(page, (BEGIN, END), text)
    return text


def _heading(m: Measured) -> str:
    s, fits = m.found["settings"], m.found["fits"]
    seeds = sorted({fit["seed"] for fit in fits})
    seconds = sorted(fit["seconds"]["all"] for fit in fits)
    lines = []
    if s["scenes"] < SMALL[0] or s["steps"] < SMALL[1]:
        lines.append("**From a tiny run, which shows that the script runs: these are no results.**\n")
    lines.append(
        f"{s['scenes']} training scenes, {s['steps']} steps, {s['test_scenes']} held-out scenes, "
        f"seeds {', '.join(map(str, seeds))}; {len(fits)} fits of {seconds[0]:.0f} to {seconds[-1]:.0f} s each, measuring included."
    )
    return "\n".join(lines)


def _main(m: Measured) -> list[str]:
    """Backbone, rivals and the four main fits."""
    blocks = []
    for title, columns in (("Multiple choice", CHOICE), ("What was reserved, and exclusion", UNSEEN), ("Retrieval", SEARCH)):
        rows: list[list[str]] = []
        if "backbone" in m.found:
            rows.append(["backbone", *(m.single(m.found["backbone"], key) for _, key in columns)])
        for name, rival in m.found.get("rivals", {}).items():
            rows.append([name, *("" if key == "change" else m.single(rival, key) for _, key in columns)])
        rows += [[m.label(name), *(m.fitted(name, key) for _, key in columns)] for name in m.names("main", "parts")]
        example = m.found.get("backbone") or m.found["fits"][0]
        counts = [example["counts"].get(key, example["counts"].get(key.removeprefix("ecn/"))) for _, key in columns]
        rows.append(["*n*", *("" if n is None else f"{n:,}" for n in counts)])
        blocks += [f"### {title}", table(["", *(heading for heading, _ in columns)], rows)]
    return blocks


def _parts(m: Measured) -> list[str]:
    """Each part's absence against the whole published network, paired by seed."""
    whole = m.fits.get("published")
    others = [name for name in (*m.names("parts"), "published-released", "direct") if name in m.fits]
    if not whole or not others:
        return []
    rows = []
    for name in others:
        cells = []
        for _, key in PARTS:
            seeds = [seed for seed in m.fits[name] if seed in whole and key in m.fits[name][seed] and key in whole[seed]]
            cells.append(with_interval([m.fits[name][seed][key] - whole[seed][key] for seed in seeds], signed=True))
        rows.append([m.label(name), *cells])
    return [
        "### Each part against the whole",
        "Differences from the published network with the `truthful` objective, in points, paired by seed; bold where the interval "
        "leaves out zero.",
        table(["", *(heading for heading, _ in PARTS)], rows),
    ]


def _layers(m: Measured) -> dict[int, str]:
    """Peak layer to the variant that was fitted with it; the suggested peak is the published network itself."""
    found = {int(name.removeprefix("peak-")): name for name in m.names("peaks")}
    if "published" in m.fits:
        found[m.found["diagnosis"]["peak"]] = "published"
    return dict(sorted(found.items()))


def _peaks(m: Measured) -> list[str]:
    layers = _layers(m)
    if len(layers) < 2:
        return []
    lcd = {int(layer): e["value"] for layer, e in m.found["diagnosis"]["relative_lcd"].items()}
    rows = [
        [str(layer), f"{lcd[layer]:.2f}" if layer in lcd else "", *(m.fitted(name, key) for _, key in PEAK_SCORES)]
        for layer, name in layers.items()
    ]
    head = ["peak", "relative LCD", *(heading for heading, _ in PEAK_SCORES)]
    return [
        "### Every peak layer",
        "The published network, `truthful`, the anchor two layers before the peak and the SCN on peak and last layer.",
        table(head, rows),
        agreement(m, layers, lcd),
        f"![Score by peak layer beside relative LCD](images/{PLOT})",
    ]


def agreement(m: Measured, layers: dict[int, str], lcd: dict[int, float]) -> str:
    """In words: whether the peak that mends best is the one that relative LCD points to."""
    tried = [layer for layer in layers if layer in lcd]
    loudest = max(tried, key=lambda layer: lcd[layer])
    lines = []
    for heading, key in PEAK_SCORES:
        means = {layer: float(np.mean([v[key] for v in m.fits[layers[layer]].values()])) for layer in tried}
        best = max(tried, key=lambda layer: means[layer])
        seeds = sorted(set.intersection(*(set(m.fits[layers[layer]]) for layer in tried)))
        firsts = [max(tried, key=lambda layer: m.fits[layers[layer]][seed][key]) for seed in seeds]
        agreed = sum(first == loudest for first in firsts)
        by_score, by_lcd = (_ranks([of[layer] for layer in tried]) for of in (means, lcd))
        differ = by_score.std() > 0 and by_lcd.std() > 0
        alike = f"{np.corrcoef(by_score, by_lcd)[0, 1]:+.2f}" if differ else "undefined (all the same)"
        same = "the" if best == loudest else "not the"
        lines.append(
            f"- {heading}: best at layer {best}, {same} layer where relative LCD is largest ({loudest}). That one is best in "
            f"{agreed} of {len(seeds)} seeds, and in the mean {100 * (means[best] - means[loudest]):.1f} points below the best; "
            f"rank correlation over the {len(tried)} layers {alike}."
        )
    return "\n".join(lines)


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks, equal values sharing the mean of theirs."""
    array = np.asarray(values)
    return np.array([(array < v).sum() + ((array == v).sum() + 1) / 2 for v in array])


def plot_peaks(m: Measured, path: Path) -> None:
    """Score by peak layer, with every seed's own, above relative LCD with its interval."""
    layers = _layers(m)
    lcd = m.found["diagnosis"]["relative_lcd"]
    figure = Figure(figsize=(6.4, 5.2), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, sharex=True)
    for (label, key), colour, marker in zip(PEAK_SCORES, ("#0072B2", "#009E73", "#CC79A7", "#222222"), "sD^o", strict=True):
        seen = {layer: [100 * v[key] for v in m.fits[name].values()] for layer, name in layers.items()}
        upper.plot(list(seen), [np.mean(v) for v in seen.values()], color=colour, marker=marker, label=label, ms=4)
        for layer, values in seen.items():
            upper.plot([layer] * len(values), values, ".", color=colour, ms=3, alpha=0.5)
    upper.set(ylabel="per cent", title="What a patch reaches, by the layer it reads")
    shown = [int(layer) for layer in lcd]
    curve: np.ndarray = np.array([[e["value"], e["low"], e["high"]] for e in lcd.values()], np.float64)  # no interval: NaN
    lower.fill_between(shown, curve[:, 1], curve[:, 2], color="#D55E00", alpha=0.15, lw=0)
    lower.plot(shown, curve[:, 0], "o-", color="#D55E00")
    lower.set(ylabel="relative LCD", xlabel="layer", xticks=shown, title="Where the text states tell X from no X", ylim=(0, None))
    for axis in (upper, lower):
        axis.axvline(m.found["diagnosis"]["peak"], color="#9a9a9a", ls=":", lw=1)
        axis.spines[["top", "right"]].set_visible(False)
        axis.title.set_fontsize(10)
    upper.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    write(path, buffer.getvalue())


def write_pictures(patch: str, folder: Path, index: Path, target: Path, k: int = 6) -> str:
    """A contact sheet: the first ``k`` answers to each query before and after; what shows the excluded thing has a red frame.

    Args:
        patch: a patch for the ``"scenes"`` backbone: a folder, or the name of a bundled one.
        folder: drawn scenes with their truth.
        index: folder of their index, made or updated.
        target: the PNG.

    Returns:
        In words, how many of the answers show what was excluded.
    """
    encoder = clipmend.load("scenes")
    mended = clipmend.PeakPatch.from_pretrained(patch).apply(encoder)
    build_index(encoder, folder / "images", index)
    scenes, paths = read_scenes(folder)
    facts = {path.name: scene_facts(scene) for scene, path in zip(scenes, paths, strict=True)}
    shows: Callable[[Path, str], bool] = lambda path, thing: thing in facts[path.name]  # noqa: E731
    answers = ask(ImageIndex.open(index), encoder, mended, QUERIES, shows, k=k)
    target.parent.mkdir(parents=True, exist_ok=True)
    _sheet(answers, target)
    return "\n".join(
        f"{a.query.text}: {sum(a.wrong_before)} of {k} show it before, {sum(a.wrong_after)} after" for a in answers
    ) + f"\n{target}"  # fmt: skip


def _sheet(answers: Sequence[Asked], target: Path, side: int = 64, frame: int = 3, columns: int = 2) -> None:
    """Two queries beside each other, each with its answers before above those after."""
    k = max(len(a.before) for a in answers)
    step, label, title = side + 2 * frame + 4, 52, 22
    width, height = label + k * step + 12, title + 2 * step + 8
    sheet = Image.new("RGB", (columns * width, -(-len(answers) // columns) * height), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for number, asked in enumerate(answers):
        left, top = number % columns * width, number // columns * height
        draw.text((left + 4, top + 4), f"“{asked.query.text}”", "#222222", font)
        lines = (("before", asked.before, asked.wrong_before), ("after", asked.after, asked.wrong_after))
        for line, (name, paths, wrong) in enumerate(lines):
            y = top + title + line * step
            draw.text((left + 4, y + side // 2 - 6), name, "#666666", font)
            for column, (path, bad) in enumerate(zip(paths, wrong, strict=True)):
                x = left + label + column * step
                draw.rectangle((x, y, x + side + 2 * frame - 1, y + side + 2 * frame - 1), "#d0342c" if bad else "#2f8f4e")
                sheet.paste(open_image(path).resize((side, side)), (x + frame, y + frame))
    buffer = io.BytesIO()
    # Drawn scenes have few colours: a palette halves the file.
    sheet.quantize(96, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    write(target, buffer.getvalue())
