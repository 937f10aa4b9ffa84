"""Studies: variants of a run with several seeds, and what they say with error bars."""
