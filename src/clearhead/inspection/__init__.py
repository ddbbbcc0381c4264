"""Looking at a model and its training: costs on paper, curves, reports. Nothing exported here needs torch."""

from clearhead.inspection.comparison import ComparedRun, ComparisonReport, render_comparison
from clearhead.inspection.cost import CostEstimate, estimate_cost, flops_per_token, parameters
from clearhead.inspection.curve import Curve, Point, bits_per_byte, in_bits, smooth, verdict
from clearhead.inspection.plot import LossPlot
from clearhead.inspection.report import Measurement, Sample, TrainingReport, render
from clearhead.inspection.svg import Series, chart, picture
from clearhead.inspection.terminal import draw

__all__ = [
    "ComparedRun",
    "ComparisonReport",
    "CostEstimate",
    "Curve",
    "LossPlot",
    "Measurement",
    "Point",
    "Sample",
    "Series",
    "TrainingReport",
    "bits_per_byte",
    "chart",
    "draw",
    "estimate_cost",
    "flops_per_token",
    "in_bits",
    "parameters",
    "picture",
    "render",
    "render_comparison",
    "smooth",
    "verdict",
]
