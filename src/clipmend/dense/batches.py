"""From pairs to batches: which pairs a step sees, on which process, and how they become tensors.

What a step sees depends on seed and step alone, so that a resumed training goes on exactly where it was, and so that any number of
processes see the same pairs, each once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clipmend.backbones.tokens import pad_ids
from clipmend.data.ahead import read_ahead
from clipmend.dense.boxes import Frames
from clipmend.dense.pairs import Pairs
from clipmend.dense.recipes import Example, Recipe

__all__ = ["Batch", "Batches", "Preparer"]

Rows = NDArray[np.int64]


@dataclass
class Batch:
    """One process's share of one batch.

    Args:
        rows: int64 of *all* processes' pairs, in the order in which their features are joined.
        micro: this process's inputs, a mapping for each micro-batch (see :class:`~clipmend.dense.towers.Towers`).
        masks, numbers: of this process's pairs, all micro-batches together.
    """

    rows: Rows
    micro: list[dict[str, Tensor]]
    masks: dict[str, Tensor]
    numbers: dict[str, Tensor]

    def to(self, device: torch.device) -> Batch:
        """On another device."""

        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device, non_blocking=True) for name, tensor in tensors.items()}

        return Batch(self.rows, [moved(part) for part in self.micro], moved(self.masks), moved(self.numbers))


class Preparer:
    """Images to pixels and texts to ids, with the encoder's own preprocessing and tokenizer.

    Args:
        encoder: of :func:`clipmend.load`.
        pairs: the data.
        recipe: says what else to embed.
        whole_length: pad texts to all positions of the model.
        seed: of the recipe's chances.
    """

    def __init__(self, encoder: Any, pairs: Pairs, recipe: Recipe, *, whole_length: bool, seed: int) -> None:
        self.encoder, self.pairs, self.recipe, self.seed = encoder, pairs, recipe, seed
        self.tokens = encoder.tower.tokens
        self.frame = Frames(encoder.prepare_image)
        self.length = self.tokens.context_length if whole_length else None
        tokenizer = getattr(self.tokens, "tokenizer", None)
        self.ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id")} - {None}
        self.starts = {getattr(tokenizer, name, None) for name in ("bos_token_id", "cls_token_id")} - {None}

    def ids_of(self, text: str) -> list[int]:
        """Ids of a text, cut to the context length."""
        return self.tokens([text]).ids[0]

    def count_words(self, text: str) -> int:
        """Words that the model reads of a text: its tokens without start and end, as :meth:`words` marks them."""
        if not text.strip():
            return 0
        ids = torch.tensor([self.ids_of(text)])
        return int(self.words(ids, torch.ones_like(ids, dtype=torch.bool)).sum())

    def plain(self, row: int) -> dict[str, Any]:
        """Image and caption of a pair alone, as they are for validation."""
        return {"image": self._pixels(self.pairs.open(row)), "text": self.ids_of(self.pairs.captions[row])}

    def example(self, step: int, row: int) -> dict[str, Any]:
        """Everything that a recipe has embedded of a pair, not padded yet."""
        pairs = self.pairs
        image = pairs.open(row)
        place = int(pairs.image_of[row])
        rng = np.random.default_rng((self.seed, 3, step, row))
        views = self.recipe.views(
            Example(
                row, image, pairs.captions[row],
                short=pairs.short[row] if pairs.short is not None else "",
                segments=pairs.segments[place] if pairs.segments is not None else (),
                count_words=self.count_words, frame=self.frame,
            ),
            rng,
        )  # fmt: skip
        found: dict[str, Any] = {"image": self._pixels(image), "text": self._changed("text", pairs.captions[row], rng)}
        for name, one in views.images.items():
            found[f"image/{name}"] = torch.stack([self._pixels(i) for i in one]) if isinstance(one, Sequence) else self._pixels(one)
        for name, text in views.texts.items():
            key = f"text/{name}"
            found[key] = self._changed(key, text, rng) if isinstance(text, str) else [self._changed(key, t, rng) for t in text]
        for name, number in views.numbers.items():
            found[f"number:{name}"] = torch.as_tensor(number)
        return found

    def _pixels(self, image: Any) -> Tensor:
        pixels = self.encoder.prepare_image(image)
        assert pixels is not None
        return pixels

    def _changed(self, name: str, text: str, rng: np.random.Generator) -> list[int]:
        limit = self.tokens.context_length
        ids = self.recipe.token_ids(name, self.ids_of(text), limit, self.tokens.pad_id, rng)
        if not 0 < len(ids) <= limit:
            raise ValueError(f"the recipe {self.recipe.name} made {len(ids)} token ids of {name}; 1 to {limit} are possible")
        return ids

    def collate(self, examples: Sequence[dict[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """``(inputs, masks, numbers)`` of a list of examples, padded together.

        Raises:
            ValueError: examples that do not have the same views.
        """
        names = list(examples[0])
        for example in examples:
            if list(example) != names:
                raise ValueError(f"the recipe {self.recipe.name} gave one pair the views {names} and another {list(example)}")
        inputs: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        numbers: dict[str, Tensor] = {}
        for name in names:
            values = [example[name] for example in examples]
            if name.startswith("number:"):
                numbers[name[len("number:") :]] = self._stacked(name, values)
            elif name.partition("/")[0] == "image":
                inputs["pixels" if name == "image" else name] = self._stacked(name, values)
            else:
                ids, words = self._texts(name, values)
                inputs["ids" if name == "text" else name] = ids
                masks[f"{name}_words"] = words
        return inputs, masks, numbers

    def _stacked(self, name: str, values: Sequence[Tensor]) -> Tensor:
        if len({value.shape for value in values}) > 1:
            shapes = sorted({tuple(value.shape) for value in values})
            raise ValueError(f"the recipe {self.recipe.name}: {name} has the shapes {shapes[0]} and {shapes[-1]} in one batch")
        return torch.stack(list(values))

    def _texts(self, name: str, values: Sequence[Any]) -> tuple[Tensor, Tensor]:
        several = isinstance(values[0][0], list)
        if several and len({len(value) for value in values}) > 1:
            raise ValueError(f"the recipe {self.recipe.name}: {name} has a varying number of texts in one batch")
        rows = [ids for value in values for ids in value] if several else list(values)
        ids, valid = pad_ids(rows, self.tokens.pad_id, length=self.length, left=self.encoder.tower.pad_left)
        words = self.words(ids, valid)
        if several:
            count = len(values[0])
            return ids.unflatten(0, (len(values), count)), words.unflatten(0, (len(values), count))
        return ids, words

    def words(self, ids: Tensor, valid: Tensor) -> Tensor:
        """``[B, T]`` bool: neither padding nor a start or end token; where nothing else is there, the last token."""
        words = valid.clone()
        if self.encoder.tower.pooling == "eos":  # ids run from the start token to the first end token
            last = valid.shape[1] - 1 - valid.flip(1).int().argmax(1)
            words[torch.arange(len(words)), valid.int().argmax(1)] = False
            words[torch.arange(len(words)), last] = False
        for special in self.starts | self.ends:
            words &= ids != special
        empty = (~words.any(1)).nonzero().flatten()
        words[empty, valid.shape[1] - 1 - valid[empty].flip(1).int().argmax(1)] = True
        return words


class Batches:
    """The batches of a training, in order, with reading ahead.

    Args:
        preparer: makes examples.
        rows: int64, the training rows of the pairs.
        batch_size: pairs contrasted together, over all processes.
        accumulate: batches a step.
        micro_batches: pieces of a process's share.
        seed: of the order.
        rank, world: this process, and how many there are.

    Raises:
        ValueError: fewer pairs than a step takes, or fewer pairs a process than it has micro-batches.
    """

    def __init__(
        self,
        preparer: Preparer,
        rows: Rows,
        *,
        batch_size: int,
        accumulate: int,
        micro_batches: int,
        seed: int,
        rank: int,
        world: int,
    ) -> None:
        self.preparer, self.rows, self.seed = preparer, rows, seed
        self.batch_size, self.accumulate, self.micro_batches = batch_size, accumulate, micro_batches
        self.rank, self.world = rank, world
        self._order: tuple[int, Rows] | None = None  # of the epoch asked for last
        step = batch_size * accumulate
        if len(rows) < step:
            times = f" x {accumulate} accumulated" if accumulate > 1 else ""
            raise ValueError(
                f"a step takes {step:,} pairs (batch_size {batch_size}{times}), and there are {len(rows):,} to train on; choose a "
                "smaller batch_size (--batch-size)"
            )
        self.per_epoch = len(rows) // step
        if batch_size // world < micro_batches:
            raise ValueError(
                f"batch_size {batch_size} over {world} process{'es' * (world > 1)} is too small for {micro_batches} "
                "micro-batches each"
            )

    def rows_of(self, step: int, part: int = 0) -> Rows:
        """All processes' pairs of one batch: an epoch is a permutation, its incomplete last step left out."""
        epoch, place = divmod(step, self.per_epoch)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng((self.seed, 1, epoch)).permutation(self.rows)
        order = self._order[1]
        begin = (place * self.accumulate + part) * self.batch_size
        return order[begin : begin + self.batch_size]

    def own(self, rows: Rows) -> Rows:
        """This process's part of them; together the parts of all processes are ``rows``, each once and in order."""
        edges = [round(k * len(rows) / self.world) for k in range(self.world + 1)]
        return rows[edges[self.rank] : edges[self.rank + 1]]

    def __call__(self, start: int, stop: int, workers: int | None = None) -> Iterator[list[Batch]]:
        """The batches of the steps from ``start`` on: a list of ``accumulate`` of them each."""
        plan = ((step, part, self.rows_of(step, part)) for step in range(start, stop) for part in range(self.accumulate))
        waiting: list[tuple[int, int, Rows]] = []

        def asked() -> Iterator[tuple[int, int]]:
            for step, part, rows in plan:
                waiting.append((step, part, rows))
                for row in self.own(rows):
                    yield step, int(row)

        ready = read_ahead(lambda item: self.preparer.example(*item), asked(), workers)
        found: list[Batch] = []
        examples: list[dict[str, Any]] = []
        for example in ready:
            examples.append(example)
            _, part, rows = waiting[0]
            if len(examples) == len(self.own(rows)):
                waiting.pop(0)
                found.append(self._batch(rows, examples))
                examples = []
                if part == self.accumulate - 1:
                    yield found
                    found = []

    def _batch(self, rows: Rows, examples: list[dict[str, Any]]) -> Batch:
        inputs, masks, numbers = self.preparer.collate(examples)
        micro = []
        for cut in np.array_split(np.arange(len(examples)), self.micro_batches):
            here = slice(int(cut[0]), int(cut[-1]) + 1)
            part = {name: tensor[here] for name, tensor in inputs.items()}
            part |= {f"mask:{name}": tensor[here] for name, tensor in masks.items()}
            part |= {f"number:{name}": tensor[here] for name, tensor in numbers.items()}
            micro.append(part)
        return Batch(rows, micro, masks, numbers)
