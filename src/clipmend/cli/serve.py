"""``clipmend serve``: the search as a web page and as an HTTP service."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import typer

from clipmend.cli.encoders import MAX_PIXELS_HELP, PATCH_HELP, load_encoder, refuse_without_patch

__all__ = ["register"]

EPILOG = """Example:

clipmend serve pictures.index --patch photos

clipmend serve pictures.index --host 0.0.0.0 --token-file token.txt

clipmend serve qdrant:http://localhost:6333/pictures --images pictures/
"""


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="serve", epilog=EPILOG)(serve)


def serve(
    index: str = typer.Argument(..., metavar="INDEX", help="An index, or any other gallery that 'clipmend search' takes."),
    patch: str | None = typer.Option(None, "--patch", help=PATCH_HELP),
    strength: float = typer.Option(1.0, "--strength", min=0, max=3, help="How strongly the patch corrects, unless a request says."),
    gate: bool | None = typer.Option(
        None, "--gate/--no-gate", help="Mend only texts in which a word denies something (the default), or every text."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="Address to listen at; other machines can reach any but 127.0.0.1."),
    port: int = typer.Option(8765, "--port", min=0, max=65535, help="Port to listen at; 0 for any free one."),
    token_file: Path | None = typer.Option(
        None, "--token-file", help="File with the token that requests must carry; or the environment variable CLIPMEND_TOKEN."
    ),
    open_page: bool = typer.Option(False, "--open", help="Open the page in this machine's browser."),
    name: str | None = typer.Option(None, "--name", help="What the page calls the images; default: the index's name."),
    example: list[str] | None = typer.Option(None, "--example", help="A query that the page offers; may be given again."),
    images: Path | None = typer.Option(None, "--images", help="Folder of the images, for galleries that do not know it."),
    model: str | None = typer.Option(None, "--model", help="Where to load the gallery's encoder from, if not by its own name."),
    device: str | None = typer.Option(None, "--device", help="cpu, cuda, mps; default: the best that is there."),
    allow_host: list[str] | None = typer.Option(
        None,
        "--allow-host",
        help="Another name, without a port, by which requests may ask where there is no token; may be given again.",
    ),
    max_upload: float = typer.Option(32, "--max-upload", min=0.1, help="Megabytes of an uploaded image."),
    max_pixels: int = typer.Option(100_000_000, "--max-pixels", min=1, help=MAX_PIXELS_HELP.replace("; 0 for no limit", "")),
    concurrency: int = typer.Option(32, "--concurrency", min=1, help="Requests worked on at a time."),
    waiting: int = typer.Option(256, "--waiting", min=0, help="Requests that may wait; those beyond get status 429."),
    timeout: float = typer.Option(30, "--timeout", min=0.1, help="Seconds within which a request is answered, or gets status 503."),
    follow_links: bool = typer.Option(
        False, "--follow-links", help="Also show files that links inside the image folders lead to outside of them."
    ),
    reload: bool = typer.Option(
        True, "--reload/--no-reload", help="Go over to an index that 'clipmend index' has written anew, without a restart."
    ),
    log_queries: bool = typer.Option(False, "--log-queries", help="Write queries into the log."),
    quiet: bool = typer.Option(False, "--quiet", help="Log warnings and errors alone."),
) -> None:
    """Serve an index: a search page for browsers, /search and OpenAI-compatible /embeddings for programs."""
    import os

    refuse_without_patch(patch, strength=strength != 1, gate=gate is not None)
    try:
        from clipmend.service.server import bind, read_token, run
    except ImportError as error:
        raise ImportError(f"clipmend serve needs the extra 'serve' ({error}): pip install 'clipmend[serve]'") from None
    from clipmend.service.settings import Settings

    token = read_token(token_file) if token_file is not None else os.environ.get("CLIPMEND_TOKEN") or None
    own = [host.strip("[]")] if host not in ("0.0.0.0", "::", "[::]") else []
    settings = Settings(
        token=token,
        hosts=(*dict.fromkeys([*Settings.hosts, *own, *(allow_host or ())]),),
        examples=tuple(example or ()),
        name=name or Path(index).name.removesuffix(".index"),
        patch=patch or "",
        model=model,
        max_upload=round(max_upload * 1_000_000),
        max_pixels=max_pixels,
        concurrency=concurrency,
        waiting=waiting,
        timeout=timeout,
        follow_links=follow_links,
        log_queries=log_queries,
        reload=Settings.reload if reload else None,
    )
    with bind(host, port, token) as listening, ExitStack() as stack:  # before the model is loaded: a port in use is told at once
        import logging
        import webbrowser

        from rich.console import Console

        from clipmend.search.opening import open_gallery
        from clipmend.search.searcher import Searcher
        from clipmend.service.app import create_app
        from clipmend.service.core import NO_FILES, knows_files
        from clipmend.service.logs import json_log

        level = logging.WARNING if quiet else logging.INFO
        stack.enter_context(json_log(level))

        options: dict[str, Any] = {} if images is None else {"images": images}
        gallery = stack.enter_context(open_gallery(index, **options))
        if not (model or gallery.backbone):
            raise ValueError(f"{index} does not say which model made its vectors; name it with --model")
        plain, encoder = load_encoder(model or gallery.backbone, device, patch, strength, gate, index=Path(index))
        searcher = Searcher(gallery, plain, None if patch is None else encoder, files=False)
        address, found_port = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        url = f"http://{shown}:{found_port}/"
        console = Console(highlight=False, soft_wrap=True)  # standard error is the log's
        if not knows_files(gallery):
            Console(stderr=True, highlight=False, soft_wrap=True).print(f"warning: {NO_FILES}", style="yellow", markup=False)

        def ready() -> None:
            patched = "" if patch is None else f" with the patch {patch}"
            console.print(f"{len(gallery):,} images by {plain.name}{patched}: {url} (Ctrl+C ends it)", markup=False)
            if open_page:
                webbrowser.open(url)

        # uvicorn ends in order, then raises the interruption again, unless interruptions were ignored when the process began.
        with suppress(KeyboardInterrupt):
            run(create_app(searcher, settings, owned=True), listening, settings, level=level, ready=ready)
        console.print("ended", markup=False)
