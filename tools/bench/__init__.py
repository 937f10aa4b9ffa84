"""Benchmarks: contestants take turns, and medians are compared within one run."""
