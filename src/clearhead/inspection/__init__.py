"""Looking at a model and its training: costs on paper, curves, reports. Nothing exported here needs torch."""

from clearhead.inspection.cost import Account, account, flops_per_token, parameters
from clearhead.inspection.curve import Curve, Point, bits_per_byte, in_bits, verdict
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
    "bits_per_byte",
    "draw",
    "flops_per_token",
    "in_bits",
    "parameters",
    "picture",
    "render",
    "verdict",
]
