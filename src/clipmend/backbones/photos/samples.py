"""Fourteen real photographs that two packages of the demo install: something to search without a download."""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["demo_photos"]

# what it shows: the package that brings it, and the file within
_PHOTOS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "brick": ("skimage", "data/brick.png"),
    "camera": ("skimage", "data/camera.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "coins": ("skimage", "data/coins.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "grass": ("skimage", "data/grass.png"),
    "gravel": ("skimage", "data/gravel.png"),
    "hubble": ("skimage", "data/hubble_deep_field.jpg"),
    "moon": ("skimage", "data/moon.png"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
}
_DISTRIBUTIONS = {"skimage": "scikit-image", "sklearn": "scikit-learn"}


def demo_photos() -> dict[str, Path]:
    """The photographs by what they show, in alphabetical order: a cat, a cup of coffee, a rocket, a temple, ...

    The packages that bring them are not imported.

    Raises:
        ImportError: a package is not installed.
        FileNotFoundError: it is, without this file.
    """
    photos = {}
    for name, (package, file) in _PHOTOS.items():
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            raise ImportError(
                f"the demo's photographs come with {_DISTRIBUTIONS[package]}, which is missing; pip install 'clipmend[demo]'"
            )
        path = Path(spec.origin).parent / file
        if not path.is_file():
            raise FileNotFoundError(f"{_DISTRIBUTIONS[package]} is installed without {path}; reinstall it to get its photographs")
        photos[name] = path
    return photos
