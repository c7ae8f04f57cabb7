"""``clipmend serve`` under load: 32 clients at once over 100,000 vectors, with the bundled patch and without it in turn.

A gallery of 100,000 vectors (scenes backbone; around the embeddings of captions, so that they lie as images do: in clusters) is
written as an index, the service is started as a newcomer starts it, in a process of its own, and 32 connections send one search
after the other. Every query is another one, and half of them deny something. Blocks with the patch and without it (strength 0,
which is the plain backbone) alternate and have the same queries, so that what else the machine does weighs on both.

    python benchmarks/service_load.py
    python benchmarks/service_load.py --images 5000 --requests 600 --block 100      # small

Prints p50 and p99 of the milliseconds a request, requests a second, the service's processor time a request, errors, its memory
after a first tenth of the requests and at the end, and the throughput with the patch over that without it (median of neighbouring
blocks, with quartiles), by the clock and by processor time, in which other programs do not count; ``--json FILE`` writes them.
Aims: no error, flat memory over 10,000 requests, at least 0.95 of the throughput. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import clipmend
from clipmend.data.scenes.world import BACKGROUNDS, COLOURS, KINDS, with_article
from clipmend.search.gallery import Item
from clipmend.search.index import ImageIndex

SEED = 20_260


def queries_of(count: int, seed: int = SEED) -> list[str]:
    """Distinct queries, every other one with a negation."""
    rng = np.random.default_rng(seed)
    places = [background.place for background in BACKGROUNDS.values()]
    found: dict[str, None] = {}
    kinds, colours = list(KINDS), list(COLOURS)
    while len(found) < count:
        a, b, c = (kinds[i] for i in rng.choice(len(kinds), 3, replace=False))
        colour, place = colours[rng.integers(len(colours))], places[rng.integers(len(places))]
        text = f"a {colour} {a} and {with_article(b)} {place}"
        found[text if len(found) % 2 else f"{text} but no {c}"] = None
    return list(found)


def write_index(folder: Path, encoder: Any, count: int) -> Path:
    """An index of ``count`` vectors in clusters around captions' embeddings, with the fields that images have."""
    rng = np.random.default_rng(SEED)
    centres = encoder.encode_texts([text for text in queries_of(2_000, SEED + 1) if " no " not in text]).numpy()
    fingerprint = encoder.fingerprint
    index = ImageIndex.create(
        folder / "load.index", backbone=encoder.name, image_digest=fingerprint.image, embed_dim=encoder.embed_dim, dtype="float16"
    )
    with index:
        for start in range(0, count, 20_000):
            ids = range(start, min(start + 20_000, count))
            noise = rng.normal(size=(len(ids), encoder.embed_dim)).astype(np.float32) / encoder.embed_dim**0.5
            vectors = centres[rng.integers(len(centres), size=len(ids))] + 0.7 * noise
            index.add(
                [
                    Item(i, f"{i % 100:02d}/{i:06d}.jpg", {"folder": f"{i % 100:02d}", "name": f"{i:06d}.jpg", "size": 1e5 + i})
                    for i in ids
                ],
                vectors,
            )
        index.optimise()
    return folder / "load.index"


class Client:
    """One connection, kept alive: little enough work that it is the service that is measured."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 22)
        reader, writer = self._streams
        content = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        )
        writer.write(head.encode() + content)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answer)
        assert length is not None
        return int(answer[9:12]), await reader.readexactly(int(length[1]))

    async def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def run_block(
    clients: Sequence[Client], queries: Sequence[str], k: int, strength: float | None
) -> tuple[list[float], float, int]:
    """Seconds of each request, seconds in all, and errors."""
    left = iter(queries)
    seconds: list[float] = []
    errors = 0

    async def work(client: Client) -> None:
        nonlocal errors
        for query in left:
            began = time.perf_counter()
            status, body = await client.post("/search", {"query": query, "k": k, "strength": strength})
            seconds.append(time.perf_counter() - began)
            if status != 200 or len(json.loads(body)["hits"]) != k:
                errors += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(client) for client in clients))
    return seconds, time.perf_counter() - began, errors


def memory_of(pid: int) -> float:
    """Megabytes of memory that the process holds (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def processor_of(pid: int) -> float:
    """Seconds of processor time that the process has had (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batches_of(port: int) -> float:
    """Mean number of texts that went through the encoder together."""
    with urllib.request.urlopen(f"http://localhost:{port}/metrics") as answer:
        numbers = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
    return round(float(numbers["clipmend_batch_texts_sum"]) / float(numbers["clipmend_batch_texts_count"]), 1)


def start(index: Path, log: Path, threads: int) -> tuple[subprocess.Popen[bytes], int]:
    """The service and its port, once it is ready."""
    program = "from clipmend.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", str(index), "--patch", "scenes", "--port", "0", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with open(log, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", log.read_text())
        if found:
            return process, int(found[1])
        if process.poll() is not None:
            break
        time.sleep(0.2)
    process.kill()
    raise RuntimeError(f"the service did not start:\n{log.read_text()}")


def measure(images: int, requests: int, block: int, clients: int, k: int, threads: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        began = time.perf_counter()
        index = write_index(folder, clipmend.load("scenes", device="cpu"), images)
        built = time.perf_counter() - began
        process, port = start(index, folder / "log", threads)
        try:
            result = asyncio.run(_load(process.pid, port, requests, block, clients, k))
        finally:
            process.send_signal(signal.SIGTERM)
            ended = process.wait(30)
        assert ended in (0, -signal.SIGTERM), (folder / "log").read_text()
    about = {"images": images, "clients": clients, "k": k, "threads": threads, "index_seconds": round(built, 1)}
    return about | result


async def _load(pid: int, port: int, requests: int, block: int, count: int, k: int) -> dict[str, Any]:
    clients = [Client(port) for _ in range(count)]
    pairs = max(1, requests // (2 * block))
    queries = queries_of((pairs + 1) * block)
    seconds: dict[str, list[float]] = {"patched": [], "plain": []}
    rates: dict[str, list[float]] = {"patched": [], "plain": []}
    processor: dict[str, list[float]] = {"patched": [], "plain": []}
    memory: list[float] = []
    errors = 0
    for strength in (None, 0.0):  # what is made on first use
        await run_block(clients, queries[-block:], k, strength)
    for pair in range(pairs):
        asked = queries[pair * block : (pair + 1) * block]
        turn = [("patched", None), ("plain", 0.0)]
        for name, strength in turn if pair % 2 == 0 else turn[::-1]:
            before = processor_of(pid)
            each, whole, wrong = await run_block(clients, asked, k, strength)
            seconds[name] += each
            rates[name].append(len(asked) / whole)
            processor[name].append((processor_of(pid) - before) / len(asked))
            errors += wrong
            memory.append(memory_of(pid))
    batches = await asyncio.to_thread(batches_of, port)
    for client in clients:
        await client.close()
    warm = memory[len(memory) // 10]
    return {
        "requests": 2 * pairs * block,
        "errors": errors,
        **{
            name: {
                "p50_ms": round(1000 * float(np.quantile(seconds[name], 0.5)), 1),
                "p99_ms": round(1000 * float(np.quantile(seconds[name], 0.99)), 1),
                "requests_a_second": round(float(np.median(rates[name])), 1),
                "processor_ms": round(1000 * float(np.median(processor[name])), 2),
            }
            for name in seconds
        },
        "patched_over_plain": _quartiles(np.array(rates["patched"]) / np.array(rates["plain"])),
        "patched_over_plain_processor": _quartiles(np.array(processor["plain"]) / np.array(processor["patched"])),
        "texts_a_forward_pass": batches,
        "memory_mb": {"after_a_tenth": round(warm, 1), "end": round(memory[-1], 1), "most": round(max(memory), 1)},
    }


def _quartiles(values: np.ndarray) -> dict[str, float]:
    low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    return {"median": round(float(median), 3), "low": round(float(low), 3), "high": round(float(high), 3)}


def show(result: dict[str, Any]) -> None:
    print(f"{result['images']:,} images, {result['clients']} clients, {result['requests']:,} requests, {result['errors']} errors")
    print("\n| | p50, ms | p99, ms | requests a second | processor, ms a request |\n|---|--:|--:|--:|--:|")
    for name in ("plain", "patched"):
        one = result[name]
        print(f"| {name} | {one['p50_ms']} | {one['p99_ms']} | {one['requests_a_second']} | {one['processor_ms']} |")
    memory = result["memory_mb"]
    for key, by in (("patched_over_plain", "the clock"), ("patched_over_plain_processor", "processor time")):
        ratio = result[key]
        print(f"\nthroughput with the patch over without, by {by}: {ratio['median']} (quartiles {ratio['low']} to {ratio['high']})")
    print(f"\ntexts a forward pass: {result['texts_a_forward_pass']}")
    print(f"\nmemory: {memory['after_a_tenth']} MB after a tenth, {memory['end']} MB at the end, {memory['most']} MB at most\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--block", type=int, default=500, help="requests of a block with the patch or without it")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("-k", type=int, default=24, help="results a request")
    parser.add_argument("--threads", type=int, default=1, help="of the service's arithmetic")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = measure(given.images, given.requests, given.block, given.clients, given.k, given.threads)
    show(result)
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
