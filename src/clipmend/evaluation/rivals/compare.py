"""The rivals on the same tests as everything else, each at the strengths that are best on a validation split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from clipmend.backbones.base import DualEncoder
from clipmend.data.records import Caption
from clipmend.evaluation.areas import macro
from clipmend.evaluation.embed import ImageEmbeddings
from clipmend.evaluation.exclusion import evaluate_exclusion
from clipmend.evaluation.retrieval import evaluate_retrieval
from clipmend.evaluation.rivals.arithmetic import QueryArithmetic
from clipmend.evaluation.rivals.base import Forms, Rival, Tuned, gold_captions
from clipmend.evaluation.rivals.direction import NegationDirection
from clipmend.evaluation.rivals.parser import rule_form
from clipmend.evaluation.rivals.projection import RuleProjection
from clipmend.evaluation.suite import Evaluation, EvaluationData, embed_all, evaluate, read_folder

__all__ = ["Parse", "evaluate_rivals", "make_rivals", "tune_for"]

Parse = Literal["gold", "rules"]


def make_rivals(
    encoder: DualEncoder, forms: Forms, pairs: Sequence[tuple[str, str]] = (), names: Sequence[str] | None = None
) -> list[Rival]:
    """Rivals over one backbone.

    Args:
        encoder: the backbone.
        forms: text to logical form.
        pairs: ``(affirmative, negated)`` training texts for the direction.
        names: some of ``arithmetic, projection, direction`` (default: all; the direction only where there are pairs).

    Raises:
        ValueError: an unknown name, or ``direction`` without pairs.
    """
    wanted = list(names) if names is not None else ["arithmetic", "projection", *(["direction"] if pairs else [])]
    made: list[Rival] = []
    for name in wanted:
        if name == "arithmetic":
            made.append(QueryArithmetic(encoder, forms))
        elif name == "projection":
            made.append(RuleProjection(encoder, forms))
        elif name == "direction":
            moved = NegationDirection.learn(encoder, pairs, forms)
            made += [moved, NegationDirection(encoder, forms, moved.direction, mode="project")]
        else:
            raise ValueError(f"there is no rival {name!r}; choose among arithmetic, projection, direction")
    for rival in made[1:]:
        rival.share(made[0])
    return made


def evaluate_rivals(
    encoder: DualEncoder,
    data: str | Path | EvaluationData,
    validation: str | Path | EvaluationData,
    pairs: Sequence[tuple[str, str]] = (),
    *,
    parse: Parse = "gold",
    tasks: Iterable[str] | None = None,
    image_embeddings: ImageEmbeddings | None = None,
    validation_embeddings: ImageEmbeddings | None = None,
    **options: Any,
) -> dict[str, Evaluation]:
    """The rivals on the same tests, each, task by task, at the strengths that are best on the validation split.

    Tuning per task favours the rivals: a user would have to live with one setting.

    Args:
        encoder: the backbone.
        data: the tests.
        validation: tables to tune on: the same tasks, other images. A task that it lacks is tuned on its multiple choice.
        pairs: ``(affirmative, negated)`` training texts for the negation direction; without them that rival is left out.
        parse: where the form of a text comes from: ``"gold"``, the tables' own parse, which no user has, or ``"rules"``, the rule
            parser (see :mod:`clipmend.evaluation.rivals.parser`), for tuning and test alike.
        tasks: as for :func:`evaluate`.
        image_embeddings: of the tests, as for :func:`evaluate`.
        validation_embeddings: of the validation split, likewise.
        options: passed to :func:`evaluate`.

    Returns:
        Name of the rival to its results; each result's ``pretrained`` names the strengths.

    Raises:
        ValueError: another ``parse``, or a task that cannot be tuned.
    """
    if parse not in ("gold", "rules"):
        raise ValueError(f"parse is 'gold' or 'rules', not {parse!r}")
    tests = data if isinstance(data, EvaluationData) else read_folder(data)
    tuning = validation if isinstance(validation, EvaluationData) else read_folder(validation)
    vectors = embed_all(encoder, tests, image_embeddings)
    tuning_vectors = embed_all(encoder, tuning, validation_embeddings)
    forms: Forms = rule_form if parse == "rules" else {**_gold(tuning), **_gold(tests)}
    wanted = list(tasks) if tasks is not None else tests.tasks()
    found: dict[str, Evaluation] = {}
    for rival in make_rivals(encoder, forms, pairs):
        evaluation = Evaluation(model=f"{encoder.name} + {rival.label}")
        for task in wanted:
            # Plain captions deny nothing, unless the rule parser errs: then they must bear what it does to them.
            plain = task in ("retrieval", "presence")
            tuned = None if plain and (parse == "gold" or not tuning.choice) else tune_for(rival, task, tuning, tuning_vectors)
            part = evaluate(
                rival if tuned is None else tuned.rival,
                tests,
                tasks=[task],
                image_embeddings=vectors,
                model=evaluation.model,
                pretrained="" if tuned is None else tuned.rival.setting,
                **options,
            )
            evaluation.results.update(part.results)
        found[rival.label] = evaluation
    return found


def _gold(data: EvaluationData) -> dict[str, Caption]:
    tables = [table for table in (data.retrieval, data.negated_retrieval) if table is not None]
    return gold_captions(data.choice, data.exclusion, *tables)


def tune_for(rival: Rival, task: str, tuning: EvaluationData, vectors: Mapping[str, Tensor]) -> Tuned[Rival]:
    """The strengths that do best at ``task`` on the validation tables, at their multiple choice where they lack the task.

    Raises:
        ValueError: the tables have neither the task nor multiple choice.
    """
    if task == "exclusion" and tuning.exclusion and tuning.presence is not None:
        queries, presence = tuning.exclusion, tuning.presence

        def exclusion(candidate: Rival) -> float:
            result = evaluate_exclusion(candidate, queries, presence, image_embeddings=vectors)
            return float(macro(result.values, result.kinds))

        return rival.tune(exclusion)
    if task == "negated_retrieval" and tuning.negated_retrieval is not None:
        captions = tuning.negated_retrieval

        def recall_at_5(candidate: Rival) -> float:
            return float((evaluate_retrieval(candidate, captions, image_embeddings=vectors).text_ranks <= 5).mean())

        return rival.tune(recall_at_5)
    if not tuning.choice:
        raise ValueError(f"{tuning.name}: no table to tune {rival.label} for {task} on")
    return rival.tune(tuning.choice, image_embeddings=vectors)
