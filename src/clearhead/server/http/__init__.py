"""What a server of ours does before and after its routes: limits, errors, streams, and who may ask."""

__all__: list[str] = []
