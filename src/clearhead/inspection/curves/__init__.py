"""Trainings: curves, their pictures, reports and comparisons."""
