"""Lines to paste beside a model that nobody could call: a person changes one of them, and the doctor calls the rest."""

from torch import nn

ADAPTER = """
class Adapted(torch.nn.Module):
    def __init__(self): super().__init__(); self.model = build()
    def forward(self, {reads}):  # {shapes}
        return self.model({reads})  # change this line: make of them what it reads, and return {returns}
def adapted(): return Adapted()"""

FORMS = {  # of what it reads, and of what it is to return
    "ids": ("(B, T) token ids; a second parameter 'source' (B, S) where there is one", "logits (B, T, V)"),
    "pictures": ("(B, channels, height, width) as its convolutions read them", "one output for each, (B, V)"),
    "numbers": ("(B, T, width) as its first layer reads them", "outputs (B, T, V), or one for each row, (B, V)"),
}


def adapter_for(model: nn.Module) -> str:
    """An adapter that takes what the model's layers read: token ids where it embeds any, else pictures or numbers."""
    kinds = {type(module) for module in model.modules()}
    if any(issubclass(kind, nn.Embedding | nn.EmbeddingBag) for kind in kinds) or not _weighted(model):
        reads = "ids"
    else:
        reads = "pictures" if any(issubclass(kind, nn.Conv2d | nn.Conv3d) for kind in kinds) else "numbers"
    shapes, returns = FORMS[reads]
    return ADAPTER.format(reads=reads, shapes=shapes, returns=returns)


def _weighted(model: nn.Module) -> bool:
    readers = nn.Linear | nn.modules.conv._ConvNd | nn.RNNBase
    return any(isinstance(module, readers) for module in model.modules())
