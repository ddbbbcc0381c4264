"""What a model asks of itself, and what it learns from that."""
