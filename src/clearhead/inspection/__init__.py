"""Looking at a model and its training: costs on paper, curves, reports. Nothing exported here needs torch."""

from clearhead.inspection.cost import Account, account, flops_per_token, parameters
from clearhead.inspection.curve import Curve, Point, verdict
from clearhead.inspection.plot import LossPlot
from clearhead.inspection.report import Sample, TrainingReport, render
from clearhead.inspection.svg import picture
from clearhead.inspection.terminal import draw

__all__ = [
    "Account",
    "Curve",
    "LossPlot",
    "Point",
    "Sample",
    "TrainingReport",
    "account",
    "draw",
    "flops_per_token",
    "parameters",
    "picture",
    "render",
    "verdict",
]
