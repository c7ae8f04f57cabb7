"""Units of work on many processes and machines, with Ray Data (extra ``cluster``).

The data set that Ray sees is the list of units, a few bytes each. Images go from the file system to the process that embeds them,
and their features from there to the folder: neither passes through Ray's object store.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

# Read when Ray starts: no report to its makers, and of its own processes' logs only what is wrong.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "error")

try:
    import ray
    import ray.data
except ImportError as error:
    raise ImportError("many processes and machines need Ray: pip install 'clipmend[cluster]'") from error

from clipmend.features.ray_address import check_ray_address

if TYPE_CHECKING:
    from clipmend.features.work import Job

__all__ = ["check_cluster", "run_on_ray"]

STORE = 128 << 20
"""Bytes of Ray's object store on this machine, which holds no more than names of units."""
ATTEMPTS = 4
"""How often a unit is begun whose process dies of it, before the run fails. Ray replaces processes that die without end."""


def check_cluster(address: str) -> None:
    """Pass if a Ray runs in this process already, or one answers at ``address``; nothing is started or joined.

    Raises:
        ValueError: no such form of address.
        ConnectionError: no cluster there.
    """
    if not ray.is_initialized():
        check_ray_address(address)


def run_on_ray(
    job: Job, tasks: Sequence[tuple[str, str]], done: Callable[[], None], *, workers: int | None = None, address: str | None = None
) -> None:
    """Make units in processes of Ray.

    Args:
        job: the job; its model by name.
        tasks: kind and id of each unit.
        done: called after every unit.
        workers: number of processes (default: one for each processor of the cluster).
        address: a running cluster (``"auto"``, ``"HOST:PORT"``, ``"ray://HOST:PORT"``); ``None``: start one on this machine for
            the duration. A Ray that runs in this process already is used as it is, and left running.

    Raises:
        ValueError: a unit cannot be made, or there are fewer processors than ``workers``.
        ConnectionError: no cluster at ``address``.
    """
    with _connected(workers, address):
        processors = int(ray.cluster_resources().get("CPU", 0))
        count = processors if workers is None else workers
        if not 1 <= count <= processors:
            raise ValueError(f"{count} workers, and the cluster has {processors} processors: ask for at most as many")
        gpu = str(job.device or "").startswith("cuda")
        units = ray.data.from_items([{"kind": kind, "unit": unit} for kind, unit in tasks], override_num_blocks=len(tasks))
        made = units.map_batches(
            _Maker,
            fn_constructor_args=(job, os.getcwd()),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(count, len(tasks)), max_tasks_in_flight_per_actor=2),
            num_cpus=1,
            num_gpus=1 if gpu else 0,
        )
        try:
            # No thread may have work left when Ray is shut down: its next call would connect this process to a cluster anew. So
            # nothing is fetched ahead (the answers are a line each), and a run given up is closed here, before its error is told.
            batches = iter(made.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0))
            with closing(cast("Generator[Any, None, None]", batches)) as answers:
                for error in (error for answer in answers for error in answer["error"]):
                    if error:
                        raise ValueError(error)
                    done()
        finally:
            for mark in job.folder.glob("*/*.tmp-attempts"):
                mark.unlink(missing_ok=True)


class _Maker:
    """A process of the pool."""

    def __init__(self, job: Job, folder: str) -> None:
        from clipmend.features.work import Worker

        self.worker = Worker(job, folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        errors = []
        for kind, unit in zip(batch["kind"], batch["unit"], strict=True):
            try:
                with _attempt(self.worker.job.folder / str(kind) / f"{unit}.tmp-attempts"):
                    self.worker.make(str(kind), str(unit))
                errors.append("")
            except (ValueError, OSError, ImportError) as error:  # told in one line; anything else is a fault, with its traceback
                errors.append(f"{unit} of {kind}: {error}")
        return {"unit": [str(unit) for unit in batch["unit"]], "error": errors}


@contextmanager
def _attempt(mark: Path) -> Iterator[None]:
    """Count in a file how often a unit was begun and not ended, by whatever process.

    Raises:
        ValueError: too often.
    """
    with mark.open("ab") as file:
        if file.tell() >= ATTEMPTS:
            raise ValueError(f"the process that makes it died {ATTEMPTS} times: is there memory enough for each worker?")
        file.write(b".")
    yield
    mark.unlink(missing_ok=True)


def _start(workers: int | None) -> None:
    try:
        ray.init(
            address="local", num_cpus=workers, include_dashboard=False, object_store_memory=STORE, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except Exception as error:  # Ray raises it as it is where a machine is too busy
        raise OSError(f"Ray does not start on this machine: {error}") from error


@contextmanager
def _connected(workers: int | None, address: str | None) -> Iterator[None]:
    quiet = ("ray", "ray.data")
    levels = {name: logging.getLogger(name).level for name in quiet}
    for name in quiet:
        logging.getLogger(name).setLevel(logging.ERROR)
    ours = not ray.is_initialized()
    if ours and address is None:
        _start(workers)
    elif ours:
        assert address is not None
        check_ray_address(address)  # again: much time may have passed since the run began
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    context = ray.data.DataContext.get_current()
    bars, context.enable_progress_bars = context.enable_progress_bars, False
    try:
        yield
    finally:
        context.enable_progress_bars = bars
        if ours:
            ray.shutdown()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
