"""How a model is trained."""

from typing import Literal

from pydantic import Field

from clearhead.options import Options

MAX_WARMUP = 100  # steps, where nobody asks for more


class TrainConfig(Options):
    """How the weights are found."""

    steps: int = Field(2000, ge=1, description="optimizer steps")
    batch_size: int = Field(
        32,
        ge=1,
        le=2**31,
        description="sequences of block_size tokens per step; for sentence pairs, the same number of tokens",
    )
    micro_batches: int = Field(
        1,
        ge=1,
        le=2**31,
        description="split each batch into this many parts to save memory; the gradient stays the same",
    )
    recompute: Literal["none", "blocks"] = Field(
        "none",
        description="keep only the blocks' inputs for the backward pass and compute the rest again: less memory, "
        "a third more time, the same gradient",
    )
    parallel: Literal["auto", "ddp", "fsdp"] = Field(
        "auto",
        description="several processes: ddp keeps all weights in each of them, fsdp shares the weights out; auto: ddp, "
        "or fsdp where weights, gradients and optimizer do not fit a GPU",
    )
    optimizer: str = Field(
        "adamw",
        description="adamw, muon (the blocks' matrices; AdamW for the rest), or a class of torch.optim, as in sgd",
    )
    learning_rate: float = Field(3e-4, gt=0, description="peak learning rate")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt", "warmup_stable_decay"] = Field(
        "cosine", description="shape of the learning rate after warm-up"
    )
    warmup_steps: int = Field(
        default_factory=lambda data: min(MAX_WARMUP, data.get("steps", 0) // 10),
        ge=0,
        description="steps over which the learning rate rises to its peak (default: a tenth of steps, at most 100)",
    )
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="final learning rate as a fraction of the peak")
    beta1: float = Field(0.9, ge=0, lt=1, description="Adam's beta1 and Muon's momentum")
    beta2: float = Field(0.95, ge=0, lt=1, description="Adam's beta2")
    adam_eps: float = Field(1e-8, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(0.1, ge=0, description="weight decay on matrices; norms and biases do not decay")
    max_grad_norm: float = Field(
        1.0, gt=0, allow_inf_nan=True, description="clip the gradient to this norm; inf: no clipping"
    )
    label_smoothing: float = Field(
        0.0, ge=0, lt=1, description="fraction of each target's probability that is spread evenly"
    )
    smoothing_over: Literal["all", "others"] = Field(
        "all",
        description="label smoothing: spread over the whole vocabulary, as torch does, or over the V - 1 wrong tokens",
    )
    average_checkpoints: int = Field(
        1, ge=1, description="after the last step, average this many checkpoints and keep the result if it is better"
    )
    eval_every: int = Field(250, ge=1, description="steps between evaluations on the held-out data")
    eval_tokens: int | None = Field(None, ge=1, description="held-out tokens per evaluation; none: all")
    save_every: int = Field(500, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="number of checkpoints to keep besides the best one")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="precision of the matrix products; auto: bfloat16 where the hardware has it"
    )
    compile: Literal["auto", "on", "off"] = Field("auto", description="use torch.compile; auto: on a GPU only")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    tensorboard: bool = Field(
        False, description="also write TensorBoard logs into the run's folder (needs the extra 'tensorboard')"
    )
    threads: int | None = Field(None, ge=1, le=4096, description="CPU threads; none: all cores")
