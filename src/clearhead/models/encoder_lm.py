"""The encoder-only Transformer: every token sees every other, and masked ones are filled in."""

from torch import Tensor

from clearhead.models.stack_lm import StackLM
from clearhead.parts import attention_mask, positions_of


class EncoderLM(StackLM):
    """Embedding, positions, a stack that looks both ways, a head (Devlin et al. 2019, arXiv 1810.04805)."""

    def hidden(self, ids: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """The last layer's output, (B, T) -> (B, T, D); arguments as in `forward`."""
        place = positions_of(ids, self.config.pad_id) if positions is None else positions
        mask = attention_mask(place, place, causal=False, documents=documents, device=ids.device)
        return self.through_the_stack(ids, place, place, mask)

    def forward(self, ids: Tensor, *, positions: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """Logits for the token that belongs at each place, (B, T) -> (B, T, V).

        Args:
            ids: token ids; rows may be filled up with the config's `pad_id` on either side.
            positions: (B, T) where each token stands, -1 for padding, in place of what `pad_id` says.
            documents: (B, T) number of the document of each token: no attention from one to another.
        """
        return self.head(self.hidden(ids, positions=positions, documents=documents))
