"""An encoder, mended or not, as the embedding class of another library: each module here needs that one, and nothing else does."""
