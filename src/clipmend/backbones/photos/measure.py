"""Ask the sample photographs: what is there, what is not, and what is there without something else."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.backbones.photos.samples import demo_photos

__all__ = ["HYBRID_WORDINGS", "THINGS", "TRAINED_WORDINGS", "UNSEEN_WORDINGS", "PhotoRank", "PhotoReport", "measure_photos"]

THINGS: dict[str, tuple[str, str, str]] = {
    "cat": ("cat", "cats", "a cat"),
    "coffee": ("coffee", "coffee", "coffee"),
    "rocket": ("rocket", "rockets", "a rocket"),
    "motorcycle": ("motorcycle", "motorcycles", "a motorcycle"),
    "temple": ("temple", "temples", "a temple"),
    "flower": ("flower", "flowers", "a flower"),
}
"""Six of the sample photographs, each with the word for what it shows: bare, plural, with its article."""

PLAIN = "a photo of {a}"
TRAINED_WORDINGS = ("no {x}", "a photo without {a}", "a picture with no {x}")
UNSEEN_WORDINGS = ("a scene lacking {a}", "a photo devoid of {xs}", "a picture free of {xs}")
"""Ways to deny that no training text uses."""
HYBRID_WORDINGS = ("{pos} but no {x}",)


@dataclass(frozen=True)
class PhotoRank:
    """Where one query put a photograph.

    Args:
        query: the text.
        kind: ``"plain"``, ``"trained"``, ``"unseen"`` (both negative) or ``"hybrid"``.
        thing: what the text speaks of: asserted by plain and hybrid texts, denied by negative ones.
        rank: the rank of the photograph of ``thing``, 1 the best; ties count against the encoder.
        denied: what a hybrid text denies, else ``""``.
        denied_rank: the rank of its photograph (ties, again, against the encoder), else 0.
    """

    query: str
    kind: str
    thing: str
    rank: int
    denied: str = ""
    denied_rank: int = 0


@dataclass(frozen=True)
class PhotoReport:
    """Ranks of all queries among ``count`` photographs."""

    count: int
    ranks: tuple[PhotoRank, ...]

    def passed(self, rank: PhotoRank) -> bool:
        """Whether a query was understood: plain, its photograph first; negative, in the bottom third; hybrid, first, and the
        photograph of what is denied in the bottom half."""
        if rank.kind == "plain":
            return rank.rank == 1
        if rank.kind == "hybrid":
            return rank.rank == 1 and rank.denied_rank > self.count / 2
        return rank.rank > self.count * 2 / 3

    def failed(self) -> list[PhotoRank]:
        """The queries that were not understood."""
        return [rank for rank in self.ranks if not self.passed(rank)]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Per kind of query: how many were understood, of how many."""
        kinds = list(dict.fromkeys(rank.kind for rank in self.ranks))
        chosen = {kind: [rank for rank in self.ranks if rank.kind == kind] for kind in kinds}
        return {kind: (sum(map(self.passed, ranks)), len(ranks)) for kind, ranks in chosen.items()}

    def to_dict(self) -> dict[str, Any]:
        """Counts and every rank, ready for JSON."""
        counts = {kind: {"right": right, "asked": asked} for kind, (right, asked) in self.counts().items()}
        return {"photographs": self.count, "counts": counts, "ranks": [asdict(rank) for rank in self.ranks]}


def measure_photos(
    encoder: DualEncoder,
    images: Tensor | None = None,
    *,
    trained: tuple[str, ...] = TRAINED_WORDINGS,
    unseen: tuple[str, ...] = UNSEEN_WORDINGS,
    hybrids: tuple[str, ...] = HYBRID_WORDINGS,
) -> PhotoReport:
    """Rank the sample photographs for six plain queries, 36 negative ones, and 30 of the kind "X but no Y".

    Args:
        encoder: a backbone, or a mended one.
        images: ``[14, D]`` embeddings of :func:`demo_photos` in its order, if they exist already: a patch leaves them as they are.
        trained, unseen, hybrids: wordings with ``{x}`` (bare), ``{xs}`` (plural), ``{a}`` (with its article) and, for hybrids,
            ``{pos}``.
    """
    photos = demo_photos()
    if images is None:
        images = encoder.encode_images(list(photos.values()))
    if len(images) != len(photos):
        raise ValueError(f"{len(images)} image embeddings for {len(photos)} photographs")
    asked: list[tuple[str, str, str, str]] = []  # text, kind, thing, denied
    for thing in THINGS:
        asked.append((_fill(PLAIN, thing), "plain", thing, ""))
        asked += [(_fill(wording, thing), "trained", thing, "") for wording in trained]
        asked += [(_fill(wording, thing), "unseen", thing, "") for wording in unseen]
        for denied in THINGS:
            if denied != thing:
                asked += [(_fill(wording, denied, THINGS[thing][2]), "hybrid", thing, denied) for wording in hybrids]
    scores = images @ encoder.encode_texts([text for text, *_ in asked]).T  # [14, Q]
    names = list(photos)
    ranks = []
    for column, (text, kind, thing, denied) in enumerate(asked):
        own = scores[:, column]

        def rank(name: str, high: bool, own: Tensor = own) -> int:
            score = own[names.index(name)]
            return int((own >= score).sum()) if high else int((own > score).sum()) + 1

        wanted_high = kind in ("plain", "hybrid")
        ranks.append(
            PhotoRank(text, kind, thing, rank(thing, wanted_high), denied, rank(denied, False) if denied else 0),
        )
    return PhotoReport(len(photos), tuple(ranks))


def _fill(wording: str, thing: str, asserted: str = "") -> str:
    bare, plural, article = THINGS[thing]
    return wording.format(x=bare, xs=plural, a=article, pos=asserted)
