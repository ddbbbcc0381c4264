"""What each head does, and the loss without it."""
