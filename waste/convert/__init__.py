"""Making model files: containers, and synthetic models in both layouts."""
