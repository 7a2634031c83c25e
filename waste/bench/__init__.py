"""Measuring a model on this machine: how many tokens a second, and where the time of one goes."""
