"""Looking inside a model and at its training: traces, interventions, costs on paper, curves, reports.

Importing this loads no torch; a name that needs it loads it when it is first touched.
"""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:  # what type checkers and editors see; below is the same, loaded when it is first touched
    from clearhead.inspection.ablation import ablate as ablate
    from clearhead.inspection.ablation import at_heads as at_heads
    from clearhead.inspection.ablation import at_positions as at_positions
    from clearhead.inspection.ablation import mean_activations as mean_activations
    from clearhead.inspection.ablation import without as without
    from clearhead.inspection.ablation import without_head as without_head
    from clearhead.inspection.ablation_table import AblationTable as AblationTable
    from clearhead.inspection.attention_view import AttentionView as AttentionView
    from clearhead.inspection.attention_view import attend as attend
    from clearhead.inspection.attribution import attribute as attribute
    from clearhead.inspection.attribution_view import Attribution as Attribution
    from clearhead.inspection.capture import activation_names as activation_names
    from clearhead.inspection.capture import record as record
    from clearhead.inspection.comparison import ComparedRun as ComparedRun
    from clearhead.inspection.comparison import ComparisonReport as ComparisonReport
    from clearhead.inspection.comparison import render_comparison as render_comparison
    from clearhead.inspection.contributions import Contributions as Contributions
    from clearhead.inspection.contributions import direct_logit_attribution as direct_logit_attribution
    from clearhead.inspection.cost import CostEstimate as CostEstimate
    from clearhead.inspection.cost import estimate_cost as estimate_cost
    from clearhead.inspection.cost import flops_per_token as flops_per_token
    from clearhead.inspection.cost import parameters as parameters
    from clearhead.inspection.curve import Curve as Curve
    from clearhead.inspection.curve import Point as Point
    from clearhead.inspection.curve import bits_per_byte as bits_per_byte
    from clearhead.inspection.curve import in_bits as in_bits
    from clearhead.inspection.curve import smooth as smooth
    from clearhead.inspection.curve import verdict as verdict
    from clearhead.inspection.heads import HeadTable as HeadTable
    from clearhead.inspection.heads import measure_heads as measure_heads
    from clearhead.inspection.intervention import intervene as intervene
    from clearhead.inspection.lens import lens_logits as lens_logits
    from clearhead.inspection.lens import lens_names as lens_names
    from clearhead.inspection.memorization import Memorization as Memorization
    from clearhead.inspection.memorization import measure_memorization as measure_memorization
    from clearhead.inspection.plot import LossPlot as LossPlot
    from clearhead.inspection.prediction import Prediction as Prediction
    from clearhead.inspection.prediction import predict as predict
    from clearhead.inspection.report import Measurement as Measurement
    from clearhead.inspection.report import Sample as Sample
    from clearhead.inspection.report import TrainingReport as TrainingReport
    from clearhead.inspection.report import render as render
    from clearhead.inspection.sites import attention_sites as attention_sites
    from clearhead.inspection.steps.strangers import trace_steps as trace_steps
    from clearhead.inspection.steps.table import TraceStep as TraceStep
    from clearhead.inspection.steps.table import TraceTable as TraceTable
    from clearhead.inspection.svg import Series as Series
    from clearhead.inspection.svg import chart as chart
    from clearhead.inspection.svg import picture as picture
    from clearhead.inspection.terminal import draw as draw
    from clearhead.inspection.trace import Trace as Trace
    from clearhead.inspection.view import View as View
    from clearhead.inspection.weights import WeightTable as WeightTable
    from clearhead.inspection.weights import weigh as weigh

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "attention_view": ("AttentionView", "attend"),
        "ablation": ("ablate", "at_heads", "at_positions", "mean_activations", "without", "without_head"),
        "ablation_table": ("AblationTable",),
        "attribution": ("attribute",),
        "attribution_view": ("Attribution",),
        "capture": ("activation_names", "record"),
        "comparison": ("ComparedRun", "ComparisonReport", "render_comparison"),
        "contributions": ("Contributions", "direct_logit_attribution"),
        "cost": ("CostEstimate", "estimate_cost", "flops_per_token", "parameters"),
        "curve": ("Curve", "Point", "bits_per_byte", "in_bits", "smooth", "verdict"),
        "heads": ("HeadTable", "measure_heads"),
        "intervention": ("intervene",),
        "lens": ("lens_logits", "lens_names"),
        "memorization": ("Memorization", "measure_memorization"),
        "plot": ("LossPlot",),
        "prediction": ("Prediction", "predict"),
        "report": ("Measurement", "Sample", "TrainingReport", "render"),
        "sites": ("attention_sites",),
        "steps.strangers": ("trace_steps",),
        "steps.table": ("TraceStep", "TraceTable"),
        "svg": ("Series", "chart", "picture"),
        "terminal": ("draw",),
        "trace": ("Trace",),
        "view": ("View",),
        "weights": ("WeightTable", "weigh"),
    },
)
