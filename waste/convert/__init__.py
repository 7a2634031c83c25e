"""Making model files: synthetic checkpoints in the published layout."""
