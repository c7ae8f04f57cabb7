"""A gallery of drawn scenes in folders, with dates, and the real service over it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from clipmend.search.searcher import Searcher
    from clipmend.service import Settings

SCENES, SIZE, SEED = 240, 224, 7


def draw(folder: Path) -> dict[str, frozenset[str]]:
    """Draw scenes into one folder a background, three days apart from January 2024 on.

    Returns:
        the kinds of things that each image shows, by its path in the folder.
    """
    from clipmend.data.scenes.build import make_scenes
    from clipmend.data.scenes.draw import render

    shown = {}
    for number, scene in enumerate(make_scenes(SCENES, SEED, "train")):
        kinds = frozenset(thing.kind for thing in scene.objects)
        path = folder / scene.background / f"{'-'.join(sorted(kinds))}-{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        render(scene, SIZE).save(path)
        taken = (datetime(2024, 1, 1, 12) + timedelta(days=3 * number)).timestamp()
        os.utime(path, (taken, taken))
        shown[str(path.relative_to(folder))] = kinds
    return shown


@contextlib.contextmanager
def served(index: Path, *, patch: str | None = "scenes", token: str | None = None) -> Iterator[str]:
    """The service over an index, in a thread of this process; gives its address."""
    import clipmend
    from clipmend.search.opening import open_gallery
    from clipmend.search.searcher import Searcher
    from clipmend.service import Settings

    encoder = clipmend.load("scenes")
    mended = clipmend.PeakPatch.from_pretrained(patch).apply(encoder) if patch else None
    searcher = Searcher(open_gallery(str(index)), encoder, mended, files=False)
    examples = ("a picture with no cat", "a cat but no boat", '"a beach" + 0.5 "a boat" - "a cat"')
    with serving(searcher, Settings(patch=patch or "", token=token, examples=examples)) as address:
        yield address


@contextlib.contextmanager
def serving(searcher: Searcher, settings: Settings) -> Iterator[str]:
    """The service over a searcher, in a thread of this process; gives its address."""
    import uvicorn

    from clipmend.service import create_app
    from clipmend.service.server import bind

    app = create_app(searcher, settings)
    listening = bind("127.0.0.1", 0, settings.token)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    end = time.monotonic() + 60
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise RuntimeError("the service did not start")
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
