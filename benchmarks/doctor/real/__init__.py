"""Replays of published bugs: `bugs.toml` says what each is, and `real_bugs.py` gives them to the doctor."""
