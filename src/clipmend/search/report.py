"""What an update of an image index found and did."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UpdateReport"]


@dataclass(frozen=True)
class UpdateReport:
    """What an update found and did, in images.

    Attributes:
        count: images that can be searched now.
        embedded: images passed through the encoder by this run.
        resumed: images whose vectors an earlier, killed run had left.
        added: paths that were not in the index (copies of known contents included).
        changed: paths whose content is another than before.
        moved: paths new to the index whose content was known under a path that is gone.
        removed: paths that are gone (and not just moved).
        unchanged: paths whose content is the same as before.
        skipped: path (relative to the root) and reason of every file that cannot be searched.
        seconds: time taken.
    """

    count: int
    embedded: int
    resumed: int
    added: int
    changed: int
    moved: int
    removed: int
    unchanged: int
    skipped: dict[str, str]
    seconds: float

    @property
    def rate(self) -> float:
        """Images embedded a second."""
        return self.embedded / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        parts = {n: getattr(self, n) for n in ("embedded", "resumed", "added", "changed", "moved", "removed", "unchanged")}
        told = ", ".join(f"{value:,} {name}" for name, value in parts.items() if value)
        skipped = f"; {len(self.skipped):,} skipped" if self.skipped else ""
        return (
            f"{self.count:,} images ({told or 'nothing to do'}{skipped}) in {self.seconds:.1f} s, {self.rate:.0f} embedded a second"
        )
