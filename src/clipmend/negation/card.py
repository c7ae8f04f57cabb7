"""The model card of a patch: what it is, how to use it, what was measured, what it cannot do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipmend.negation.patch import PeakPatch

__all__ = ["model_card"]

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")


def model_card(patch: PeakPatch) -> str:
    """Markdown with the metadata block that the hub reads."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters["cell"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
    environment.filters["quoted"] = lambda text: json.dumps(str(text), ensure_ascii=False)  # as YAML and as Python
    template = environment.from_string(files("clipmend.negation").joinpath("card.md.j2").read_text("utf-8"))
    config = patch.config
    return template.render(
        patch=patch,
        config=config,
        base_model=patch.backbone if _HUB_ID.fullmatch(patch.backbone) else None,
        metrics=list(_rows(patch.metrics)),
        ecn_parameters=sum(p.numel() for p in patch.ecn.parameters()),
        scn_parameters=None if patch.scn is None else sum(p.numel() for p in patch.scn.parameters()),
    )


def _rows(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Numbers and texts of a nested mapping, under joined names; lists (curves) stay in the config file."""
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _rows(value, f"{prefix}{name} / ")
        elif isinstance(value, float):
            yield f"{prefix}{name}", f"{value:.4g}"
        elif isinstance(value, int | str):
            yield f"{prefix}{name}", str(value)
