"""One file per probe: each measures one thing exactly, and knows neither ids of faults nor sentences."""
