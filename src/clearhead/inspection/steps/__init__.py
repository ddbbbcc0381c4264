"""The table of a forward pass: every operation with its shape, by symbols that are measured."""
