"""What a person probably meant. Better no suggestion than a wrong one."""

import difflib
import re
from collections.abc import Callable, Iterable

# Names for the same thing in torch, transformers, nanoGPT, fairseq, llama.cpp and the papers. A row may hold options,
# values and verbs; only those that are known where the suggestion is made can be suggested.
SYNONYMS: tuple[frozenset[str], ...] = tuple(
    frozenset(row.split())
    for row in """
    learning_rate lr max_lr
    min_lr_ratio min_lr final_lr min_learning_rate
    max_grad_norm clip grad_clip clip_grad clip_grad_norm gradient_clipping
    steps iters max_iters max_steps num_steps iterations
    warmup_steps warmup_iters
    micro_batches gradient_accumulation_steps gradient_accumulation grad_accum accumulate
    batch_size bs batchsize per_device_train_batch_size
    optimizer optim
    weight_decay wd
    label_smoothing smoothing
    average_checkpoints average
    keep_checkpoints save_total_limit keep
    eval_every eval_interval eval_steps
    save_every save_interval save_steps
    precision dtype weights torch_dtype
    device gpu cuda
    block_size context context_length max_seq_len seq_len max_position_embeddings n_positions n_ctx
    n_layers n_layer num_layers num_hidden_layers depth
    n_heads n_head num_heads num_attention_heads
    n_kv_heads num_key_value_heads num_kv_heads
    d_model n_embd hidden_size embedding_dim dim width
    d_ff intermediate_size ffn_dim mlp_dim d_inner
    feedforward activation hidden_act mlp ffn
    positions position_embedding positional_encoding pos_emb
    rope_theta rope_base
    tie_embeddings tied tie_weights tie_word_embeddings
    sliding_window window
    init initialization initialisation
    mask_probability mlm_probability mask_fraction
    max_new_tokens max_tokens max_length length n_predict num_tokens
    num_samples num_return_sequences n_samples samples
    temperature temp
    greedy argmax
    beam_size beam beams num_beams beam_width
    draft speculative assistant_model
    source data dataset corpus
    from finetune fine_tune init_from checkpoint
    out output out_dir output_dir outfile save_to
    input infile
    eager plain pytorch torch
    native compiled cpp c++
    bfloat16 bf16
    float32 fp32 full
    causal next clm
    masked mlm
    seq2seq translation
    rope rotary
    layernorm ln layer_norm
    rmsnorm rms rms_norm
    warmup_stable_decay wsd
    char character characters
    generate sample complete
    evaluate eval test
    doctor check
    list ls
    translate mt
    train fit finetune
    """.strip().splitlines()
)
SHORTEST_BEGINNING = 4  # letters by which a word may be abbreviated
CLOSE = 0.75  # the share of letters that a misspelled name has in common with the right one


def did_you_mean(word: str, known: Iterable[object]) -> str:
    """'; did you mean 'x'?' where one known word was probably meant, else ''."""
    meant = closest(word, [str(name) for name in known])
    return f"; did you mean '{meant}'?" if meant else ""


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name that is the same but for its table and its hyphens; a synonym; one with the same words; or close.

    None where nothing is like it, or several names are equally so. Of several, the plainest wins.
    """
    names, typed = list(known), _words(word)
    if word in names:
        return word
    for is_meant in (_same, _synonymous, _abbreviated):
        matches = _plainest([name for name in names if is_meant(typed, _words(name))])
        if matches:
            return matches[0] if len(matches) == 1 else None
    ratios = {name: _likeness(typed, _words(name)) for name in names}
    best = max(ratios.values(), default=0.0)
    nearest = _plainest([name for name, ratio in ratios.items() if ratio == best >= CLOSE])
    return nearest[0] if len(nearest) == 1 else None


Words = tuple[str, ...]
Rule = Callable[[Words, Words], bool]


def _words(name: str) -> Words:
    """The words of a name; of a flag, those behind its table: --train.batch-size is batch, size."""
    own = name.rpartition(".")[2] if name.startswith("--") else name
    return tuple(re.split(r"[\s_-]+", own.strip("-").lower()))


def _same(typed: Words, name: Words) -> bool:
    return typed == name


def _synonymous(typed: Words, name: Words) -> bool:
    return any({"_".join(typed), "_".join(name)} <= row for row in SYNONYMS)


def _abbreviated(typed: Words, name: Words) -> bool:
    """Whether every word that was typed is, or begins, one of the name's."""
    return all(
        any(part == word or (len(word) >= SHORTEST_BEGINNING and part.startswith(word)) for part in name)
        for word in typed
    )


def _likeness(typed: Words, name: Words) -> float:
    """The share of letters in common: with the whole name, or of a single longer word with one of the name's."""
    parts = [part for part in name if len(typed) == 1 and min(len(part), len(typed[0])) >= SHORTEST_BEGINNING]
    return max(_ratio("_".join(typed), other) for other in ("_".join(name), *parts))


def _ratio(typed: str, name: str) -> float:
    ending = typed[typed.rfind(".") :] if "." in typed else ""
    if ending and name.endswith(ending):  # of two files, .txt says nothing
        typed, name = typed.removesuffix(ending), name.removesuffix(ending)
    return difflib.SequenceMatcher(None, typed, name).ratio()


def _plainest(names: list[str]) -> list[str]:
    """Those of the fewest words; of these, those in the fewest tables."""

    def length(name: str) -> tuple[int, int]:
        return len(_words(name)), name.count(".")

    shortest = min(map(length, names), default=None)
    return [name for name in names if length(name) == shortest]
