"""Measure: multiple choice, retrieval, exclusion and presence; intervals, paired differences, rivals.

The names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "ChoiceAccumulator": "accumulate",
    "ExclusionAccumulator": "accumulate",
    "RankAccumulator": "accumulate",
    "NegationDirection": "rivals",
    "QueryArithmetic": "rivals",
    "Rival": "rivals",
    "RuleProjection": "rivals",
    "gold_captions": "rivals",
    "rule_form": "rivals",
    "ChoiceItem": "choice",
    "ChoiceResult": "choice",
    "choice_items": "choice",
    "evaluate_choice": "choice",
    "read_choice": "choice",
    "ExclusionQuery": "exclusion",
    "ExclusionResult": "exclusion",
    "PresenceResult": "exclusion",
    "auroc": "areas",
    "evaluate_exclusion": "exclusion",
    "presence_auroc": "exclusion",
    "read_exclusion": "exclusion",
    "bootstrap_mean": "intervals",
    "paired_difference": "intervals",
    "wilson": "intervals",
    "Presence": "presence",
    "read_presence": "presence",
    "oracle_recall": "ranking",
    "ranks_both_ways": "ranking",
    "rerank_both_ways": "ranking",
    "Comparison": "results",
    "Measure": "results",
    "Result": "results",
    "compare": "results",
    "side_by_side": "results",
    "RetrievalData": "retrieval",
    "RetrievalResult": "retrieval",
    "evaluate_retrieval": "retrieval",
    "read_retrieval": "retrieval",
    "Evaluation": "suite",
    "EvaluationData": "suite",
    "evaluate": "suite",
    "evaluate_rivals": "rivals.compare",
    "Judge": "judged",
    "OracleJudge": "judged",
    "RespectResult": "judged",
    "evaluate_respect": "judged",
    "load_judge": "judged",
    "PairItem": "pairs",
    "PairsResult": "pairs",
    "evaluate_pairs": "pairs",
    "read_image_pairs": "pairs",
    "LabelledImages": "zeroshot",
    "ZeroshotResult": "zeroshot",
    "evaluate_zeroshot": "zeroshot",
    "read_labelled": "zeroshot",
    "DenseResult": "dense",
    "Overlap": "dense_overlap",
    "dense_retrieval": "dense",
    "evaluate_dense": "dense",
    "find_overlap": "dense_overlap",
    "PositionLens": "position_lens",
    "plot_positions": "position_lens",
    "position_changes": "caption_changes",
    "evaluate_positions": "position_lens",
    "read_folder": "suite",
    "read_pairs": "suite",
}

if TYPE_CHECKING:
    from clipmend.evaluation.accumulate import ChoiceAccumulator, ExclusionAccumulator, RankAccumulator
    from clipmend.evaluation.areas import auroc
    from clipmend.evaluation.caption_changes import position_changes
    from clipmend.evaluation.choice import ChoiceItem, ChoiceResult, choice_items, evaluate_choice, read_choice
    from clipmend.evaluation.dense import DenseResult, dense_retrieval, evaluate_dense
    from clipmend.evaluation.dense_overlap import Overlap, find_overlap
    from clipmend.evaluation.exclusion import (
        ExclusionQuery,
        ExclusionResult,
        PresenceResult,
        evaluate_exclusion,
        presence_auroc,
        read_exclusion,
    )
    from clipmend.evaluation.intervals import bootstrap_mean, paired_difference, wilson
    from clipmend.evaluation.judged import Judge, OracleJudge, RespectResult, evaluate_respect, load_judge
    from clipmend.evaluation.pairs import PairItem, PairsResult, evaluate_pairs, read_image_pairs
    from clipmend.evaluation.position_lens import PositionLens, evaluate_positions, plot_positions
    from clipmend.evaluation.presence import Presence, read_presence
    from clipmend.evaluation.ranking import oracle_recall, ranks_both_ways, rerank_both_ways
    from clipmend.evaluation.results import Comparison, Measure, Result, compare, side_by_side
    from clipmend.evaluation.retrieval import RetrievalData, RetrievalResult, evaluate_retrieval, read_retrieval
    from clipmend.evaluation.rivals import NegationDirection, QueryArithmetic, Rival, RuleProjection, gold_captions, rule_form
    from clipmend.evaluation.rivals.compare import evaluate_rivals
    from clipmend.evaluation.suite import Evaluation, EvaluationData, evaluate, read_folder, read_pairs
    from clipmend.evaluation.zeroshot import LabelledImages, ZeroshotResult, evaluate_zeroshot, read_labelled

__all__ = [
    "ChoiceAccumulator",
    "ChoiceItem",
    "ChoiceResult",
    "Comparison",
    "DenseResult",
    "Evaluation",
    "EvaluationData",
    "ExclusionAccumulator",
    "ExclusionQuery",
    "ExclusionResult",
    "Judge",
    "LabelledImages",
    "Measure",
    "NegationDirection",
    "OracleJudge",
    "Overlap",
    "PairItem",
    "PairsResult",
    "PositionLens",
    "Presence",
    "PresenceResult",
    "QueryArithmetic",
    "RankAccumulator",
    "RespectResult",
    "Result",
    "RetrievalData",
    "RetrievalResult",
    "Rival",
    "RuleProjection",
    "ZeroshotResult",
    "auroc",
    "bootstrap_mean",
    "choice_items",
    "compare",
    "dense_retrieval",
    "evaluate",
    "evaluate_choice",
    "evaluate_dense",
    "evaluate_exclusion",
    "evaluate_pairs",
    "evaluate_positions",
    "evaluate_respect",
    "evaluate_retrieval",
    "evaluate_rivals",
    "evaluate_zeroshot",
    "find_overlap",
    "gold_captions",
    "load_judge",
    "oracle_recall",
    "paired_difference",
    "plot_positions",
    "position_changes",
    "presence_auroc",
    "ranks_both_ways",
    "read_choice",
    "read_exclusion",
    "read_folder",
    "read_image_pairs",
    "read_labelled",
    "read_pairs",
    "read_presence",
    "read_retrieval",
    "rerank_both_ways",
    "rule_form",
    "side_by_side",
    "wilson",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
