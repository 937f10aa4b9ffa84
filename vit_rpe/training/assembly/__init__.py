"""From a recipe to a trainer: data, model, and a checkpoint to resume from."""
