"""A decoder's next tokens by compiled code: several in one call, drawn there as `sampling.py` draws them."""

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from clearhead.config import SamplingConfig, Weights
from clearhead.inference.compiled.layout import Call, Decoder, Drawing, Layer, Matrix, Packer, Stack, UnknownPartError
from clearhead.inference.texts import Text, present_in
from clearhead.models import DecoderLM
from clearhead.parts import (
    ACTIVATIONS,
    Attention,
    Block,
    DecoderCache,
    FeedForward,
    GatedFeedForward,
    ParallelBlock,
    Transform,
    attention_mask,
    last_tokens,
)
from clearhead.parts import Stack as ModelStack
from clearhead.parts.feedforward import Activation
from clearhead.parts.positions import Turn

ACTIVATION_NUMBERS = [ACTIVATIONS[name] for name in ("relu", "relu2", "silu", "gelu_tanh", "gelu")]  # as in numbers.h
CPU = torch.device("cpu")  # whatever device a person made the default one
ENOUGH = 4_000_000  # products of a call, from which on threads share them
SMALL = 2_000_000  # products of a token, up to which each thread computes rows of its own: weights stay in its cache
AT_ONCE, AHEAD = 16, 40_000_000  # tokens, and products of a row, in one call: some milliseconds


class CompiledDecoder:
    """What compiled code writes and reads; the cache, the positions and the random numbers are the model's own."""

    def __init__(self, model: DecoderLM, weights: Weights, library: ctypes.CDLL) -> None:
        """
        Raises:
            UnknownPartError: it has a part that compiled code does not know.
        """
        self.model, self._library = model, library
        self._packer = Packer(weights, model.embedding.weight.dtype)
        self._decoder = described(model, self._packer)
        blocks = sum(parameter.numel() for parameter in model.stack.parameters())
        self._products = blocks + model.config.vocab_size * model.config.d_model  # with the head's
        self.at_once = max(1, min(AT_ONCE, AHEAD // self._products))

    def read(self, ids: Tensor, cache: DecoderCache, positions: Tensor | None = None, *, wanted: int = 1) -> Tensor:
        """The logits (B, wanted, V) after the last tokens (B, T) of each text."""
        return self._run(ids, cache, positions, wanted=wanted)[1]

    def write(self, ids: Tensor, cache: DecoderCache, texts: Sequence[Text], steps: int) -> list[list[int]]:
        """Read a token (B,) of each text, and all but the last of those that follow: these, of each text.

        Args:
            texts: how their tokens are drawn.
            steps: how many follow.
        """
        return self._run(ids[:, None], cache, texts=texts, steps=steps)[0].tolist()

    @torch.no_grad()
    def _run(
        self,
        ids: Tensor,
        cache: DecoderCache,
        positions: Tensor | None = None,
        *,
        texts: Sequence[Text] = (),
        steps: int = 1,
        wanted: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """The tokens (B, steps) that were drawn; the logits (B, wanted, V) after the last that were read."""
        B, G, length, dtype = *ids.shape, cache.length, self._packer.dtype
        places = G + steps - 1
        room = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
        capacity = room[0].shape[2]
        assert length + places <= capacity, f"the cache holds {capacity} columns, not {length + places}"
        assert all(tensor.is_contiguous() for tensor in room), "of a cache's room no part is left out"
        logits = torch.empty(B, wanted, self.model.config.vocab_size, dtype=dtype, device=CPU)
        line = _line(ids, cache, positions, steps)  # (B, history + places + 1)
        history = line.shape[1] - places - 1
        call = Call(texts=B, given=G, steps=steps, wanted=wanted, line=line[:, history:].data_ptr())
        call.line_row, call.logits = line.shape[1], logits.data_ptr()
        call.length, call.capacity = length, capacity
        call.caches = (ctypes.c_void_p * len(room))(*(part.data_ptr() for part in room))
        call.apart, call.threads = self._shared_out(B, G, places, length)
        held = [
            *self._places(call, cache, positions),
            *_draws(call, texts, logits),
        ]  # as long as compiled code reads it
        self._library.clearhead_write(ctypes.byref(self._decoder), ctypes.byref(call))
        del held
        for layer in cache.layers:
            layer.length += places
        if positions is not None and history:
            last_tokens(ids, history + 1, positions, None, cache)  # which passes over padding
        elif history:
            cache.tokens = line[:, places:-1]
        return line[:, history + G :] - 1, logits

    def _shared_out(self, texts: int, given: int, places: int, length: int) -> tuple[bool, int]:
        """Whether each thread computes texts of its own, and how many threads there are."""
        apart, threads = texts > 1 and self._products <= SMALL, torch.get_num_threads()
        stack = self._decoder.stack
        token = self._products + 2 * stack.n_layers * stack.d_model * length  # with attention's
        if token * texts * (places if apart else given) < ENOUGH:
            return apart, 1
        return apart, min(threads, texts) if apart else threads

    def _places(self, call: Call, cache: DecoderCache, positions: Tensor | None) -> list[Tensor]:
        """Tell the call where the tokens stand and what they may see; what it then points to."""
        model, dtype, places = self.model, self._packer.dtype, call.given + call.steps - 1
        query, key = cache.extend(positions, places)
        window, nothing = model.config.window, torch.zeros(1, places, model.config.d_model, dtype=dtype, device=CPU)
        mask = attention_mask(query, key, causal=window is not None, window=window)  # no column is there too early
        turn, bias = model.positions.rotate(query, CPU), model.positions.bias(query, key, CPU)
        held = [model.positions.add(nothing, query)]  # (1 or B, places, D)
        if held[0] is not nothing:
            call.added, call.added_row = held[0].data_ptr(), _row(held[0])
        if isinstance(mask, Tensor):
            held.append(mask.reshape(-1, *mask.shape[-2:]).contiguous())  # (places, T) or (B, 1, places, T)
            call.mask, call.mask_row = held[-1].data_ptr(), _row(held[-1])
        if bias is not None:
            held.append(bias.to(dtype).reshape(-1, *bias.shape[-3:]).contiguous())  # (1 or B, H, places, T)
            call.bias, call.bias_row = held[-1].data_ptr(), _row(held[-1])
        if turn is not None:
            assert isinstance(turn, Turn), "compiled code turns pairs"
            held += [angles.to(dtype).reshape(-1, *angles.shape[-2:]) for angles in (turn.cos, turn.sin)]
            call.cosines, call.sines = held[-2].data_ptr(), held[-1].data_ptr()  # (1 or B, places, R)
            call.half, call.turn_row = turn.cos.shape[-1] // 2, _row(held[-1])
        return held


def _line(ids: Tensor, cache: DecoderCache, positions: Tensor | None, drawn: int) -> Tensor:
    """What tables saw of each text, the given tokens, and room for drawn ones: (B, N), as `last_tokens` writes them."""
    tokens = ids + 1 if positions is None else (ids + 1).where(positions >= 0, 0)
    before = [] if cache.tokens is None else [cache.tokens]
    return torch.cat((*before, tokens, ids.new_zeros(len(ids), drawn)), dim=1)


def described(model: DecoderLM, packer: Packer) -> Decoder:
    """The structure of a decoder.

    Raises:
        UnknownPartError: it has a part that compiled code does not know.
    """
    head, embedding = model.unembedding, model.embedding
    found = Decoder(
        embedding=packer.pointer(embedding.weight.detach()),
        embedding_scale=embedding.scale,
        embedding_ngrams=packer.tables(model.embedding_ngrams),
        logit_ngrams=packer.tables(model.logit_ngrams),
        embedding_norm=packer.norm(model.embedding_norm),
        stack=_stack(model.stack, packer),
        head_scale=head.scale,
        head=packer.matrix(embedding.weight if head.weight is None else head.weight, head.bias),
    )
    if isinstance(head.transform, Transform):
        found.dense = packer.linear(head.transform.dense)
        found.dense_activation = _number(head.transform.activation)
        found.dense_norm = packer.norm(head.transform.norm)
    return found


def _stack(stack: ModelStack, packer: Packer) -> Stack:
    """The structure of a stack, whose layers differ in their weights alone."""
    layers = [_layer(block, packer) for block in stack.blocks]
    block = stack.blocks[0]
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    return Stack(
        layers=packer.array(layers),
        n_layers=len(layers),
        d_model=attention.query.in_features,
        n_heads=attention.n_heads,
        n_kv_heads=attention.n_kv_heads,
        head_width=attention.head_width,
        d_ff=feedforward.down.in_features,
        scale=attention.scale,
        activation=_number(feedforward.activation),
        post=block.self_attention.place == "post",
        parallel=isinstance(block, ParallelBlock),
        norm=packer.norm(stack.norm),
    )


def _layer(block: nn.Module, packer: Packer) -> Layer:
    attention, feedforward = _parts(block)
    assert isinstance(block, Block)
    return Layer(
        heads=packer.linear(attention.query, attention.key, attention.value),
        output=packer.linear(attention.output),
        up=packer.linear(feedforward.up),
        gate=packer.linear(feedforward.gate) if isinstance(feedforward, GatedFeedForward) else Matrix(),
        down=packer.linear(feedforward.down),
        attention_norm=packer.norm(block.self_attention.norm),
        query_norm=packer.norm(attention.query_norm),
        key_norm=packer.norm(attention.key_norm),
        feedforward_norm=packer.norm(block.feedforward.norm),
    )


def _parts(block: nn.Module) -> tuple[Attention, FeedForward]:
    if isinstance(block, Block) and block.cross_attention is None:
        attention, feedforward = block.self_attention.part, block.feedforward.part
        if isinstance(attention, Attention) and isinstance(feedforward, FeedForward):
            return attention, feedforward
    raise UnknownPartError(f"a {type(block).__name__} of other parts is not known to compiled code")


def _number(activation: Activation) -> int:
    if activation not in ACTIVATION_NUMBERS:
        raise UnknownPartError(f"the activation {activation} is not known to compiled code")
    return ACTIVATION_NUMBERS.index(activation)


def _draws(call: Call, texts: Sequence[Text], logits: Tensor) -> list[object]:
    """Tell the call how tokens are drawn; what it then points to."""
    if not texts:
        return []
    V = logits.shape[2]
    drawings = (Drawing * len(texts))(*(_drawing(text.config, V) for text in texts))
    nothing = [0.0] * call.steps
    numbers = [nothing if text.config.greedy else text.uniforms(0, call.steps) for text in texts]
    uniforms = torch.tensor(numbers, dtype=logits.dtype, device=CPU)  # (B, steps)
    call.drawings, call.uniforms = ctypes.addressof(drawings), uniforms.data_ptr()
    if all(text.config.repetition_penalty == 1 for text in texts):
        return [drawings, uniforms]
    present = present_in(texts, V)  # (B, V)
    call.present = present.data_ptr()
    return [drawings, uniforms, present]


def _drawing(config: SamplingConfig, vocab_size: int) -> Drawing:
    return Drawing(
        greedy=config.greedy,
        top_k=min(config.top_k or vocab_size, vocab_size),
        penalty=config.repetition_penalty,
        temperature=config.temperature,
        top_p=config.top_p or 1.0,
        min_p=config.min_p or 0.0,
    )


def _row(tensor: Tensor) -> int:
    """From one row of the batch to the next; 0 where there is one for all."""
    return tensor.stride(0) if len(tensor) > 1 else 0
