"""How a model is trained."""

from typing import Literal

from pydantic import Field

from clearhead.options import Options


class TrainConfig(Options):
    """How the weights are found."""

    steps: int = Field(2000, ge=1, description="optimizer steps")
    batch_size: int = Field(
        32, ge=1, description="sequences of block_size tokens in one step; of pairs, as many as fill the same room"
    )
    micro_batches: int = Field(
        1, ge=1, description="split each batch into this many parts to save memory; same gradient"
    )
    optimizer: str = Field(
        "adamw",
        description="adamw, muon (Muon for matrices, AdamW for the rest), or any class of torch.optim: sgd, Adagrad...",
    )
    learning_rate: float = Field(3e-4, gt=0, description="the peak of the schedule")
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt", "warmup_stable_decay"] = Field(
        "cosine", description="how the rate moves after warm-up"
    )
    warmup_steps: int = Field(100, ge=0, description="steps over which the rate rises from zero")
    min_lr_ratio: float = Field(0.1, ge=0, le=1, description="the schedule's last rate as a share of its peak")
    beta1: float = Field(
        0.9, ge=0, lt=1, description="decay of the gradient's running mean (Adam's beta1, Muon's momentum)"
    )
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the squared gradient's running mean (Adam's beta2)")
    adam_eps: float = Field(1e-8, gt=0, description="added to the root of the squared gradient's mean (Adam's epsilon)")
    weight_decay: float = Field(0.1, ge=0, description="decay of the matrices; nothing else decays")
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True, description="largest gradient norm; inf: no clipping")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of each target's mass that is spread evenly")
    smoothing_over: Literal["all", "others"] = Field(
        "all", description="over the whole vocabulary, as torch does, or over the V - 1 wrong tokens only"
    )
    average_checkpoints: int = Field(
        1, ge=1, description="in the end, try the mean of this many last checkpoints, and keep it if it is better"
    )
    eval_every: int = Field(250, ge=1, description="steps between evaluations on the held-out text")
    eval_tokens: int | None = Field(None, ge=1, description="evaluate on at most this many tokens; none: on all")
    save_every: int = Field(500, ge=1, description="steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept beside the best one")
    precision: Literal["auto", "float32", "bfloat16"] = Field("auto", description="type of the matrix products")
    compile: Literal["auto", "on", "off"] = Field("auto", description="torch.compile; auto: on a GPU only")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")
    tensorboard: bool = Field(False, description="also write for TensorBoard, into the run's folder (an extra)")
    threads: int | None = Field(None, ge=1, le=4096, description="processor threads; none: all cores")
