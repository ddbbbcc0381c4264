"""What the doctor examines where its target is no code: a run of ours."""

from torch import nn

from clearhead.workflows.runs import open_run


def model_of_run(name: str) -> nn.Module:
    """The model of a run by its folder or name; of the newest, if the name is empty."""
    return open_run(name or None).model()
