"""The parts one by one: their arithmetic, their weights and what flows through them."""
