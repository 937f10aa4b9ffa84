"""The record of a run: checkpoints, logs, measurements, and how to find them again."""
