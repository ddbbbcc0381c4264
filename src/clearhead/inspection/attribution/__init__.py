"""Which tokens, heads and feed-forwards a logit comes from."""
