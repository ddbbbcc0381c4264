"""Looking inside a model and at its training: traces, interventions, costs on paper, curves, reports.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.inspection.attention.cell import AttentionCell as AttentionCell
    from clearhead.inspection.attention.cell import attention_cell as attention_cell
    from clearhead.inspection.attention.view import AttentionView as AttentionView
    from clearhead.inspection.attention.view import attend as attend
    from clearhead.inspection.attribution.contributions import Contributions as Contributions
    from clearhead.inspection.attribution.contributions import direct_logit_attribution as direct_logit_attribution
    from clearhead.inspection.attribution.tokens import attribute as attribute
    from clearhead.inspection.attribution.view import Attribution as Attribution
    from clearhead.inspection.capture.intervention import intervene as intervene
    from clearhead.inspection.capture.recording import activation_names as activation_names
    from clearhead.inspection.capture.recording import record as record
    from clearhead.inspection.capture.sites import attention_sites as attention_sites
    from clearhead.inspection.capture.trace import Trace as Trace
    from clearhead.inspection.cost.estimate import CostEstimate as CostEstimate
    from clearhead.inspection.cost.estimate import estimate_cost as estimate_cost
    from clearhead.inspection.cost.estimate import flops_per_token as flops_per_token
    from clearhead.inspection.cost.estimate import parameters as parameters
    from clearhead.inspection.cost.weights import WeightTable as WeightTable
    from clearhead.inspection.cost.weights import weigh as weigh
    from clearhead.inspection.curves.comparison import ComparedRun as ComparedRun
    from clearhead.inspection.curves.comparison import ComparisonReport as ComparisonReport
    from clearhead.inspection.curves.comparison import render_comparison as render_comparison
    from clearhead.inspection.curves.curve import Curve as Curve
    from clearhead.inspection.curves.curve import Point as Point
    from clearhead.inspection.curves.curve import bits_per_byte as bits_per_byte
    from clearhead.inspection.curves.curve import in_bits as in_bits
    from clearhead.inspection.curves.curve import smooth as smooth
    from clearhead.inspection.curves.curve import verdict as verdict
    from clearhead.inspection.curves.plot import LossPlot as LossPlot
    from clearhead.inspection.curves.report import Measurement as Measurement
    from clearhead.inspection.curves.report import Sample as Sample
    from clearhead.inspection.curves.report import TrainingReport as TrainingReport
    from clearhead.inspection.curves.report import render as render
    from clearhead.inspection.curves.svg import Series as Series
    from clearhead.inspection.curves.svg import chart as chart
    from clearhead.inspection.curves.svg import picture as picture
    from clearhead.inspection.curves.terminal import draw as draw
    from clearhead.inspection.heads.ablation import ablate as ablate
    from clearhead.inspection.heads.ablation import at_heads as at_heads
    from clearhead.inspection.heads.ablation import at_positions as at_positions
    from clearhead.inspection.heads.ablation import mean_activations as mean_activations
    from clearhead.inspection.heads.ablation import without as without
    from clearhead.inspection.heads.ablation import without_head as without_head
    from clearhead.inspection.heads.ablation import without_heads as without_heads
    from clearhead.inspection.heads.ablation_table import AblationTable as AblationTable
    from clearhead.inspection.heads.measures import HeadTable as HeadTable
    from clearhead.inspection.heads.measures import measure_heads as measure_heads
    from clearhead.inspection.memorization import Memorization as Memorization
    from clearhead.inspection.memorization import measure_memorization as measure_memorization
    from clearhead.inspection.prediction.lens import lens_logits as lens_logits
    from clearhead.inspection.prediction.lens import lens_names as lens_names
    from clearhead.inspection.prediction.prediction import Prediction as Prediction
    from clearhead.inspection.prediction.prediction import predict as predict
    from clearhead.inspection.steps.strangers import trace_steps as trace_steps
    from clearhead.inspection.steps.table import TraceStep as TraceStep
    from clearhead.inspection.steps.table import TraceTable as TraceTable
    from clearhead.inspection.view import View as View

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attention.cell": ("AttentionCell", "attention_cell"),
        "attention.view": ("AttentionView", "attend"),
        "attribution.contributions": ("Contributions", "direct_logit_attribution"),
        "attribution.tokens": ("attribute",),
        "attribution.view": ("Attribution",),
        "capture.intervention": ("intervene",),
        "capture.recording": ("activation_names", "record"),
        "capture.sites": ("attention_sites",),
        "capture.trace": ("Trace",),
        "cost.estimate": ("CostEstimate", "estimate_cost", "flops_per_token", "parameters"),
        "cost.weights": ("WeightTable", "weigh"),
        "curves.comparison": ("ComparedRun", "ComparisonReport", "render_comparison"),
        "curves.curve": ("Curve", "Point", "bits_per_byte", "in_bits", "smooth", "verdict"),
        "curves.plot": ("LossPlot",),
        "curves.report": ("Measurement", "Sample", "TrainingReport", "render"),
        "curves.svg": ("Series", "chart", "picture"),
        "curves.terminal": ("draw",),
        "heads.ablation": (
            "ablate",
            "at_heads",
            "at_positions",
            "mean_activations",
            "without",
            "without_head",
            "without_heads",
        ),
        "heads.ablation_table": ("AblationTable",),
        "heads.measures": ("HeadTable", "measure_heads"),
        "memorization": ("Memorization", "measure_memorization"),
        "prediction.lens": ("lens_logits", "lens_names"),
        "prediction.prediction": ("Prediction", "predict"),
        "steps.strangers": ("trace_steps",),
        "steps.table": ("TraceStep", "TraceTable"),
        "view": ("View",),
    },
)
