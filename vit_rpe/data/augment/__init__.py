"""Augmentation of whole batches: normalizing and erasing, mixing."""
