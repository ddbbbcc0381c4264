"""The families, one table each, read in both directions. Nothing else in the library knows a foreign name."""

from clearhead.config import ModelConfig
from clearhead.interop.hf.bart import BART, MARIAN, PEGASUS
from clearhead.interop.hf.bert import BERT
from clearhead.interop.hf.family import Family
from clearhead.interop.hf.gpt import GPT2, GPT_NEOX, OPT
from clearhead.interop.hf.llama import ARCEE, GEMMA, LLAMA, MISTRAL, QWEN2, QWEN3
from clearhead.interop.hf.t5 import T5

# Where a config fits in several, the first is taken.
FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        GPT2,
        OPT,
        GPT_NEOX,
        LLAMA,
        ARCEE,
        QWEN2,
        QWEN3,
        MISTRAL,
        GEMMA,
        BERT,
        PEGASUS,
        MARIAN,
        BART,
        T5,
    )
}


def family_of(config: ModelConfig) -> Family | None:
    """The first family that the config fits in, or None."""
    return next((family for family in FAMILIES.values() if not family.obstacles(config)), None)


def obstacle(config: ModelConfig) -> str | None:
    """Which options keep the config from the family that it is nearest to, in words; None if it fits in one."""
    everyone = FAMILIES.values()
    alike = [family for family in everyone if family.needs["architecture"] == config.architecture]
    nearest = min((family.obstacles(config) for family in alike or everyone), key=len)
    return " and ".join(nearest) or None
