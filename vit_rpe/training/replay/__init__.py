"""A past step of a run, made again by the same trainer, and looked at."""
