"""Exhibits: what a run keeps to be looked at, and needs for nothing else."""
