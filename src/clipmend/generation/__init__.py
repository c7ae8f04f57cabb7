"""Text to image: does the mended embedding also draw what was asked, and leave out what was not?

The names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "DetectorJudge": "judges",
    "GenerationReport": "benchmark_report",
    "QuestionJudge": "judges",
    "SceneGenerator": "sampling",
    "Score": "score",
    "ScoreDifference": "score",
    "generation_prompts": "prompts",
    "load_generator": "sampling",
    "load_image_judge": "judges",
    "load_pipeline": "benchmark",
    "negation_score": "score",
    "noun_prompts": "benchmark_prompts",
    "read_prompts": "benchmark_prompts",
    "run_generation": "benchmark",
    "score_difference": "score",
}

if TYPE_CHECKING:
    from clipmend.generation.benchmark import load_pipeline, run_generation
    from clipmend.generation.benchmark_prompts import noun_prompts, read_prompts
    from clipmend.generation.benchmark_report import GenerationReport
    from clipmend.generation.judges import DetectorJudge, QuestionJudge, load_image_judge
    from clipmend.generation.prompts import generation_prompts
    from clipmend.generation.sampling import SceneGenerator, load_generator
    from clipmend.generation.score import Score, ScoreDifference, negation_score, score_difference

__all__ = [
    "DetectorJudge",
    "GenerationReport",
    "QuestionJudge",
    "SceneGenerator",
    "Score",
    "ScoreDifference",
    "generation_prompts",
    "load_generator",
    "load_image_judge",
    "load_pipeline",
    "negation_score",
    "noun_prompts",
    "read_prompts",
    "run_generation",
    "score_difference",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
