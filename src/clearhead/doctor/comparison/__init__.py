"""Two models that should compute the same: which weight is which, and the first module that differs."""
