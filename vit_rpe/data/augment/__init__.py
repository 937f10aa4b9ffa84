"""What happens to whole batches: normalizing and erasing, mixing."""
