"""A folder of work units: long work cut into pieces that survive a kill.

The manifest fixes the units before the first one is made. Each unit is a folder of ``.npy`` files written beside its final
place and renamed into it, with the size and SHA-256 of every file in its ``unit.json``. A run that was killed leaves whole
units and at most one leftover for each process, which the next run removes; the bytes of the finished folder equal those of an
uninterrupted run, for each unit is made from its own inputs alone. For the same reason it does not matter which process makes which
unit: :func:`planned` gives the units of a function that would make them itself, so that several processes can share them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clipmend import __version__
from clipmend.backbones.base import DualEncoder
from clipmend.backbones.progress import track

__all__ = ["Arrays", "Maker", "UnitFolder", "cut", "find_damage", "manifest_of", "planned", "read_manifest", "read_units"]

MANIFEST = "manifest.json"
Arrays = dict[str, np.ndarray]
Maker = Callable[[int, int], Arrays]
"""``make(first, last) -> {name: array}`` for the rows ``first..last - 1``."""

_planning: ContextVar[bool] = ContextVar("planning", default=False)


def cut(count: int, size: int) -> list[dict[str, Any]]:
    """Units of ``size`` consecutive rows: ``[{"id": "unit-00000", "first": 0, "last": size}, ...]``, ``last`` exclusive."""
    if size < 1:
        raise ValueError(f"a unit needs at least one row, not {size}")
    return [
        {"id": f"unit-{k:05d}", "first": first, "last": min(first + size, count)} for k, first in enumerate(range(0, count, size))
    ]


class UnitFolder:
    """Work units in a folder, made once and read memory-mapped.

    Args:
        path: the folder; made where it does not exist.
        manifest: what is to be made. ``"identity"`` (a dict) says from what: a folder of another identity is refused.
            ``"made_by"`` (a dict) names versions and device: it must match for an unfinished folder to be continued, since
            half a folder by one version and half by another equals neither. ``"units"`` are those of :func:`cut`. Whatever else
            it holds (batch size) is taken from the folder where it exists already.
        what: the noun for messages (``"text features"``).

    Raises:
        ValueError: the folder holds something else, or was begun from other inputs or by other versions.

    Attributes:
        manifest: the manifest in force.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: dict[str, Any], what: str) -> None:
        self.path = Path(path)
        self.what = what
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"{self.path} is a file; {what} need a folder")
        self._made: list[Path] = []
        found = read_manifest(self.path, what)
        if found is None:
            foreign = [p.name for p in self.path.iterdir() if not p.name.startswith(MANIFEST)] if self.path.exists() else []
            if foreign:
                raise ValueError(f"{self.path} is not empty and holds no {what} (but {foreign[0]!r}): give an empty or new folder")
            # The folder and those above it that are not there yet, the innermost first.
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            _write_beside(self.path / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True).encode() + b"\n")
            found = manifest
        self._refuse_other(found, manifest)
        self.manifest = found

    def _refuse_other(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        theirs, ours = _flat(found.get("identity", {})), _flat(wanted["identity"])
        differing = [key for key in sorted(theirs.keys() | ours.keys()) if theirs.get(key) != ours.get(key)]
        if differing:
            details = "; ".join(f"{key}: {_short(theirs.get(key))} there, {_short(ours.get(key))} now" for key in differing)
            raise ValueError(
                f"{self.path} holds {self.what} made from something else ({details}): give another folder, or delete this one"
            )
        unfinished = any(not (self.path / unit["id"]).is_dir() for unit in found["units"])
        if unfinished and found.get("made_by") != wanted.get("made_by"):
            raise ValueError(
                f"{self.path} holds unfinished {self.what} begun by {found.get('made_by')}, and this is {wanted.get('made_by')}: "
                "go on with the former, or delete the folder"
            )

    def run(self, make: Maker, *, progress: bool = False) -> None:
        """Make the units that are missing, with ``make(first, last) -> {name: array}``; check the others and remake the damaged.

        Whole units outlive an error or an interruption. Where there is none yet, nothing stays of what was made for this folder.
        """
        if _planning.get():
            raise _Planned(self, make)
        with self.alone():
            missing = self.missing()
            for unit in track(missing, len(missing), self.what, progress):
                self.make(unit, make)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder against every other run that writes; tidy up after an error.

        Raises:
            ValueError: another run holds it.
        """
        with _alone(self.path, self.what):
            try:
                yield
            except (Exception, KeyboardInterrupt):
                self._leave_nothing_empty()
                raise

    def missing(self) -> list[dict[str, Any]]:
        """The units that are still to be made, within :meth:`alone`: leftovers are removed and damaged units put away first."""
        for leftover in self.path.glob("*.tmp-*"):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)  # a worker of a killed run may be writing its last unit yet
            else:
                leftover.unlink(missing_ok=True)
        missing = []
        for unit in self.manifest["units"]:
            place = self.path / unit["id"]
            if place.exists():
                damage = find_damage(place, digests=True)
                if damage is None:
                    continue
                warnings.warn(f"{self.what}: {damage}; made again", stacklevel=4)
                # Renamed away first: a kill during the removal must not leave half a unit under its own name.
                doomed = place.rename(place.with_name(f"{unit['id']}.tmp-damaged"))
                shutil.rmtree(doomed)
            missing.append(unit)
        return missing

    def make(self, unit: Mapping[str, Any], make: Maker) -> None:
        """Make one unit of the manifest and write it; safe in any process while one of them is within :meth:`alone`."""
        self._write(self.path / unit["id"], make(unit["first"], unit["last"]))

    def forget(self) -> None:
        """Take back a folder that this object made, as long as it holds no unit: a plan must not stand in the way of another."""
        if self._made:
            self._leave_nothing_empty()

    def _leave_nothing_empty(self) -> None:
        """Remove a folder without a unit, and those above it that were made for it and hold nothing else."""
        if any((self.path / unit["id"]).is_dir() for unit in self.manifest["units"]):
            return
        with suppress(OSError):  # the error that brought us here is the one to show
            (self.path / MANIFEST).unlink(missing_ok=True)
            for folder in self._made or [self.path]:
                folder.rmdir()

    def _write(self, place: Path, arrays: Mapping[str, np.ndarray]) -> None:
        beside = place.with_name(f"{place.name}.tmp-{uuid.uuid4().hex}")  # process numbers repeat between machines
        beside.mkdir()
        try:
            files = {}
            for name, array in arrays.items():
                file = beside / f"{name}.npy"
                np.save(file, np.ascontiguousarray(array), allow_pickle=False)
                files[file.name] = {"size": file.stat().st_size, "sha256": _sha256(file)}
            (beside / "unit.json").write_text(json.dumps({"files": files}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            try:
                beside.rename(place)
            except OSError:
                # A worker of a killed run may have finished this unit meanwhile, or one that was lost sight of: equal bytes.
                if find_damage(place, digests=True) is not None:
                    raise
                shutil.rmtree(beside)
        except (Exception, KeyboardInterrupt):  # a full disk, say
            shutil.rmtree(beside, ignore_errors=True)
            raise

    def read(self, *, digests: bool = False) -> list[Arrays]:
        """Every unit's arrays, memory-mapped read-only, in order.

        Raises:
            ValueError: a unit is missing or damaged (sizes are always checked, digests on request).
        """
        return read_units(self.path, self.manifest, self.what, digests=digests)


class _Planned(BaseException):
    """Carries a plan out of the function that would have carried it through; nothing in between may take it for an error."""

    def __init__(self, folder: UnitFolder, make: Maker) -> None:
        super().__init__()
        self.folder, self.make = folder, make


def planned(function: Callable[[], Any]) -> tuple[UnitFolder, Maker]:
    """What ``function`` would run, without running it: its folder, with the manifest in place, and how to make a unit.

    Args:
        function: calls something that makes work units, such as
            :func:`~clipmend.negation.image_features.extract_image_features` with a ``directory``.

    Raises:
        ValueError: it runs no units.
    """
    token = _planning.set(True)
    try:
        function()
    except _Planned as plan:
        return plan.folder, plan.make
    finally:
        _planning.reset(token)
    raise ValueError("the function makes no work units")


def manifest_of(encoder: DualEncoder, identity: dict[str, Any], batch_size: int, units: list[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of work by ``encoder``: see :class:`UnitFolder`."""
    import transformers

    # What besides the weights may move the last bits of a result.
    made_by: dict[str, Any] = {
        "clipmend": __version__,
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "device": torch.device(encoder.device).type,
        "machine": platform.machine(),
    }
    if made_by["device"] == "cpu":
        # Sums are split by the number of threads and by the width of the processor's vectors.
        made_by |= {"threads": torch.get_num_threads(), "vectors": torch.backends.cpu.get_cpu_capability()}
    return {"identity": identity, "made_by": made_by, "backbone": encoder.name, "batch_size": batch_size, "units": units}


def read_manifest(path: Path, what: str) -> dict[str, Any] | None:
    """The manifest of a folder, ``None`` where there is none."""
    try:
        found = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path / MANIFEST} is damaged ({error}): delete the folder and make the {what} again") from error
    if not isinstance(found, dict) or not isinstance(found.get("units"), list) or "identity" not in found:
        raise ValueError(f"{path / MANIFEST} is not a manifest of {what}: give another folder")
    return found


def read_units(path: Path, manifest: dict[str, Any], what: str, *, digests: bool = False) -> list[Arrays]:
    """Arrays of every unit of a finished folder, memory-mapped; see :meth:`UnitFolder.read`."""
    units = []
    for unit in manifest["units"]:
        place = path / unit["id"]
        damage = find_damage(place, digests=digests)
        if damage is not None:
            raise ValueError(f"{what}: {damage}; run the extraction again to make it")
        files = json.loads((place / "unit.json").read_text(encoding="utf-8"))["files"]
        units.append({Path(name).stem: np.asarray(np.load(place / name, mmap_mode="r", allow_pickle=False)) for name in files})
    return units


def find_damage(place: Path, *, digests: bool) -> str | None:
    """What is wrong with a unit's folder, ``None`` if nothing."""
    if not place.is_dir():
        return f"{place} is missing"
    try:
        files = json.loads((place / "unit.json").read_text(encoding="utf-8"))["files"]
        for name, expected in files.items():
            file = place / name
            if not file.is_file():
                return f"{file} is missing"
            if file.stat().st_size != expected["size"]:
                return f"{file} has {file.stat().st_size} bytes of {expected['size']}"
            if digests and _sha256(file) != expected["sha256"]:
                return f"{file} does not match its SHA-256"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{place / 'unit.json'} cannot be read ({type(error).__name__})"
    return None


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _write_beside(file: Path, content: bytes) -> None:
    beside = file.with_name(f"{file.name}.tmp-{os.getpid()}")
    beside.write_bytes(content)
    beside.replace(file)


def _flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}..."


@contextmanager
def _alone(path: Path, what: str) -> Iterator[None]:
    """Hold the folder against a second process; the system frees it when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:  # not on Windows: there two writers end in one of them failing to rename, never in mixed bytes
        yield
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"another process is making {what} in {path}: wait for it, or give another folder") from error
        yield
    finally:
        os.close(handle)
