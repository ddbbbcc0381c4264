"""The encoder-only Transformer: every token sees every other, and masked ones are filled in."""

import torch
import torch.nn.functional as F
from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.models.assembly import make_embedding, make_positions, make_stack, make_unembedding
from clearhead.models.initialisation import initialise
from clearhead.models.language_model import LanguageModel
from clearhead.parts import attention_mask, make_dropout, positions_of


class EncoderLM(LanguageModel):
    """Embedding, positions, a stack that looks both ways, a head (Devlin et al. 2019, arXiv 1810.04805)."""

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # torch draws at construction; what counts is drawn below
            self.embedding = make_embedding(config, config.vocab_size)
            self.positions = make_positions(config)
            self.dropout = make_dropout(config.dropout)
            self.stack = make_stack(config)
            self.unembedding = make_unembedding(config)
        initialise(self, config, seed)

    def hidden(self, ids: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The last layer's output, (B, T) -> (B, T, D); arguments as in `forward`."""
        place = positions_of(ids, self.config.pad_id) if positions is None else positions
        x = self.dropout(self.positions.add(self.embedding(ids), place))  # (B, T, D)
        return self.stack(  # type: ignore[no-any-return]
            x,
            mask=attention_mask(place, place, causal=False, documents=documents, device=ids.device),
            rotate=self.positions.rotate(place, ids.device),
            bias=self.positions.bias(place, place, ids.device),
        )

    def head(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, (self.unembedding or self.embedding).weight)

    def forward(self, ids: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Logits for the token that belongs at each place, (B, T) -> (B, T, V).

        Args:
            ids: token ids; rows may be filled up with the config's `pad_id` on either side.
            positions: (B, T) where each token stands, -1 for padding, in place of what `pad_id` says.
            documents: (B, T) number of the document of each token: no attention from one to another.
        """
        return self.head(self.hidden(ids, positions=positions, documents=documents))
