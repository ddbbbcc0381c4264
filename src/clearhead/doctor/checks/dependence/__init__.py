"""Which input may move which output, on every path."""
