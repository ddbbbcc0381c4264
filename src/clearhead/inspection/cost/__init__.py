"""What a model costs, on paper: parameters, operations and bytes. No torch."""
