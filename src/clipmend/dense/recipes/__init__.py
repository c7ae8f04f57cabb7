"""Recipes: what a fine-tuning minimises, one file each.

A recipe is a dataclass derived from :class:`~clipmend.dense.recipes.base.Recipe`, in a file of its own here, under ``@register``.
Nothing else changes: the trainer, the command line and the model card find it by its name.
"""

from importlib import import_module
from pkgutil import iter_modules

from clipmend.dense.recipes.base import RECIPES, Example, Joined, Moment, Recipe, Views, make_recipe, register

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["RECIPES", "Example", "Joined", "Moment", "Recipe", "Views", "make_recipe", "register"]
