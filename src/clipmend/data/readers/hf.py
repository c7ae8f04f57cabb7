"""Hugging Face ``datasets``: an object, a folder written by ``save_to_disk``, or a name on the hub (extra ``datasets``).

Images are taken as the encoded bytes they are stored as, not decoded by the library, so that a damaged one is named and counted
like any other instead of ending the loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from clipmend.data.readers.base import Log, OnError, Record, Source, missing_extra, register
from clipmend.data.readers.tabular import CAPTION_COLUMNS, IMAGE_COLUMNS, captions_of, choose_column, image_of

__all__ = ["read_hf"]


def _saved(path: Path) -> bool:
    return (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file()


@register("hf", "Hugging Face datasets: a folder of save_to_disk, or hf:NAME", _saved, order=5)
def read_hf(
    dataset: Any,
    *,
    split: str | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    config: str | None = None,
    image_root: str | Path | None = None,
    on_error: OnError = "raise",
) -> Source:
    """Stream a data set of the ``datasets`` library.

    Args:
        dataset: a ``Dataset``, ``IterableDataset``, or a dictionary of splits of them; a folder that ``save_to_disk`` wrote; or a
            name (or a folder of data files) as ``load_dataset`` takes it, which is then streamed, not downloaded whole.
        split: the split, where there are several.
        image_column: column with the image (an ``Image`` feature, bytes, or a path; default: the usual names).
        caption_column: column with the caption, or the list of captions.
        config: configuration of a named data set.
        image_root: folder that paths in ``image_column`` start from.
        on_error: ``"raise"`` or ``"skip"`` for rows that cannot be used.

    Raises:
        ImportError: the package ``datasets`` is not installed (the extra is named).
        FileNotFoundError: a saved folder lacks one of its files.
        ValueError: a folder that cannot be read, no such split or column; (while reading) naming the row: a cell missing or of
            another type.
    """
    library = _library()
    name = dataset if isinstance(dataset, str) else type(dataset).__name__
    if isinstance(dataset, (str, Path)):
        name = Path(dataset).name
        dataset = _opened(library, str(dataset), config, split)
    if isinstance(dataset, dict):
        dataset = _split(dataset, split, str(name))
    if not isinstance(dataset, (library.Dataset, library.IterableDataset)):
        raise ValueError(f"a data set is expected, a folder of one or its name, not {type(dataset).__name__}")
    columns = dataset.column_names
    if columns is None:  # a stream whose columns are not declared: the first row tells
        first = next(iter(dataset), None)
        if first is None:
            raise ValueError(f"{name}: holds no rows")
        columns = list(first)
    image = choose_column(str(name), columns, image_column, IMAGE_COLUMNS, "image")
    caption = choose_column(str(name), columns, caption_column, CAPTION_COLUMNS, "caption")
    if dataset.features is not None and isinstance(dataset.features[image], library.Image):
        dataset = dataset.cast_column(image, library.Image(decode=False))
    chosen = dataset.select_columns([image, caption])

    def records(log: Log) -> Iterator[Record]:
        number = -1
        for number, row in enumerate(_rows(chosen, str(name), log)):
            where = f"{name}: row {number}"
            try:
                content: bytes | Image.Image | None
                if isinstance(row[image], Image.Image):
                    label, content = where, row[image]
                else:
                    label, content = image_of(row[image], where, image)
                texts = captions_of(row[caption], where, caption)
            except ValueError as error:
                log.bad(error)
                continue
            yield Record(label, texts, where=where, content=content)
        if number < 0 and not log.skipped:
            raise ValueError(f"{name}: holds no rows")

    return Source(str(name), records, image_root=image_root, on_error=on_error)


def _opened(library: Any, dataset: str, config: str | None, split: str | None) -> Any:
    """What a folder or a name stands for; the library's own errors of broken folders say neither which nor what they are."""
    saved = _saved(Path(dataset))
    try:
        if saved:
            return library.load_from_disk(dataset)
        return library.load_dataset(dataset, config, split=split, streaming=True)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{dataset}: {error}") from error
    except Exception as error:  # Arrow's, a JSON decoder's, the library's
        if not Path(dataset).exists():  # a name on the hub: told as it is
            raise
        what = "a folder that save_to_disk wrote, and damaged" if saved else "no data set that the package datasets can read"
        raise ValueError(f"{dataset}: {what}: {' '.join(str(error).split())}") from error


def _rows(dataset: Any, name: str, log: Log) -> Iterator[Any]:
    """The rows; where the library cannot go on, the log is told and the rest is lost."""
    count, rows = 0, iter(dataset)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except Exception as error:  # the library's own, Arrow's, a decoder's, the network's
            log.bad(ValueError(f"{name}: broken after row {count - 1}: {error}" if count else f"{name}: cannot be read: {error}"))
            return
        count += 1
        yield row


def _library() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_extra("datasets", "datasets", "reading Hugging Face data sets") from error
    return datasets


def _split(splits: dict[str, Any], split: str | None, name: str) -> Any:
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        asked = f"no split {split!r}" if split is not None else "several splits"
        raise ValueError(f"{name}: {asked}; choose one of {', '.join(splits)} as split (--split)")
    return splits[split]
