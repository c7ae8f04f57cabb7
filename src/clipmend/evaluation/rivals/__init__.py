"""Rivals: other ways to answer "no", without training, behind the same interface and under the same tests.

Each is one small class in a file of its own. To add one, derive from :class:`~clipmend.evaluation.rivals.base.Rival`, say which
texts it needs and how their embeddings are put together, and name it in :data:`RIVALS`.
"""

from clipmend.evaluation.rivals.arithmetic import QueryArithmetic
from clipmend.evaluation.rivals.base import Form, Forms, Rival, Tuned, gold_captions
from clipmend.evaluation.rivals.direction import NegationDirection
from clipmend.evaluation.rivals.parser import Parsed, parse, rule_form
from clipmend.evaluation.rivals.projection import RuleProjection

__all__ = [
    "RIVALS",
    "Form",
    "Forms",
    "NegationDirection",
    "Parsed",
    "QueryArithmetic",
    "Rival",
    "RuleProjection",
    "Tuned",
    "gold_captions",
    "parse",
    "rule_form",
]

RIVALS: dict[str, type[Rival]] = {
    "arithmetic": QueryArithmetic,
    "projection": RuleProjection,
    "direction": NegationDirection,
}
"""Rivals by the name that ``clipmend benchmark negbench --rivals`` takes."""
