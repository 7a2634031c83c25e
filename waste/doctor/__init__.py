"""What this machine can do for the engine, and which preset makes use of it."""
