"""``clipmend copy``: image vectors from one store into another."""

from __future__ import annotations

from pathlib import Path

import typer

__all__ = ["SOURCE_HELP", "register"]

SOURCE_HELP = (
    "An index of 'clipmend index', a folder of clip-retrieval or of 'clipmend features', NAME.npy, NAME.parquet, "
    "qdrant:http://HOST:6333/COLLECTION or qdrant:FOLDER/COLLECTION."
)

EPILOG = """Example:

clipmend copy pictures.index qdrant:http://localhost:6333/pictures

clipmend copy embeddings/ pictures.index --model openai/clip-vit-base-patch32 --images photos/

clipmend copy work/ qdrant:http://qdrant:6333/pictures --shards 6 --replicas 2
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="copy", epilog=EPILOG)(copy)


def copy(
    source: str = typer.Argument(..., metavar="SOURCE", help=SOURCE_HELP),
    target: str = typer.Argument(..., metavar="TARGET", help="An index (a folder) or qdrant:...; made where it is not there."),
    model: str | None = typer.Option(None, "--model", help="Name of the encoder that made the vectors, where SOURCE does not say."),
    images: Path | None = typer.Option(None, "--images", help="Folder of the images, where SOURCE is not an index."),
    skip_bad: bool = typer.Option(False, "--skip-bad", help="Leave out rows that are no vectors (NaN, zero); arrays and tables."),
    vector_column: str | None = typer.Option(None, "--vector-column", help="Column of a Parquet file that has the vectors."),
    id_offset: int = typer.Option(0, "--id-offset", min=0, help="Add this to every id: for a second source whose rows begin at 0."),
    replace: bool = typer.Option(False, "--replace", help="Let images take the place of others that have their ids."),
    batch: int = typer.Option(4096, "--batch", min=1, help="Images at a time."),
    sample: int = typer.Option(1000, "--sample", min=0, help="Vectors that are read back and compared at the end."),
    shards: int | None = typer.Option(None, "--shards", min=1, help="Shards of a new Qdrant collection; default: Qdrant's own."),
    replicas: int | None = typer.Option(None, "--replicas", min=1, help="Copies of each shard on a Qdrant cluster."),
) -> None:
    """Copy image vectors, with ids, paths and fields, from any store into an index or into Qdrant.

    Run it again after it was cut short, or after the source grew: what is there already is passed over. At the end every image
    must have arrived, and a sample of vectors is compared.
    """
    from rich.console import Console

    from clipmend.search.copying import copy_gallery
    from clipmend.search.gallery import Gallery, WritableGallery
    from clipmend.search.opening import create_gallery, is_there, open_gallery

    given = {"images": images, "skip_bad": skip_bad or None, "vector_column": vector_column}
    options = {name: value for name, value in given.items() if value is not None}
    cluster = {name: value for name, value in (("shard_number", shards), ("replication_factor", replicas)) if value is not None}
    if cluster and not target.startswith("qdrant:"):
        raise ValueError("--shards and --replicas are for Qdrant")
    if target.rstrip("/") == source.rstrip("/"):
        raise ValueError("source and target are the same")
    if not target.startswith("qdrant:") and Path(target).suffix.lower() in (".npy", ".parquet"):
        raise ValueError(f"{target}: a copy goes into an index (a folder) or into Qdrant, not into a file")
    try:
        opened = open_gallery(source, model=model, **options)
    except TypeError as error:
        raise ValueError(f"{source}: {error}") from error
    with opened:
        if is_there(target):
            if cluster:
                raise ValueError(f"{target} is there already; its shards and replicas are set when it is made")
            made: Gallery = open_gallery(target)
        else:
            made = create_gallery(
                target, embed_dim=opened.embed_dim, backbone=opened.backbone, image_digest=opened.image_digest,
                fields=opened.fields, **cluster,
            )  # fmt: skip
        with made:
            if not isinstance(made, WritableGallery):
                raise ValueError(f"{target} cannot be added to: a copy goes into an index or into Qdrant")
            report = copy_gallery(opened, made, id_offset=id_offset, replace=replace, batch=batch, sample=sample, progress=True)
    Console(highlight=False, soft_wrap=True).print(f"{target}: {report}", markup=False)
