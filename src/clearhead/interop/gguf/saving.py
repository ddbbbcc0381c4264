"""A model as one GGUF file in float32."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from clearhead.config import ModelConfig
from clearhead.errors import ClearheadError
from clearhead.files import adding_to
from clearhead.interop.extras import require
from clearhead.interop.gguf.layouts import Layout, layout_of
from clearhead.interop.gguf.vocabulary import Vocabulary, read_vocabulary
from clearhead.interop.hf.family import Family
from clearhead.interop.hf.folder import NO_TOKENS, SpecialTokens
from clearhead.interop.hf.key_map import links
from clearhead.interop.hf.weights import to_foreign
from clearhead.models import LanguageModel

if TYPE_CHECKING:
    from clearhead.interop.gguf.writer import Writer

FLOAT32 = 0  # GGUF's number of the type
ROTATED = (".attn_q", ".attn_k")  # GGUF's names of the maps to what is rotated


def save_gguf(path: Path, model: LanguageModel, tokenizer: Path, tokens: SpecialTokens = NO_TOKENS) -> list[Path]:
    """Write the model and its tokenizer into one file.

    Args:
        path: the file.
        model: what; a decoder of a family that GGUF holds (see `layouts`).
        tokenizer: its tokenizer.json: a byte-level BPE, or characters of ASCII.
        tokens: special ones of the tokenizer.

    Returns:
        The file.

    Raises:
        UsageError: GGUF holds no such model or no such tokenizer, or a package for it is missing.
        DataError: the tokenizer cannot be read.
        ClearheadError: the file cannot be written.
    """
    require("gguf", "gguf")
    from clearhead.interop.gguf.writer import Writer

    family, layout = layout_of(model.config)
    vocabulary = read_vocabulary(tokenizer, model.config.vocab_size)
    try:
        with adding_to(path.parent) as temporary:
            writer = Writer(temporary / path.name, family.name)
            _describe(writer, model.config)
            _add_tokenizer(writer, vocabulary, tokens)
            for name, tensor in _tensors(family, layout, model):
                writer.add_tensor(name, tensor.float().cpu().contiguous().numpy())
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
    except OSError as error:
        raise ClearheadError(f"the model cannot be written to {path}: {error}") from None
    return [path]


def _describe(writer: "Writer", config: ModelConfig) -> None:
    """The options, under the keys that llama.cpp reads."""
    writer.add_file_type(FLOAT32)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.block_size)
    writer.add_block_count(config.n_layers)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_head_count(config.n_heads)
    writer.add_head_count_kv(config.n_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    add_epsilon = {"layernorm": writer.add_layer_norm_eps, "rmsnorm": writer.add_layer_norm_rms_eps}[config.norm]
    add_epsilon(config.norm_eps)
    if config.positions == "rope":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_rope_freq_base(config.rope_theta)


def _add_tokenizer(writer: "Writer", vocabulary: Vocabulary, tokens: SpecialTokens) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.kinds)
    writer.add_token_merges(vocabulary.merges)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    if tokens.end is not None:
        writer.add_bos_token_id(tokens.end)
        writer.add_eos_token_id(tokens.end)
    if tokens.pad is not None:
        writer.add_pad_token_id(tokens.pad)


def _tensors(family: Family, layout: Layout, model: LanguageModel) -> Iterator[tuple[str, Tensor]]:
    """Every weight under GGUF's name, matrices as (out, in)."""
    import gguf

    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == family.name)
    names = gguf.get_tensor_name_map(kind, model.config.n_layers)
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for link in links(family, model.config):
        foreign, suffix = link.foreign.rsplit(".", 1)
        name = names.get_name(foreign)
        assert name is not None, f"GGUF has no name for {foreign}"
        tensor = to_foreign(link._replace(transposed=False), state)
        if layout.neighbors and name.endswith(ROTATED):
            tensor = as_neighbors(tensor, model.config.head_dim)
        yield f"{name}.{suffix}", tensor


def as_neighbors(rows: Tensor, width: int) -> Tensor:
    """Rows (H K, D) of which each head's i and i + K/2 are turned together, with the two beside each other."""
    halves = rows.view(-1, 2, width // 2, rows.shape[-1])  # (H K, D) -> (H, 2, K/2, D)
    return halves.transpose(1, 2).reshape(rows.shape)  # (H, K/2, 2, D) -> (H K, D)
