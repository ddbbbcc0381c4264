"""Chat templates as models of several kinds have them, written after their public formats, and tokenizers for them."""

import json
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' "
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
GEMMA = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {{- raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
    {{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"""
MISTRAL = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'].strip() + '\n\n' %}
{%- set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest %}{% if message['role'] == 'user' %}
{{- '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}{% else %}
{{- ' ' ~ message['content'].strip() ~ eos_token }}{% endif %}{% endfor %}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
PHI = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + '\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
)
THINKING = """{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' and '</think>' in content %}
    {%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- elif message.role == 'user' and content.startswith('<tool_response>') %}
    {%- set content = 'tool: ' + content %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""
GENERATION = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}{% generation %}{{ message.content }}"
    "{% endgeneration %}{{ '<|im_end|>\\n' }}{% if loop.index > 8 %}{% break %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "llama-3": LLAMA_3,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "zephyr": ZEPHYR,
    "phi": PHI,
    "thinking": THINKING,
    "generation": GENERATION,
}
SPECIAL = (
    *("<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"),
)
RIGHT = ("<|end|>", "<|user|>", "<|assistant|>", "<|system|>")  # eat the space behind them, as Phi's do
PLAIN = ("<think>", "</think>")  # tokens that a text may hold
WORDS = "hello Hello, what is it? The answer: user system model assistant\n\n  two  spaces é 猫 [INST] [/INST] tool"


def tokenizer_files(kind: str, folder: Path, template: str | None = None, plain: tuple[str, ...] = PLAIN) -> None:
    """A small tokenizer of a kind, with the special tokens of all templates, as a Hugging Face folder has it.

    Args:
        plain: added tokens that the tokenizer takes for words; some may be those of a template.
    """
    texts = [WORDS, WORDS.upper(), " ".join(map(chr, range(33, 127)))] * 3
    library = tokenizers.Tokenizer(models.BPE())
    trainer: trainers.Trainer
    if kind == "bytes":
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
        )
    elif kind == "sentencepiece":
        library = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
        library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        library.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        trainer = trainers.BpeTrainer(
            vocab_size=700, show_progress=False, special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        )
    else:
        library = tokenizers.Tokenizer(models.Unigram())
        library.pre_tokenizer = pre_tokenizers.Metaspace()
        library.decoder = decoders.Metaspace()
        # a vocabulary that holds the special tokens as words, as SentencePiece's do
        trainer = trainers.UnigramTrainer(
            vocab_size=300,
            show_progress=False,
            special_tokens=[*SPECIAL],
            unk_token="<unk>",
            initial_alphabet=[*map(chr, range(33, 127)), "\n", "\t", "é", "猫"],
        )
    library.train_from_iterator(texts, trainer)
    state = json.loads(library.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if not token["content"].startswith("<0x")]
    library = tokenizers.Tokenizer.from_str(json.dumps(state))  # bytes are words
    library.add_special_tokens(
        [tokenizers.AddedToken(token, rstrip=token in RIGHT) for token in SPECIAL if token not in plain]
    )
    library.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in plain])
    folder.mkdir(parents=True, exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    config |= {"unk_token": "<unk>"} | ({} if template is None else {"chat_template": template})
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
