"""What a run leaves on disk: configuration, metrics, checkpoints, the model, plots."""
