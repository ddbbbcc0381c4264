"""The encoder-only Transformer: bidirectional attention, trained to predict masked tokens."""

import torch
from torch import Tensor, nn

from clearhead.config import ModelConfig
from clearhead.models.stack_lm import StackLM
from clearhead.parts import attention_mask, positions_of
from clearhead.parts.masks import Positions


class EncoderLM(StackLM):
    """Embedding, positions, a bidirectional stack, a head (Devlin et al. 2019, arXiv 1810.04805)."""

    causal = False

    def add_parts(self, config: ModelConfig) -> None:
        self.segments = nn.Embedding(config.n_token_types, config.d_model) if config.n_token_types else None

    def body(
        self,
        ids: Tensor,
        *,
        positions: Positions | None = None,
        documents: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """The last layer's output, (B, T) -> (B, T, D); arguments as in `forward`."""
        x = self.embedding(ids)  # (B, T, D)
        positions = positions_of(ids, self.config.pad_id) if positions is None else positions
        mask = attention_mask(positions, positions, causal=False, documents=documents, device=ids.device)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(ids) if token_type_ids is None else token_type_ids)
        return self.run_stack(x, positions, positions, mask)

    def forward(
        self,
        ids: Tensor,
        *,
        positions: Positions | None = None,
        documents: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits for the token at each position, (B, T) -> (B, T, V).

        Args:
            ids: token ids; rows may be padded with the config's `pad_id` on either side.
            positions: (B, T) position of each token, -1 for padding; by default derived from `pad_id`. A range where
                nothing is padded.
            documents: (B, T) number of the document of each token: no attention from one to another.
            token_type_ids: (B, T) BERT's token type of each token, if the config has token types; 0 by default.
        """
        return self.head(self.body(ids, positions=positions, documents=documents, token_type_ids=token_type_ids))
