"""Features at scale: image embeddings and text states of a data set, made once, on one process or on many machines.

:func:`make_features` makes them, :class:`Features` reads them; ``clipmend features`` on the command line.
"""

from clipmend.features.make import FeaturesReport, make_features
from clipmend.features.reading import Features

__all__ = ["Features", "FeaturesReport", "make_features"]
