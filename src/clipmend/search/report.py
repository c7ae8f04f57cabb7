"""What an update of an image index found and did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clipmend.data.images import display_path

__all__ = ["UpdateReport", "told_others"]

_MOST_ENDINGS = 8


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
        newly_skipped: those of ``skipped`` that the run before did not skip, or for another reason.
        others: how many files were passed over because their names are not those of images, by ending (lower case, with its dot;
            empty for none). Hidden files and the index's own do not count.
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
    newly_skipped: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)

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


def told_others(others: Mapping[str, int]) -> str:
    """``4 other files passed over: .cr2 2, .mp4 1, no ending 1``; empty for none."""
    total = sum(others.values())
    if not total:
        return ""
    ordered = sorted(others.items(), key=lambda item: (-item[1], item[0]))
    told = [f"{display_path(ending) if ending else 'no ending'} {number:,}" for ending, number in ordered[:_MOST_ENDINGS]]
    if len(ordered) > _MOST_ENDINGS:
        told.append(f"of other endings {sum(number for _, number in ordered[_MOST_ENDINGS:]):,}")
    return f"{total:,} other file{'s' * (total != 1)} passed over: {', '.join(told)}"
