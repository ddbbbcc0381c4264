"""Sentence pairs: what a person may give, what is wrong with it, and how it becomes batches for a translator."""
