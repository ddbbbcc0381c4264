"""A training loop, watched for some steps: its gradients, weights, modes and rates, and what its loss asks for."""
