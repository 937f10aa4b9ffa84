"""What a run leaves on disk: checkpoints, logs and measurements."""
