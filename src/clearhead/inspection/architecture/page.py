"""The page of an architecture: the picture, what lies behind each of its parts, and the same as a list."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.resources import files

from clearhead.config import ModelConfig
from clearhead.inspection.architecture.assembly import build_graph
from clearhead.inspection.architecture.drawing import Variants, draw, spoken_names
from clearhead.inspection.architecture.gradients import gradient_section
from clearhead.inspection.architecture.layout import lay_out
from clearhead.inspection.architecture.marks import Mark, Places, placed
from clearhead.inspection.architecture.measures import Measures, measure, shallow_model
from clearhead.inspection.architecture.numbers import compact, size
from clearhead.inspection.architecture.outline import Outline
from clearhead.inspection.architecture.probe import GradientProbe, probe_gradients
from clearhead.inspection.cost.estimate import estimate_cost
from clearhead.inspection.cost.weights import weigh
from clearhead.inspection.view import Row, View
from clearhead.pages import text
from clearhead.wording import counted

SCRIPTS = ("picture.js", "keyboard.js", "overlays.js", "linked.js")
OVERLAYS = {"parameters": "Parameters", "flops": "FLOPs", "n_bytes": "Bytes", "activation": "Activations"}
ARCHITECTURES = {
    "decoder": "A decoder-only Transformer",
    "encoder": "An encoder-only Transformer",
    "encoder_decoder": "An encoder-decoder Transformer",
    "bigram": "A bigram table",
}
NOTES = {
    "pre": "Pre-norm: each sublayer reads a normalized copy, and the residual stream runs from end to end untouched.",
    "post": "Post-norm: each sum is normalized, so everything that reaches the next sublayer has passed a norm.",
}


class ArchitectureReport(View):
    """The interactive picture of a model, generated from its config.

    Args:
        config: of any architecture.
        name: what the model is called, such as its run's name; it may be any text.
        marks: what is said of its parts, and is shown in their places.
    """

    def __init__(self, config: ModelConfig, name: str = "", marks: Sequence[Mark] = ()) -> None:
        self.config, self.name, self.marks = config, name, marks
        self.model = shallow_model(config)

    @cached_property
    def variants(self) -> Variants:
        """This model's graph first, then its sibling with the other norm position, if there can be one."""
        configs = [self.config]
        if self.config.architecture != "bigram" and not self.config.parallel_residual:
            other = "post" if self.config.norm_position == "pre" else "pre"
            configs.append(self.config.model_copy(update={"norm_position": other}))
        graphs = [build_graph(config) for config in configs]
        return {graph.config.norm_position: (graph, lay_out(graph)) for graph in graphs}

    @cached_property
    def measures(self) -> dict[str, Measures]:
        """Of every node, those that only the sibling has included."""
        measures: dict[str, Measures] = {}
        for graph, _ in self.variants.values():
            own = graph.config == self.config
            measures = measure(graph, self.model if own else shallow_model(graph.config)) | measures
        return measures

    @cached_property
    def places(self) -> Places:
        """The marks by the names of their boxes."""
        first, _ = next(iter(self.variants.values()))
        return placed(self.marks, first)

    @property
    def title(self) -> str:
        return self.name or ARCHITECTURES[self.config.architecture]

    @property
    def verdict(self) -> str:
        config, costs = self.config, estimate_cost(self.config)
        total = f"{costs.parameters:,} parameters"
        if config.architecture == "bigram":
            return f"{ARCHITECTURES['bigram']} of {config.vocab_size:,} x {config.vocab_size:,}: {total}."
        blocks = counted(config.n_layers, "block")
        if config.architecture == "encoder_decoder":
            blocks = (
                f"{counted(config.n_encoder_layers, 'encoder block')} and {counted(config.n_layers, 'decoder block')}"
            )
        kind = "parallel residuals" if config.parallel_residual else f"{config.norm_position}-norm"
        flops = compact(costs.flops_per_token)
        flops += " " if flops[-1].isdigit() else ""  # 9,216 FLOPs, but 1.05 MFLOPs
        return (
            f"{ARCHITECTURES[config.architecture]}: {blocks} ({kind}), {counted(config.n_heads, 'head')} of width "
            f"{config.head_dim:,}, {total}, {flops}FLOPs per token."
        )

    def rows(self) -> Sequence[Row]:
        return weigh(self.config).rows()

    def as_dict(self) -> dict[str, object]:
        return weigh(self.config).as_dict()

    def svg(self) -> str:
        return draw(
            self.variants, f"Picture of the model {self.title}, whose content the list below has as well", self.places
        )

    @property
    def style(self) -> str:
        return _asset("page.css")

    @property
    def scripts(self) -> Sequence[str]:
        return [_asset(name) for name in SCRIPTS]

    def data(self) -> dict[str, object]:
        """What the page's scripts read: of each overlay, the share of the largest and the number of each node."""
        overlays = {}
        for overlay in OVERLAYS:
            values = {name: getattr(entry, overlay) for name, entry in self.measures.items()}
            cards = {node.card for graph, _ in self.variants.values() for node in graph.nodes.values()}
            largest = max([1, *(value for name, value in values.items() if name not in cards)])
            show = size if overlay in ("n_bytes", "activation") else compact
            overlays[overlay] = {
                name: [round(min(1.0, value / largest), 4), show(value)] for name, value in values.items() if value
            }
        ends = {edge.name: [edge.source, edge.target] for graph, _ in self.variants.values() for edge in graph.edges}
        return {
            "overlays": overlays,
            "names": spoken_names(self.variants, self.measures, self.places),
            "edges": ends,
            "tensors": {name: node.tensor for graph, _ in self.variants.values() for name, node in graph.nodes.items()},
        }

    def main(self) -> str:
        first, _ = next(iter(self.variants.values()))
        outline = Outline(first, self.measures, self.model, self.places)
        others = [
            (graph, node)
            for graph, _ in list(self.variants.values())[1:]
            for name, node in graph.nodes.items()
            if name not in first.nodes
        ]
        listed = outline.html(others)
        return "".join(
            (
                self._facts(),
                self._marks(),
                self._controls(),
                f'<div class="stage"><div class="canvas">{self.svg()}</div>',
                '<section id="panel" tabindex="0" aria-label="Details of what is selected"><p class="hint">'
                "Select a box for its equation and its source code, or point at an arrow for the shape that it "
                "carries. On the keyboard: Tab into the picture, arrow keys along the flow, Enter to select.</p>"
                "</section></div>",
                '<div id="pill" role="status" hidden></div>',
                gradient_section(self.probe) if self.probe else "",
                self._dropout(),
                "<h2>The same as a list</h2>",
                f'<p class="soft">{_SIZES}</p><details id="list" open><summary>All parts</summary>{listed}</details>',
                f"<h2>Source code</h2>{outline.source_html()}",
            )
        )

    def _marks(self) -> str:
        """Those that no box can show, and a list of buttons that lead to the others."""
        whole = "".join(mark.html() for mark in self.places.get("", ()))
        buttons = "".join(
            f'<li><button type="button" class="closer" data-goto="{text(name)}">{text(mark.status)}: {text(mark.title)}'
            f"</button> <code>{text(mark.module)}</code></li>"
            for name, marks in self.places.items()
            for mark in marks
            if name and mark.status != "pass"
        )
        return whole + (f'<ul class="marks">{buttons}</ul>' if buttons else "")

    def _facts(self) -> str:
        config, costs = self.config, estimate_cost(self.config)
        facts = {"parameters": f"{costs.parameters:,}", "weights in float32": size(costs.bytes["weights"])}
        if config.architecture != "bigram":
            facts |= {
                "FLOPs per token": f"{costs.flops_per_token:,}",
                "context": f"{config.block_size:,} tokens",
                "vocabulary": f"{config.vocab_size:,}",
                "width": f"{config.d_model:,}",
            }
        entries = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in facts.items())
        return f"<dl>{entries}</dl>"

    def _controls(self) -> str:
        fields = []
        if len(self.variants) > 1:
            actual = next(iter(self.variants))
            names = {variant: f"{variant}-norm" + " (this model)" * (variant == actual) for variant in ("pre", "post")}
            fields.append(_radios("variant", "Norm", names, actual))
        fields.append(_radios("overlay", "Overlay", {"": "None", **OVERLAYS}, ""))
        fields.append('<label class="check"><input type="checkbox" id="shapes"> All shapes</label>')
        notes = f'<div class="notes" data-variant="{next(iter(self.variants))}">{"".join(self._notes())}</div>'
        return f'<form class="controls">{"".join(fields)}</form>{notes}'

    def _notes(self) -> Iterator[str]:
        if self.config.architecture == "bigram":
            return
        if self.config.parallel_residual:
            yield (
                '<p class="note">Attention and feed-forward read the same input, each through a norm of its own, and '
                "one sum takes both. Such blocks are pre-norm: there is no other picture.</p>"
            )
            return
        actual = next(iter(self.variants))
        for variant, (graph, _) in self.variants.items():
            note = NOTES[variant]
            if variant != actual:
                extra = estimate_cost(graph.config).parameters - estimate_cost(self.config).parameters
                change = (
                    f"{abs(extra):,} {'more' if extra > 0 else 'fewer'} parameters"
                    if extra
                    else "the same number of parameters"
                )
                why = ", because a pre-norm stack ends with a norm of its own" if extra else ""
                note += (
                    f" This model is {actual}-norm; the picture shows what it would look like with {variant}-norm: "
                    f"it would have {change}{why}."
                )
            yield f'<p class="note" data-variant="{variant}">{text(note)}</p>'

    @cached_property
    def probe(self) -> GradientProbe | None:
        """The gradients of a fresh model, which take a second to measure; None for a model without blocks."""
        return None if self.config.architecture == "bigram" else probe_gradients(self.config)

    def _dropout(self) -> str:
        config = self.config
        if config.architecture == "bigram":
            return ""
        rates = {
            "the embedding, before the first block": config.dropout,
            "each sublayer's output, before the residual sum": config.dropout,
            "the attention weights": config.attention_dropout,
            "inside the feed-forward, before its last matrix": config.feedforward_dropout,
        }
        shown = {name: f"{rate:g}" if rate else "none" for name, rate in rates.items()}
        rows = "".join(f'<tr><th scope="row">{name}</th><td>{rate}</td></tr>' for name, rate in shown.items())
        return (
            "<h2>Dropout</h2><table><caption>Probability that a number is dropped in training</caption>"
            '<thead><tr><th scope="col">Dropped</th><th scope="col">Rate</th></tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )


_SIZES = (
    "Shapes are those of one text that fills the context. Parameters and FLOPs are those of all blocks together; FLOPs "
    "are the products with matrices, as in <code>clearhead describe</code>. A fused kernel never holds the scores and "
    "the attention weights, whose sizes are counted here."
)


def _radios(name: str, legend: str, values: dict[str, str], checked: str) -> str:
    inputs = "".join(
        f'<label><input type="radio" name="{name}" value="{value}"{" checked" if value == checked else ""}> '
        f"{text(shown)}</label>"
        for value, shown in values.items()
    )
    return f"<fieldset><legend>{legend}</legend>{inputs}</fieldset>"


def _asset(name: str) -> str:
    return files("clearhead.inspection.architecture").joinpath(name).read_text(encoding="utf-8")
