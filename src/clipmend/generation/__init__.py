"""Text to image: does the mended embedding also draw what was asked, and leave out what was not?

The names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "SceneGenerator": "sampling",
    "Score": "score",
    "ScoreDifference": "score",
    "generation_prompts": "prompts",
    "load_generator": "sampling",
    "negation_score": "score",
    "score_difference": "score",
}

if TYPE_CHECKING:
    from clipmend.generation.prompts import generation_prompts
    from clipmend.generation.sampling import SceneGenerator, load_generator
    from clipmend.generation.score import Score, ScoreDifference, negation_score, score_difference

__all__ = [
    "SceneGenerator",
    "Score",
    "ScoreDifference",
    "generation_prompts",
    "load_generator",
    "negation_score",
    "score_difference",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
