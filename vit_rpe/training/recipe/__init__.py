"""The recipe: every key of a run, its type, default and meaning, and the YAML it is read from."""
