"""The bundled ``"scenes"`` backbone: a locked, real text encoder and a small image tower trained on drawn scenes.

Like CLIP it has seen captions as the web writes them, and like CLIP it fails at "no". It is for demonstration, tests and study.
"""

from __future__ import annotations

from clipmend.backbones.scenes.encoder import ScenesEncoder, load_scenes
from clipmend.backbones.scenes.model import ImageTower, ImageTowerConfig

__all__ = ["ImageTower", "ImageTowerConfig", "ScenesEncoder", "load_scenes"]
