"""Padding must not matter, in whatever way a model learns of it."""
