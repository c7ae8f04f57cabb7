"""``Searcher``: ask any gallery in the query language, with or without a patch, and see what the patch changed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipmend.search.gallery import Gallery, GalleryError, Item
from clipmend.search.grammar import Query, QueryError, Term, parse_query
from clipmend.search.hints import nothing_hint
from clipmend.search.order import Order, Page, ranks_in
from clipmend.search.spelling import shown_as
from clipmend.search.terms import Correction, combined

if TYPE_CHECKING:
    from clipmend.backbones.base import DualEncoder, OnLong

__all__ = ["DEPTH", "EVERYTHING", "Answer", "Embedder", "Found", "Searcher", "list_images"]

EVERYTHING = 50_000
"""In galleries of fewer images than this, every image's rank without the patch is known."""
DEPTH = 1000
"""In larger ones, the ranks of the first so many."""

Embedder = Callable[[Sequence[str], "float | None", "bool | None"], np.ndarray]
"""``(texts, strength, gate)`` to unit vectors ``[n, D]``, as :meth:`Searcher.embed`; strength 0 asks for the plain ones."""

_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """One image of an answer. Ranks count from 1 over all images that fulfil the query's conditions.

    Attributes:
        id: of the image.
        item: what is known of it.
        file: its file on this machine, where the gallery knows one.
        rank: its rank; ``None``: beyond :attr:`Answer.depth` (in :attr:`Answer.before` alone).
        score: what the rank is by: the cosine, plus the correction where the answer was re-ranked. 0 where nothing was ranked.
        score_before: cosine without the patch; ``None`` where the search was not to compare.
        rank_before: rank without the patch; ``None`` beyond :attr:`Answer.depth`.
        cosine: of the image with the query, by the patch.
        correction: what the patch's score correction adds; ``None`` where it was not asked for, or there is none.
        copies: ids of images so like this one that they were left out for it, best first.
        terms: of each term of the query, the cosine with it alone; empty unless asked for.
    """

    id: int
    item: Item
    file: Path | None
    rank: int | None
    score: float
    score_before: float | None = None
    rank_before: int | None = None
    cosine: float | None = None
    correction: float | None = None
    copies: tuple[int, ...] = ()
    terms: tuple[tuple[Term, float], ...] = ()

    def explain(self) -> dict[str, Any]:
        """Where the rank comes from, fit for JSON; what was not computed is ``None``."""
        return {
            "backbone_score": self.score_before,
            "mended_score": self.cosine,
            "correction": self.correction,
            "score": self.score,
            "rank_before": self.rank_before,
            "rank": self.rank,
            "terms": [
                {"weight": term.weight, "kind": term.kind, "value": term.value, "score": score} for term, score in self.terms
            ],
        }


@dataclass(frozen=True)
class Answer:
    """What a search gives.

    Attributes:
        query: as it was read.
        hits: the page asked for, best first.
        before: the same page of the ranking without the patch, where the search was to compare; else empty.
        total: how many images fulfil the query's conditions: how far paging can go.
        offset: of the page.
        exact: whether every image was compared.
        hint: a word of advice, or ``None``.
        seconds: it took.
        depth: ranks in the other ranking are known among its first so many; 0 where the search was not to compare.
        mended: of each term of the query, whether the patch corrected it: False where the gate left a text as it is; ``None`` of
            images, and where there is no patch.
    """

    query: Query
    hits: list[Found]
    before: list[Found]
    total: int
    offset: int
    exact: bool
    hint: str | None
    seconds: float
    depth: int
    mended: tuple[bool | None, ...] = ()


class Searcher:
    """Queries of one gallery by one encoder, with or without a patch. Threads may share one.

    The gate is on: texts in which no word denies anything are embedded as without the patch, and only the others are mended.
    ``patch.apply(encoder, gate=False)`` turns it off for all queries, ``search(..., gate=False)`` for one.

    Args:
        gallery: what is searched.
        encoder: the encoder whose image side made it, without a patch.
        mended: the same with a patch, from :meth:`PeakPatch.apply`; ``None``: no patch.
        files: whether ``image:PATH`` may open files of this machine. A service says no: then only images that come with a query
            can be named.

    Attributes:
        gallery, encoder, mended, files: as given.

    Raises:
        GalleryError: the gallery was made by another image side.

    Example::

        encoder = clipmend.load("scenes")
        mended = PeakPatch.from_pretrained("scenes").apply(encoder)
        answer = Searcher(open_gallery("my.index"), encoder, mended).search("a beach without people", k=12, compare=True)
        for hit in answer.hits:
            print(hit.rank, hit.rank_before, hit.item.path)
    """

    def __init__(self, gallery: Gallery, encoder: DualEncoder, mended: DualEncoder | None = None, *, files: bool = True) -> None:
        gallery.check(encoder)
        if mended is not None:
            gallery.check(mended)
        self.gallery, self.encoder, self.mended, self.files = gallery, encoder, mended, files

    def __repr__(self) -> str:
        return f"Searcher({self.gallery.name!r}, {(self.mended or self.encoder).name!r})"

    def embed(
        self, texts: Sequence[str], strength: float | None = None, gate: bool | None = None, *, on_long: OnLong = "warn"
    ) -> np.ndarray:
        """Embed texts as a search does.

        Args:
            texts: the texts.
            strength: of the patch; 0: without it; ``None``: the patch's own.
            gate: whether texts without a negation cue are left as they are; ``None``: as the patch was applied, else yes.
            on_long: what to do with texts longer than the encoder's context.

        Returns:
            float32 ``[n, D]``, unit vectors.

        Raises:
            ValueError: an empty text, or a strength or gate where there is no patch.
        """
        vectors = self._encoder(strength, gate).encode_texts(list(texts), on_long=on_long)
        return vectors.cpu().numpy().astype(np.float32, copy=False)

    def search(
        self,
        query: str | Query,
        k: int = 20,
        offset: int = 0,
        *,
        strength: float | None = None,
        gate: bool | None = None,
        rerank: int = 0,
        collapse: float | None = None,
        compare: bool = False,
        explain: bool = False,
        exact: bool | None = None,
        images: Mapping[str, Any] | None = None,
        on_long: OnLong = "warn",
        embedder: Embedder | None = None,
    ) -> Answer:
        """Find the images that fit a query best.

        Args:
            query: in the query language (:mod:`clipmend.search.grammar`), or read already. Without terms, images are listed by id.
            k: images a page.
            offset: how many of the best to pass over.
            strength: of the patch, for this query; 0: without it; ``None``: as the patch was applied.
            gate: whether texts without a negation cue are left as they are, for this query; ``None``: as the patch was applied, and
                where that was left open, yes.
            rerank: order the best ``max(rerank, k)`` again by the patch's score correction; 0: by cosine alone.
            collapse: leave out images whose cosine with a better one is at least this (0.97, say), and name them as its copies.
            compare: also rank without the patch: ``before``, ``rank_before`` and ``score_before``.
            explain: for each image also the correction, the cosine with each term, and what ``compare`` gives, but ``before``.
            exact: True: compare with every image; False: approximately where the gallery can; ``None``: as it thinks best.
            images: images that come with the query, by the name that ``image:NAME`` has: anything that the encoder takes.
            on_long: what to do with texts longer than the encoder's context.
            embedder: embeds the texts in place of :meth:`embed`, to gather those of several queries.

        Returns:
            the answer.

        Raises:
            QueryError: a query that cannot be read, names an image that is not there, or whose terms cancel each other out.
            ImageError: an image that cannot be read.
            GalleryError: a condition that the gallery cannot answer; damage.
            ValueError: ``k``, ``offset``, ``rerank``, ``collapse``, ``strength`` out of range, or what needs a patch without one.
        """
        began = time.perf_counter()
        if isinstance(query, str):
            query = parse_query(query, self.gallery.fields)
        active = self._check(k, offset, rerank, collapse, strength, gate)
        if not query.terms:
            return list_images(self.gallery, query, k, offset)
        total = self.gallery.count(query.where)

        def embed(texts: Sequence[str], strength: float | None, gate: bool | None) -> np.ndarray:
            return self.embed(texts, strength, gate, on_long=on_long) if embedder is None else embedder(texts, strength, gate)

        others = [self._image(term, images or {}) for term in query.terms if term.kind != "text"]
        after = combined(query, embed(query.texts, strength, gate) if query.texts else [], others)
        correction = Correction(self.gallery, active, query, after.norm, on_long)
        compare_any = compare or explain
        known = max(DEPTH, offset + k) if len(self.gallery) >= EVERYTHING else total
        depth = min(total, known) if compare_any else 0
        ranking = Order(self.gallery, after.query, query.where, total, exact)
        ranking.reach(max(offset + k, rerank, depth))
        if rerank and total:
            first = ranking.ids[: max(rerank, k)]
            ranking.put_first(correction(first))
        page = ranking.page(k, offset, collapse)
        plain, plain_page, plain_query = ranking, page, after.query
        if compare_any:
            patched = query.texts and active is not self.encoder
            if patched:
                plain_query = combined(query, embed(query.texts, 0.0, None), others).query
            if patched or rerank:
                plain = Order(self.gallery, plain_query, query.where, total, exact)
                plain.reach(depth)
                plain_page = plain.page(k, offset, collapse) if compare else plain_page

        def found(page: Page) -> list[Found]:
            ids = page.ids
            if not len(ids):
                return []
            items = self.gallery.items(ids)
            vectors = self.gallery.vectors(ids)
            cosines = vectors @ after.query
            scores = ranking.scores_of(ids, cosines)
            ranks = ranks_in(ranking.ids, ids)
            befores = vectors @ plain_query if compare_any else None
            before_ranks = ranks_in(plain.ids[:depth], ids) if compare_any else [None] * len(ids)
            by_term = vectors @ after.terms.T if explain else None
            corrections: Sequence[float | None] = [None] * len(ids)
            if rerank or (explain and query.texts and active.corrects_scores and active is not self.encoder):
                corrections = correction(ids).tolist()
            return [
                Found(
                    int(ids[i]),
                    items[i],
                    self.gallery.file(items[i]),
                    ranks[i],
                    float(scores[i]),
                    None if befores is None else float(befores[i]),
                    before_ranks[i],
                    float(cosines[i]),
                    corrections[i],
                    page.copies[i],
                    () if by_term is None else tuple(zip(query.terms, map(float, by_term[i]), strict=True)),
                )
                for i in range(len(ids))
            ]

        hits = found(page)
        before = found(plain_page) if compare else []
        is_exact = ranking.exact and plain.exact
        hint = self._hint(query, hits, total, offset)
        mends = tuple(self._mends(active, term) for term in query.terms)
        return Answer(query, hits, before, total, offset, is_exact, hint, time.perf_counter() - began, depth, mends)

    def _encoder(self, strength: float | None, gate: bool | None) -> DualEncoder:
        """What embeds at this strength and gate; the plain encoder itself where that is what it comes to."""
        if self.mended is None:
            if strength or gate:
                raise ValueError("strength and gate belong to a patch, and there is none here")
            return self.encoder
        if strength == 0:
            return self.encoder
        from clipmend.negation.mended import Mended

        if isinstance(self.mended, Mended):
            open_ = gate is None and self.mended.gate_asked is None
            return self.mended.adjusted(strength, True if open_ else gate)
        if strength is None and gate is None:
            return self.mended
        raise ValueError(f"the strength and gate of {self.mended.name} cannot be changed: it is no Mended encoder")

    def _mends(self, active: DualEncoder, term: Term) -> bool | None:
        """Whether the patch corrects a term; ``None`` where there is nothing to correct, or nothing that could."""
        if term.kind != "text" or active is self.encoder:
            return None
        from clipmend.negation.mended import Mended

        if not isinstance(active, Mended):
            return True
        return active.mends(term.value) if active.strength else None

    def _check(
        self, k: int, offset: int, rerank: int, collapse: float | None, strength: float | None, gate: bool | None
    ) -> DualEncoder:
        _check_page(k, offset)
        if rerank < 0:
            raise ValueError(f"rerank must be 0 (off) or more (got {rerank})")
        if collapse is not None and not 0 < collapse <= 1:
            raise ValueError(f"collapse is a cosine above 0 and at most 1 (got {collapse})")
        active = self._encoder(strength, gate)
        if rerank and not (active.corrects_scores or (self.mended is not None and self.mended.corrects_scores)):
            raise ValueError(
                f"rerank orders by the score correction of a patch, and {active.name} has none: leave rerank out, or apply a patch "
                "that was fitted with one"
            )
        return active

    def _hint(self, query: Query, hits: list[Found], total: int, offset: int) -> str | None:
        if not hits:
            # With collapse there may be pages of images of which every one is a copy of an earlier one.
            beyond = "no more images: what is left are copies of those before" if offset else None
            return nothing_hint(self.gallery, query.where, total, offset) or beyond
        if self.mended is not None:
            return None
        from clipmend.search.query import negation_hint

        return next((hint for text in query.texts if (hint := negation_hint(text, False, self.encoder.name))), None)

    def _image(self, term: Term, images: Mapping[str, Any]) -> np.ndarray:
        """Unit vector ``[D]`` of an image that a term names."""
        if term.kind == "like":
            return self.gallery.vectors([self._named(term.value)])[0]
        source: Any = images.get(term.value)
        if source is None:
            if _URL.match(term.value):
                raise QueryError(f"image:{term.value} is a URL, and nothing is fetched: save the image and name its file")
            if not self.files:
                there = f" (there are: {', '.join(images)})" if images else ""
                raise QueryError(f"no image called {term.value!r} came with the query{there}; files cannot be named here")
            source = Path(term.value)
        return self.encoder.encode_images([source])[0].float().cpu().numpy()

    def _named(self, value: str) -> int:
        """The id of ``like:VALUE``: an image whose path is spelled so, else an id as it is written without zeros before it, else a
        file, or a path as tables and answers show it.
        """
        found = self.gallery.find(value)
        if found is not None and self.gallery.items([found])[0].path == value:
            return found
        if re.fullmatch("0|[1-9][0-9]{0,18}", value) and int(value) < 1 << 63:
            try:
                self.gallery.vectors([int(value)])
            except GalleryError:
                pass
            else:
                return int(value)
        if found is None:
            found = next((id_ for name in shown_as(value) if (id_ := self.gallery.find(name)) is not None), None)
        if found is None:
            raise QueryError(f"like:{value} is neither the id nor the path of an image in {self.gallery.name}")
        return found


def list_images(gallery: Gallery, query: Query, k: int = 20, offset: int = 0) -> Answer:
    """The images that fulfil a query's conditions, in the order of their ids; no encoder is needed, and nothing is ranked.

    Args:
        gallery: whose images.
        query: its terms are not looked at.
        k: images a page.
        offset: how many to pass over.

    Raises:
        GalleryError: a condition that the gallery cannot answer.
        ValueError: ``k`` below 1 or ``offset`` below 0.
    """
    began = time.perf_counter()
    _check_page(k, offset)
    total = gallery.count(query.where)
    page: list[int] = []
    passed = 0
    for block in gallery.ids(query.where):
        page.extend(int(i) for i in block[max(0, offset - passed) : max(0, offset + k - passed)])
        passed += len(block)
        if passed >= offset + k:
            break
    items = gallery.items(page) if page else []
    hits = [Found(item.id, item, gallery.file(item), rank, 0.0) for rank, item in enumerate(items, offset + 1)]
    hint = None if hits else nothing_hint(gallery, query.where, total, offset)
    return Answer(query, hits, [], total, offset, True, hint, time.perf_counter() - began, 0, (None,) * len(query.terms))


def _check_page(k: int, offset: int) -> None:
    if k < 1:
        raise ValueError(f"k must be at least 1 (got {k})")
    if offset < 0:
        raise ValueError(f"offset must be 0 or more (got {offset})")
