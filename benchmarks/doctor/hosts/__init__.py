"""Healthy models, each as some stranger would have written it: the twins of all planted faults."""
