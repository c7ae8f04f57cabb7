"""A drawn world with exact ground truth, so that "no X" is never a labelling error.

Images are drawn by this package; every caption, question and query follows from what was drawn. See
:func:`make_scenes`, :func:`render`, :func:`negation_data`, :func:`tower_captions`.
"""

from clipmend.data.scenes.build import exclusion_queries, make_scenes, negation_data, retrieval_captions
from clipmend.data.scenes.captions import SUBSETS, tower_captions
from clipmend.data.scenes.dense import dense_captions, minimal_pairs
from clipmend.data.scenes.draw import Scene, SceneObject, render, sample_scene
from clipmend.data.scenes.facts import scene_facts
from clipmend.data.scenes.questions import choice_questions
from clipmend.data.scenes.reading import negation_data_from_folder, read_scenes
from clipmend.data.scenes.tables import write_scenes
from clipmend.data.scenes.world import BACKGROUNDS, COLOURS, KINDS, RESERVED_KINDS, RESERVED_WORDINGS, SIZES, WORDINGS

__all__ = [
    "BACKGROUNDS",
    "COLOURS",
    "KINDS",
    "RESERVED_KINDS",
    "RESERVED_WORDINGS",
    "SIZES",
    "SUBSETS",
    "WORDINGS",
    "Scene",
    "SceneObject",
    "choice_questions",
    "dense_captions",
    "exclusion_queries",
    "make_scenes",
    "minimal_pairs",
    "negation_data",
    "negation_data_from_folder",
    "read_scenes",
    "render",
    "retrieval_captions",
    "sample_scene",
    "scene_facts",
    "tower_captions",
    "write_scenes",
]
