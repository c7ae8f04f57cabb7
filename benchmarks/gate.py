"""What the gate costs and saves: the bundled patch with it and without it, on the same held-out scenes, paired.

    python benchmarks/gate.py --json benchmarks/results/gate.json

Measures the bundled ``"scenes"`` backbone and patch on the scenes of ``acceptance.py``: retrieval both ways with plain and with
negated captions, with both in one pool, choice, exclusion; then queries in other wordings, and the gate by itself on
``gate_queries.csv``, queries written by hand as people type them, full of words that deny nothing ("no. 5", "a knot"). The gate's
list was extended with the first two parts in view; the third was written before and looked at after. ``--smoke`` runs it small.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import clipmend
from clipmend.backbones.base import DualEncoder, PreparedTexts
from clipmend.backbones.wrapper import TextSideWrapper
from clipmend.data.scenes import write_scenes
from clipmend.data.scenes.world import KINDS, RESERVED_WORDINGS, plural
from clipmend.evaluation import Evaluation, EvaluationData, compare, evaluate, evaluate_exclusion, evaluate_retrieval, read_folder
from clipmend.evaluation.exclusion import ExclusionQuery
from clipmend.evaluation.intervals import paired_difference, wilson
from clipmend.evaluation.results import Result, write_json
from clipmend.evaluation.retrieval import RetrievalData
from clipmend.negation.gate import gate_report, has_negation

QUERIES = Path(__file__).with_name("gate_queries.csv")
UNLISTED = (
    "a picture cleared of {xs}", "a {x}less picture", "a picture deprived of {xs}", "a picture with the {x} removed",
    "a picture after the {x} has gone", "a picture, skip the {xs}", "a picture, hold the {x}",
    "a picture with every {x} taken away", "a picture from which the {x} has vanished", "a picture in which {xs} are nonexistent",
)  # fmt: skip
"""Denials that the gate's list did not hold, nor the patch's training, when they were written; the list has learned some since."""

MOVED = 0.9
"""A cosine to the plain embedding that no plain caption of the drawn world comes down to (the least of 600 was .977)."""

SIDES = {"image": "text to image", "text": "image to text"}


def watched(results: dict[str, Result]) -> list[tuple[str, str, str]]:
    """``(task, measure, what it is)`` of every row."""
    rows = []
    for task, what in (("retrieval", "plain captions"), ("negated_retrieval", "negated captions"), ("mixed", "both in one pool")):
        for side, name in SIDES.items():
            rows += [(task, f"{side}_retrieval_recall@{k}", f"{what}, {name}, R@{k}") for k in (1, 5)]
    for task, how in (("choice", "ECN + SCN"), ("choice_ecn", "ECN alone")):
        for subset in ("standard", "reserved_wording", "reserved_kind"):
            rows.append((task, f"acc/{subset}", f"choice, {how}, {subset.replace('_', ' ')}"))
    for subset in ("standard", "reserved_wording", "reserved_kind"):
        rows.append(("exclusion", f"auroc/{subset}", f"exclusion AUROC, {subset.replace('_', ' ')}"))
    rows += [("exclusion", f"auroc/wording={name}", f"  {name}") for name in RESERVED_WORDINGS]
    return [row for row in rows if row[1] in results[row[0]].metrics]


def pooled(data: EvaluationData) -> RetrievalData:
    """Plain and negated captions of the same images as one pool."""
    plain, negated = data.retrieval, data.negated_retrieval
    assert plain is not None
    assert negated is not None
    place = {name: number for number, name in enumerate(plain.images)}
    there = np.array([place[negated.images[image]] for image in negated.image_of])
    parse = None if plain.parse is None or negated.parse is None else [*plain.parse, *negated.parse]
    owners = np.concatenate([plain.image_of, there])
    texts = [*plain.captions, *negated.captions]
    # A caption that stands in both tables under one image would compete with itself.
    kept = list({(int(image), text): n for n, (image, text) in enumerate(zip(owners, texts, strict=True))}.values())
    parses = None if parse is None else [parse[n] for n in kept]
    return RetrievalData(plain.images, [texts[n] for n in kept], owners[kept], parses, "mixed")


def first_is_true(encoder: DualEncoder, captions: RetrievalData, vectors: Any, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of each image: whether the caption that comes first is true of it, and whether it denies something."""
    texts = encoder.encode_texts(captions.captions).float()
    images = torch.stack([vectors[name] for name in captions.images]).float()
    best = (images @ texts.T).argmax(1).numpy()
    denies = np.array([has_negation(captions.captions[column]) for column in best])
    return truth[np.arange(len(best)), best] > 0, denies


class Kept(TextSideWrapper):
    """An encoder whose texts were embedded before: ``rows`` has each text's place in ``prepared``."""

    def __init__(self, encoder: DualEncoder, name: str, rows: dict[str, int], prepared: PreparedTexts) -> None:
        super().__init__(encoder)
        self.name, self.rows, self.prepared = name, rows, prepared

    @property
    def corrects_scores(self) -> bool:
        return self.encoder.corrects_scores

    def prepare_texts(self, texts: Sequence[str], **options: Any) -> PreparedTexts:
        return self.prepared[torch.tensor([self.rows[text] for text in texts])]

    def encode_texts(self, texts: Sequence[str], **options: Any) -> torch.Tensor:
        return self.prepare_texts(texts).embedding

    def _score(self, images: torch.Tensor, texts: PreparedTexts, pairs: torch.Tensor | None) -> torch.Tensor:
        return self.encoder._score(images, texts, pairs)


def all_texts(data: EvaluationData) -> list[str]:
    """Every text that is measured, short ones first so that batches are of one length."""
    assert data.retrieval is not None
    assert data.negated_retrieval is not None
    texts = [*data.retrieval.captions, *data.negated_retrieval.captions]
    texts += [option for item in data.choice for option in item.captions]
    texts += [query.query for query in data.exclusion]
    return sorted(dict.fromkeys(texts), key=lambda text: (len(text), text))


def prepared(encoder: DualEncoder, texts: Sequence[str], file: Path | None) -> PreparedTexts:
    """The texts' embeddings, kept in ``file`` for a later run."""
    if file is not None and file.exists():
        return PreparedTexts(**torch.load(file))
    found = encoder.prepare_texts(texts)
    if file is not None:
        torch.save({"embedding": found.embedding, "context": found.context}, file)
    return found


def three(texts: list[str], folder: Path | None = None) -> dict[str, DualEncoder]:
    """The backbone, the patch without the gate, and with it: texts without a cue have the backbone's own embedding."""
    plain = clipmend.load("scenes")
    patch = clipmend.PeakPatch.from_pretrained("scenes")
    ungated, gated = patch.apply(plain, gate=False), patch.apply(plain, gate=True)
    rows = {text: row for row, text in enumerate(texts)}
    own, mended = (
        prepared(encoder, texts, folder and folder / f"{name}.pt") for name, encoder in (("plain", plain), ("mended", ungated))
    )
    assert mended.context is not None
    cue = torch.tensor([has_negation(text) for text in texts])[:, None]
    behind = PreparedTexts(torch.where(cue, mended.embedding, own.embedding), mended.context.clone())
    assert behind.context is not None
    behind.context[:, -1] = behind.embedding
    some = texts[:: 1 + len(texts) // 40]  # what is put together here is what the library gives
    for encoder, mine in ((ungated, mended), (gated, behind)):
        there = encoder.prepare_texts(some)
        for theirs, ours in ((there.embedding, mine.embedding), (there.context, mine.context)):
            assert ours is not None
            torch.testing.assert_close(theirs, ours[:: 1 + len(texts) // 40], atol=1e-5, rtol=0)
    return {
        "backbone": Kept(plain, "backbone", rows, own),
        "mended": Kept(ungated, "mended", rows, mended),
        "gated": Kept(gated, "gated", rows, behind),
    }


def all_results(encoder: DualEncoder, data: EvaluationData, pool: RetrievalData, vectors: Any) -> dict[str, Result]:
    """Every result of one encoder, by task."""
    found: Evaluation = evaluate(
        encoder, data, tasks=["choice", "retrieval", "negated_retrieval", "exclusion"], image_embeddings=vectors, samples=20
    )
    cosine = evaluate(encoder, data, tasks=["choice"], score_correction=False, image_embeddings=vectors, samples=20)
    mixed = evaluate_retrieval(encoder, pool, image_embeddings=vectors)
    return {**found.results, "choice_ecn": cosine["choice"], "mixed": mixed}


def unlisted_queries() -> list[ExclusionQuery]:
    """Queries that deny a kind in the words of :data:`UNLISTED`."""
    queries: list[ExclusionQuery] = []
    for template in UNLISTED:
        texts = [(kind, template.format(x=kind, xs=plural(kind))) for kind in KINDS]
        queries += [ExclusionQuery(text, kind, template.format(x="x", xs="xs")) for kind, text in texts]
    return queries


def hand_written(path: Path) -> list[tuple[str, str, bool]]:
    """``(part, query, whether it denies)``."""
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["part"], row["query"], row["denies"] == "yes") for row in csv.DictReader(file)]


def by_hand(rows: Sequence[tuple[str, str, bool]], console: Console) -> dict[str, Any]:
    """The gate on queries written by hand, a part at a time, and what it gets wrong."""
    told: dict[str, Any] = {}
    for part in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == part]
        report = gate_report([row[1] for row in own], [row[2] for row in own])
        told[part] = report.to_dict() | {"missed": list(report.misses), "triggered": list(report.false_triggers)}
        seen = report.negated - len(report.misses)
        shares = [(seen, report.negated, "denials seen"), (len(report.false_triggers), report.plain, "plain queries triggered")]
        for count, total, what in shares:
            low, high = wilson(count, total)
            console.print(f"{part}: {count} of {total} {what} (95 % interval {100 * low:.0f} to {100 * high:.0f} %)")
        console.print(f"  missed: {'; '.join(report.misses) or 'none'}\n  triggered: {'; '.join(report.false_triggers) or 'none'}")
    return told


def moved(rows: Sequence[tuple[str, str, bool]], console: Console) -> dict[str, Any]:
    """What the patch without a gate does to queries written by hand in which the gate sees no cue."""
    left = [(query, denies) for _, query, denies in rows if not has_negation(query)]
    encoders = three([query for query, _ in left])
    plain, mended = (encoders[name].encode_texts([query for query, _ in left]) for name in ("backbone", "mended"))
    cosines = (plain * mended).sum(1).tolist()
    told: dict[str, Any] = {}
    for denies, what in ((False, "plain queries"), (True, "denials")):
        own = sorted((cosine, query) for cosine, (query, label) in zip(cosines, left, strict=True) if label == denies)
        far = [f"{query} ({cosine:.2f})" for cosine, query in own if cosine < MOVED]
        console.print(
            f"without a gate, {len(far)} of {len(own)} {what} without a cue move to a cosine below {MOVED}: {'; '.join(far)}"
        )
        told[what] = {"queries": len(own), "moved": far}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--test", type=int, default=1000, help="held-out scenes")
    parser.add_argument("--test-seed", type=int, default=20261129, help="of the held-out scenes; those of acceptance.py")
    parser.add_argument("--samples", type=int, default=1000, help="bootstrap draws")
    parser.add_argument(
        "--work", type=Path, default=None, help="keep scenes and embeddings here, for a later run with the same options"
    )
    parser.add_argument("--words-only", action="store_true", help="only the gate by itself, on the queries written by hand")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if args.smoke:
        args.test, args.samples = 60, 50
    console = Console(width=150, highlight=False)
    told: dict[str, Any] = {"by_hand": by_hand(hand_written(QUERIES), console)}
    if args.words_only:
        return
    with tempfile.TemporaryDirectory() as folder:
        root = (args.work or Path(folder)) / "test"
        if not root.exists():
            write_scenes(root, args.test, size=64, seed=args.test_seed, split="test")
        data = read_folder(root)
        names = data.images()
        encoders = three(all_texts(data), root)
        images = encoders["backbone"].encode_images([root / name for name in names])
        vectors = dict(zip(names, images, strict=True))
    pool = pooled(data)
    results = {name: all_results(encoder, data, pool, vectors) for name, encoder in encoders.items()}
    table = Table(title=f"{args.test} held-out scenes, the bundled patch", title_justify="left")
    for column in ("", "n", "backbone", "no gate", "gate", "gate - no gate", "gate - backbone", "no gate - backbone"):
        table.add_column(column, justify="right" if column else "left")
    pairs = (("mended", "gated"), ("backbone", "gated"), ("backbone", "mended"))
    found = {
        (first, second): {t: compare(results[first][t], results[second][t], samples=args.samples) for t in results[first]}
        for first, second in pairs
    }
    told["scenes"] = []
    for task, name, what in watched(results["gated"]):
        measures = [results[encoder][task].measures()[name] for encoder in encoders]
        differences = [found[pair][task].differences[name] for pair in pairs]
        shown = [
            f"{m.show(d.difference, True)} ({m.show(d.low, True)} to {m.show(d.high, True)})"
            for m, d in zip(measures, differences, strict=True)
        ]
        table.add_row(what, f"{measures[0].count:,}", *(m.show() for m in measures), *shown)
        told["scenes"].append(
            {"what": what.strip(), "n": measures[0].count} | {e: m.value for e, m in zip(encoders, measures, strict=True)}
            | {f"{b} - {a}": [d.difference, d.low, d.high] for (a, b), d in zip(pairs, differences, strict=True)}
        )  # fmt: skip
    console.print(table)
    truth = data.truth(pool)
    if truth is not None:
        firsts = {name: first_is_true(encoder, pool, vectors, np.asarray(truth)) for name, encoder in encoders.items()}
        for name, (true, denies) in firsts.items():
            shares = f"true {100 * true.mean():.1f} %, denies something {100 * denies.mean():.1f} %"
            console.print(f"both in one pool, the caption that comes first by an image, {name}: {shares}")
        for first, second in pairs:
            d = paired_difference(*(firsts[name][0].astype(float) for name in (first, second)), samples=args.samples, share=True)
            console.print(f"  {second} - {first}, true: {100 * d.difference:+.1f} ({100 * d.low:+.1f} to {100 * d.high:+.1f})")
        told["first_true"] = {name: [float(t.mean()), float(n.mean())] for name, (t, n) in firsts.items()}
    told["moved"] = moved(hand_written(QUERIES), console)
    queries = unlisted_queries()
    known = [query for query in queries if has_negation(query.query)]
    assert data.presence is not None
    unlisted = {
        name: evaluate_exclusion(encoder, queries, data.presence, image_embeddings=vectors, samples=20)
        for name, encoder in three([query.query for query in queries]).items()
    }
    console.print(f"{len(queries)} queries in {len(UNLISTED)} other wordings ({len(known)} queries have a cue):")
    for first, second in pairs:
        area = compare(unlisted[first], unlisted[second], samples=args.samples).differences["auroc"]
        console.print(f"  {second} - {first}: {area.difference:+.3f} ({area.low:+.3f} to {area.high:+.3f})")
    for name, result in unlisted.items():
        console.print(f"  {name}: AUROC {result.metrics['auroc']:.3f}")
        for key, value in result.metrics.items():
            if "wording=" in key:
                console.print(f"    {key.partition('wording=')[2]:45} {value:.3f}")
    told["unlisted"] = {name: result.metrics["auroc"] for name, result in unlisted.items()}
    if args.json:
        write_json(args.json, told)


if __name__ == "__main__":
    main()
