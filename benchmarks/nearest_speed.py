"""Recall, time and size of nearest-neighbour search among 100,000 vectors of 512: ours, NumPy's exact product, usearch and faiss.

The vectors have the structure that encoders give: one cone around a common mean, clusters in a few strong directions, little noise
in the many weak ones. Half of the queries are further images; the other half lie where texts do, off the images' cone and about as
near to their own cluster as captions are. Recall is of the true first ten, by exact cosines. Every side answers one query at a time
on one thread; the sides take turns over the same queries. Time is the median of all queries, a ratio that of NumPy to the side.

    python benchmarks/nearest_speed.py
    python benchmarks/nearest_speed.py --count 20000 --queries 100     # a look

faiss is measured where faiss-cpu is installed. ``--json FILE`` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before the libraries that read it
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if find_spec("faiss"):
    import faiss  # before usearch, whose symbols some builds of it stumble over

import numpy as np

from clipmend.search import ImageIndex
from clipmend.search.exact import top_k
from clipmend.search.gallery import Item

K = 10
Search = Callable[[np.ndarray], np.ndarray]


def structured(count: int, dim: int, rng: np.random.Generator, queries: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors, and queries: half like them, half like texts about them."""
    strong = min(dim, 192)
    axes = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    spectrum = (1.0 / np.arange(1, strong + 1) ** 0.5).astype(np.float32)
    clusters = rng.normal(size=(max(20, count // 200), strong)) * spectrum
    mean, gap = rng.normal(size=(2, dim)) / dim**0.5

    def images(which: np.ndarray) -> np.ndarray:
        latent = clusters[which] + 0.8 * rng.normal(size=(len(which), strong)) * spectrum
        table = 1.5 * mean + latent @ axes[:strong] + 0.5 * rng.normal(size=(len(which), dim)) / dim**0.5
        return table.astype(np.float32)

    gallery = images(rng.integers(len(clusters), size=count))
    asked = images(rng.integers(len(clusters), size=queries))
    asked[queries // 2 :] += (2.0 * gap - 1.0 * mean).astype(np.float32)
    return tuple(table / np.linalg.norm(table, axis=1, keepdims=True) for table in (gallery, asked))  # type: ignore[return-value]


def folder_bytes(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def sides(vectors: np.ndarray, place: Path) -> dict[str, tuple[Search, int, float]]:
    """For each side: its search for one query, the bytes it searches in, and the seconds it took to make."""
    found: dict[str, tuple[Search, int, float]] = {}

    def product(query: np.ndarray) -> np.ndarray:
        scores = vectors @ query
        best = np.argpartition(scores, -K)[-K:]
        return best[np.argsort(-scores[best])]

    found["NumPy, exact"] = (product, vectors.nbytes, 0.0)
    index = ImageIndex.create(place / "index", backbone="x", image_digest="x", embed_dim=vectors.shape[1])
    for low in range(0, len(vectors), 16_384):
        part = vectors[low : low + 16_384]
        index.add([Item(low + i, f"{low + i:09d}") for i in range(len(part))], part)
    began = time.perf_counter()
    index.optimise(approximate=True, workers=1)
    seconds = time.perf_counter() - began
    found["clipmend, exact"] = (
        lambda query: index.nearest(query, K, exact=True).ids[0],
        folder_bytes(place / "index", "vectors-*.npy"),
        0.0,
    )
    assert not index.nearest(vectors[0], K).exact
    about = json.loads((place / "index" / "nearest.json").read_text())
    found["clipmend, graph (scored again)"] = (lambda query: index.nearest(query, K).ids[0], about["bytes"], seconds)

    from usearch.index import Index

    raw = Index.restore(str(place / "index" / about["file"]), view=True)
    assert raw is not None
    raw.expansion_search = about["expansion"]  # type: ignore[misc]
    found[f"usearch alone, the same graph (expansion {about['expansion']})"] = (
        lambda query: np.asarray(raw.search(query, K, threads=1).keys, np.int64),
        about["bytes"],
        seconds,
    )
    if find_spec("faiss"):
        found.update(faiss_sides(vectors, place))
    return found


def faiss_sides(vectors: np.ndarray, place: Path) -> dict[str, tuple[Search, int, float]]:
    faiss.omp_set_num_threads(1)
    found: dict[str, tuple[Search, int, float]] = {}
    dim = vectors.shape[1]
    cells = int(4 * len(vectors) ** 0.5)
    for name, spec, setting in (
        ("faiss Flat, exact", "Flat", {}),
        ("faiss HNSW16, efSearch 128", "HNSW16", {"efSearch": 128}),
        ("faiss HNSW32 of 16 bits, efSearch 128", "HNSW32_SQfp16", {"efSearch": 128}),
        ("faiss IVF of 16 bits, 32 probes", f"IVF{cells},SQfp16", {"nprobe": 32}),
    ):
        began = time.perf_counter()
        made = faiss.index_factory(dim, spec, faiss.METRIC_INNER_PRODUCT)
        if "efSearch" in setting:
            made.hnsw.efConstruction = 128
        made.train(vectors[: max(len(vectors) // 2, 50_000)])
        made.add(vectors)
        if "efSearch" in setting:
            made.hnsw.efSearch = setting["efSearch"]
        if "nprobe" in setting:
            made.nprobe = setting["nprobe"]
        seconds = time.perf_counter() - began
        path = place / "faiss.index"
        faiss.write_index(made, str(path))
        found[name] = (lambda query, made=made: made.search(query[None], K)[1][0], path.stat().st_size, seconds)  # type: ignore[misc]
    return found


def measure(count: int, dim: int, queries: int, repeats: int) -> dict[str, Any]:
    vectors, asked = structured(count, dim, np.random.default_rng(0), queries)
    true = [top_k(vectors @ query, np.arange(count), K + 1) for query in asked]
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        searches = sides(vectors, Path(place))
        seconds: dict[str, list[float]] = {name: [] for name in searches}
        recall: dict[str, list[float]] = {name: [] for name in searches}
        for turn in range(repeats):
            for name, (search, _, _) in searches.items():
                search(asked[0])  # what the side before pushed out of the caches
                for query, best in zip(asked, true, strict=True):
                    began = time.perf_counter()
                    ids = search(query)
                    seconds[name].append(time.perf_counter() - began)
                    if not turn:
                        least = vectors[best[K - 1]] @ query - 1e-6  # one as near as the tenth is one of the first ten
                        recall[name].append(float((vectors[ids] @ query >= least).mean()))
        base = float(np.median(seconds["NumPy, exact"]))
        rows = {}
        for name, (_, size, built) in searches.items():
            median = float(np.median(seconds[name]))
            images, texts = recall[name][: queries // 2], recall[name][queries // 2 :]
            rows[name] = {
                "recall_images": round(float(np.mean(images)), 4),
                "recall_texts": round(float(np.mean(texts)), 4),
                "ms": round(median * 1e3, 3),
                "ms_99": round(float(np.quantile(seconds[name], 0.99)) * 1e3, 3),
                "times_as_fast_as_numpy": round(base / median, 2),
                "megabytes": round(size / 1e6, 1),
                "seconds_to_make": round(built, 1),
            }
    return {"vectors": count, "dim": dim, "queries": queries, "k": K, "sides": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    result = measure(arguments.count, arguments.dim, arguments.queries, arguments.repeats)
    print(f"{'':58} recall@10: images, texts      ms  (99 %)  x NumPy       MB  made in s")
    for name, row in result["sides"].items():
        print(
            f"{name:58} {row['recall_images']:17.3f} {row['recall_texts']:7.3f} {row['ms']:7.2f} {row['ms_99']:7.2f}"
            f" {row['times_as_fast_as_numpy']:8.2f} {row['megabytes']:8.1f} {row['seconds_to_make']:10.1f}"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
