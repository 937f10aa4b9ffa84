"""Figures: masks, graph masks and clips as PNG files."""
