"""Decoding step by step, and a model's own `generate`."""
