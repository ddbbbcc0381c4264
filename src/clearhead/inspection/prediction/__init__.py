"""What a model expects next, position by position and layer by layer."""
