"""The faults by name, what one sees of them, and what the record of a training says by itself. Imports no torch."""
