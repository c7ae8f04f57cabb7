"""Make the shipped table of class vectors again: ``python -m clipmend.backbones.photos.table``."""

from __future__ import annotations

from pathlib import Path

from clipmend.backbones.photos.classes import class_names, class_vectors

__all__ = ["write_table"]


def write_table(path: str | Path | None = None) -> Path:
    """Embed the shipped class names with all-MiniLM-L6-v2 (some seconds) and write vectors (float16) and centre (float32).

    Args:
        path: where to write (default: the package's own ``classes.safetensors``).
    """
    from safetensors.torch import save

    from clipmend.backbones.minilm import load_minilm
    from clipmend.backbones.text import TextOnlyEncoder

    encoder = TextOnlyEncoder(load_minilm(), name="all-MiniLM-L6-v2")
    vectors, centre = class_vectors(class_names(), lambda texts: encoder.encode_texts(texts, normalize=False))
    where = Path(path) if path is not None else Path(__file__).with_name("classes.safetensors")
    part = where.with_suffix(".part")
    part.write_bytes(save({"classes": vectors.half(), "centre": centre}))
    part.replace(where)
    return where


if __name__ == "__main__":
    print(f"wrote {write_table()}")
