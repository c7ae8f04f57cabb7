"""``clipmend benchmark negbench``: every table of NegBench that is there, for every model, patch and rival; resumable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import clipmend
from clipmend.backbones.base import DualEncoder
from clipmend.backbones.fingerprint import digest_facts
from clipmend.benchmark.methods import Method, RivalMaker, apply_patches, backbone_method
from clipmend.benchmark.report import Report, Run, write_report
from clipmend.benchmark.store import FORMAT, ResultStore, VectorStore
from clipmend.benchmark.tasks import Settings, Task, cost_tasks, find_tasks
from clipmend.negation.patch import PeakPatch

__all__ = ["run_negbench"]

Say = Callable[[str], None]


def run_negbench(
    models: Sequence[str | DualEncoder],
    patches: Sequence[str | Path] = (),
    *,
    data: str | Path,
    out: str | Path,
    rivals: Sequence[str] = (),
    validation: str | Path | None = None,
    only: Sequence[str] | None = None,
    image_roots: Sequence[str | Path] = (),
    zeroshot: Sequence[str | Path] = (),
    class_names: str | Path | None = None,
    templates: str | Path | None = None,
    split: str | None = None,
    pairs: Sequence[str | Path] = (),
    judge: str | None = None,
    strength: float = 1.0,
    score_correction: bool = True,
    ks: Sequence[int] = (1, 5, 10),
    frames: int = 4,
    batch_size: int = 64,
    skip_missing: bool = False,
    seed: int = 0,
    device: str | None = None,
    say: Say | None = None,
    progress: bool = False,
) -> Report:
    """Run NegBench (CVPR 2025, arXiv 2501.09425).

    Every table is read before any model is loaded, so that what is wrong with one is known at once. Each finished (method, task) is
    kept as a JSON file, keyed by the encoder's fingerprints, the patch's weights, the table's bytes and its images' sizes: the same
    command goes on where a killed one stopped, and a second run with one more model measures that one only. Image vectors are kept
    too, in parts.

    Args:
        models: names as for :func:`clipmend.load`, or encoders.
        patches: patches by name; each is put on the models that it was fitted on.
        data: folder with NegBench's tables (the published file names, there or below).
        out: folder for results: ``table.md``, ``table.csv``, ``plot.png``, ``results.json``, and what is kept in ``runs/`` and
            ``work/``.
        rivals: some of ``arithmetic, projection, direction``; with the rule parser.
        validation: folder to tune the rivals on (see :class:`~clipmend.benchmark.methods.RivalMaker`).
        only: some tables or kinds of table.
        image_roots: folders with images (COCO's ``val2017``, VOC's ``JPEGImages``, ...).
        zeroshot, class_names, templates, split, pairs, judge: what a gain costs (see
            :func:`~clipmend.benchmark.tasks.cost_tasks`).
        strength: multiplies every patch's correction.
        score_correction: let a patch's score correction answer questions and pairs.
        ks: cut-offs.
        frames: frames a video is averaged over.
        batch_size: texts a forward pass.
        skip_missing: leave out images that are missing or cannot be read, counted.
        seed: of the bootstrap of paired differences.
        device: for models given by name.
        say: called with a line for every finished (method, task).
        progress: show progress bars on a terminal.

    Returns:
        What was measured; already written to ``out``.

    Raises:
        FileNotFoundError: no table, or images missing.
        ValueError: a broken table (file and line are named), a patch that fits none of the models, rivals without a validation
            folder, two models of one name.
    """
    if not models:
        raise ValueError("no models to measure")
    if rivals and validation is None:
        raise ValueError("rivals are tuned on a validation split: name its folder with --validation (see clipmend data negate)")
    if validation is not None and not rivals:
        raise ValueError("--validation is for tuning rivals: name some with --rivals")
    target = Path(out)
    if target.exists() and not target.is_dir():
        raise NotADirectoryError(f"{target} is a file; --out wants a folder")
    tell = say or (lambda line: None)
    tables = find_tasks(data, image_roots, only)
    costs = cost_tasks(
        tables, zeroshot=zeroshot, class_names=class_names, templates=templates, split=split, pairs=pairs, judge=judge
    )
    tasks = tables + costs
    for task in tasks:
        missing = task.missing()
        if missing and not skip_missing:
            raise FileNotFoundError(missing)
        if missing and not task.files:
            raise FileNotFoundError(f"{task.name}: none of its {len(task.images)} images is there; leave the table out with --only")
    settings = Settings(score_correction, tuple(ks), skip_missing, batch_size, progress)
    maker = RivalMaker(rivals, validation, target / "work" / "tuned") if validation is not None else None
    loaded = {str(name): PeakPatch.from_pretrained(name) for name in dict.fromkeys(map(str, patches))}
    one = _open(models[0], device) if len(models) == 1 else None
    fits = _check_fit(models, loaded, strength, device, one)
    store = ResultStore(target / "runs")
    runs: list[Run] = []
    seen: set[str] = set()
    for model in models:
        encoder = one if one is not None else _open(model, device)
        if encoder.name in seen:
            raise ValueError(f"two models are called {encoder.name!r}; give each once")
        seen.add(encoder.name)
        own = {name: patch for name, patch in loaded.items() if encoder.name in fits[name]}
        methods = [backbone_method(encoder), *apply_patches(encoder, own, strength)[0]]
        if maker is not None:
            methods += maker.methods(encoder)
        vectors = VectorStore(target / "work" / "images", encoder, frames=frames)
        for task in tasks:
            runs += _task(task, methods, encoder, vectors, store, settings, frames, tell, progress)
    report = Report(runs, [task.name for task in tasks], {task.name: task for task in tasks}, seed=seed)
    write_report(report, target)
    for name in report.names:
        for remark in report.remarks(name):
            tell(f"note: {name}: {remark.replace('*', '')}")
    return report


def _open(model: str | DualEncoder, device: str | None) -> DualEncoder:
    return model if isinstance(model, DualEncoder) else clipmend.load(model, device=device)


def _check_fit(
    models: Sequence[str | DualEncoder],
    patches: dict[str, PeakPatch],
    strength: float,
    device: str | None,
    one: DualEncoder | None,
) -> dict[str, set[str]]:
    """Which models each patch fits, known before hours are spent.

    Raises:
        ValueError: a patch that fits none.
    """
    fits: dict[str, set[str]] = {name: set() for name in patches}
    reasons: dict[str, str] = {}
    for model in models if patches else ():
        encoder = one if one is not None else _open(model, device)
        methods, why = apply_patches(encoder, patches, strength)
        reasons.update(why)
        for name in patches:
            if name not in why:
                fits[name].add(encoder.name)
        del methods
    for name, found in fits.items():
        if not found:
            raise ValueError(f"patch {name} fits none of the models. {reasons[name]}")
    return fits


def _task(
    task: Task,
    methods: Sequence[Method],
    encoder: DualEncoder,
    vectors: VectorStore,
    store: ResultStore,
    settings: Settings,
    frames: int,
    tell: Say,
    progress: bool,
) -> list[Run]:
    """Every method of one model on one task; images are embedded only if something is not kept."""
    runs: list[Run] = []
    rows: dict[str, Any] | None = None
    broken: list[str] = []
    for method in methods:
        chosen, facts, names = method.for_task(task.kind)
        about = {
            "format": FORMAT,
            "task": task.name,
            "asked": task.digest,
            "method": facts,
            "score_correction": settings.score_correction,
            "ks": list(settings.ks),
            "skip_missing": settings.skip_missing,
            "frames": frames,
        }
        key = digest_facts(about)
        result = store.get(task.name, method.label, key)
        kept = result is not None
        if result is None:
            if rows is None:
                with _bar(f"{encoder.name}: images of {task.name}", len(task.files), progress) as advance:
                    rows, broken = vectors.get(task.files, skip_broken=settings.skip_missing, advance=advance)
            result = task.evaluate(chosen, rows, settings, names)
            if broken:
                result.notes.append(f"{len(broken)} images could not be read: left out; the first: {broken[0]}")
            store.put(task.name, method.label, key, result, about)
        run = Run(method.label, method.model, method.kind, task.name, result, store.path(task.name, method.label, key), kept)
        runs.append(run)
        tell(run.line())
    return runs


class _bar(AbstractContextManager[Callable[[int], None] | None]):
    """A progress bar on a terminal; else nothing."""

    def __init__(self, text: str, total: int, show: bool) -> None:
        import sys

        self._bar: Any = nullcontext()
        self._advance: Callable[[int], None] | None = None
        if show and total and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True), transient=True)
            number = self._bar.add_task(text, total=total)
            self._advance = lambda count: self._bar.advance(number, count)

    def __enter__(self) -> Callable[[int], None] | None:
        self._bar.__enter__()
        return self._advance

    def __exit__(self, *error: Any) -> None:
        self._bar.__exit__(*error)
