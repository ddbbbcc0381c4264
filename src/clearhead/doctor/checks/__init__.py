"""The checks, in the order in which they are made: what a failure would falsify comes after it."""

from clearhead.doctor.checks.base import Check
from clearhead.doctor.checks.basics import deterministic, finite, rows
from clearhead.doctor.checks.dependence.again import again
from clearhead.doctor.checks.dependence.dependencies import dependencies
from clearhead.doctor.checks.dependence.lengths import lengths
from clearhead.doctor.checks.dependence.paths import paths, stress
from clearhead.doctor.checks.dependence.positions import positions
from clearhead.doctor.checks.dependence.precision import precision
from clearhead.doctor.checks.dependence.sources import sources
from clearhead.doctor.checks.generation.caches import caches
from clearhead.doctor.checks.generation.generations import generations
from clearhead.doctor.checks.loss.decoder_targets import decoder_targets
from clearhead.doctor.checks.loss.losses import losses
from clearhead.doctor.checks.loss.methods import loss_methods
from clearhead.doctor.checks.loss.of_inputs import losses_of_inputs
from clearhead.doctor.checks.loss.tasks import tasks
from clearhead.doctor.checks.memory import memory
from clearhead.doctor.checks.padding.left_padding import left_padding
from clearhead.doctor.checks.padding.padded_rows import padded_rows
from clearhead.doctor.checks.padding.paddings import paddings
from clearhead.doctor.checks.parts.attentions import attention
from clearhead.doctor.checks.parts.births import births
from clearhead.doctor.checks.parts.embeddings import embeddings
from clearhead.doctor.checks.parts.feedforwards import activations
from clearhead.doctor.checks.parts.gradients import fresh_loss, gradients
from clearhead.doctor.checks.parts.layouts import layouts
from clearhead.doctor.checks.parts.norms import norms
from clearhead.doctor.checks.parts.query_norms import query_norms
from clearhead.doctor.checks.parts.row_residuals import residuals_of_rows
from clearhead.doctor.checks.parts.slices import slices
from clearhead.doctor.checks.parts.storage import storage
from clearhead.doctor.checks.parts.streams import streams
from clearhead.doctor.checks.parts.sublayers import residuals

OF_MASKS = ("M01", "M02", "M03", "M04", "M05", "M06", "M08", "M10", "M17", "M18", "M19", "M20")
LEAKS = (*OF_MASKS, "A03", "A04", "A05", "F04", "F05", "N01", "N02", "S02")
DEPENDENCIES = (*LEAKS, "A12", "A13", "M07", "M14", "M16", "N04", "S03", "I06")
ROWS = ("A10", "P02", "N02", "M15")
PADDINGS = ("M07", "M08", "M11", "M12", "M13", "M14", "M15", "M20", "M22", "A10", "P02", "S01")
TARGETS = ("D01", "D02", "D03", "D04", "D05", "D12", "I06")
LOSSES = (*TARGETS, "L01", "L02", "L03", "L04", "L05", "L06", "L07", "L08", "L10", "L11")
AGAIN = tuple(dict.fromkeys((*DEPENDENCIES, *ROWS, *PADDINGS)))
BASE = ("finite", "deterministic", "rows")
SOUND = (*BASE, "layouts", "dependencies")

CHECKS = (
    Check("M14", "finite", ("M14", "M07", "M05", "M04", "A03", "R01"), finite),
    Check("I02", "storage", ("I01", "I02", "I05", "E01", "N08"), storage, ("finite",)),
    Check("A08", "deterministic", ("A08", "V01", "T09", "T08", "I05", "K06"), deterministic, ("finite",)),
    Check("T08", "memory", ("T08", "K06", "D18"), memory),
    Check("A05", "layouts", ("A04", "A05"), layouts, ("finite",)),
    Check("A10", "rows", ROWS, rows, ("finite", "deterministic", "memory", "layouts")),
    Check("N01", "norms", ("N01", "N02", "N06"), norms, ("finite", "deterministic")),
    Check("N12", "query norms", ("N12", "N05"), query_norms, ("finite",)),
    Check("A03", "attention", ("A01", "A02", "A03", "A07", "A09", "A14", "P13"), attention, ("finite", "layouts")),
    Check("M01", "dependencies", DEPENDENCIES, dependencies, (*BASE, "layouts", "norms")),
    Check(
        "S02",
        "sources",
        ("M12", "S01", "S02", "S03", "S04", "S06", "S09", "A12", "A13", "I06"),
        sources,
        (*BASE, "layouts"),
    ),
    Check("M21", "lengths", ("M21",), lengths, SOUND),
    Check("M02", "paths", LEAKS, paths, SOUND),
    Check("M08", "stress", ("M08",), stress, SOUND),
    Check("M15", "padded rows", ("M15", "M14"), padded_rows, (*BASE, "layouts", "norms")),
    Check("M11", "paddings", PADDINGS, paddings, (*BASE, "layouts", "norms")),
    Check("P04", "left padding", ("P04",), left_padding, (*SOUND, "paddings"), of_tokens=True),
    Check("P01", "positions", ("P01", "P05", "P06", "P08", "S07"), positions, (*SOUND, "sources")),
    Check("E07", "embeddings", ("E03", "E07", "P03", "P09", "P10"), embeddings, ("finite", "deterministic")),
    Check("K01", "caches", ("K01", "K02", "K03", "K04", "K06", "M16", "S01", "T08"), caches, SOUND, of_tokens=True),
    Check("K11", "generations", ("K06", "K08", "K11", "T08"), generations, (*SOUND, "caches"), of_tokens=True),
    Check("D02", "losses", LOSSES, losses, ("finite", "deterministic"), of_tokens=True),
    Check("D02", "loss methods", LOSSES, loss_methods, ("finite", "deterministic"), of_tokens=True),
    Check("D02", "losses of inputs", TARGETS, losses_of_inputs, ("finite", "deterministic"), of_tokens=True),
    Check(
        "D02",
        "decoder targets",
        ("D01", "D02", "D05", "D18"),
        decoder_targets,
        ("finite", "deterministic"),
        of_tokens=True,
    ),
    Check("I06", "gradients", ("I06", "A13", "N03", "N12", "P01", "S06"), gradients, ("finite", "deterministic")),
    Check("I06", "slices", ("I06",), slices, ("finite", "deterministic", "gradients")),
    Check("I04", "births", ("I04",), births, ("finite", "deterministic"), of_tokens=True),
    Check("N04", "residuals", ("N04", "N05"), residuals, ("finite", "deterministic"), of_tokens=True),
    Check("N04", "residuals of rows", ("N04", "N05"), residuals_of_rows, ("finite", "deterministic")),
    Check("N05", "streams", ("N03", "N04", "N05", "N10"), streams, ("finite", "layouts", "residuals")),
    Check("F01", "activations", ("F01",), activations, ("finite",)),
    Check("E04", "fresh loss", ("E04",), fresh_loss, ("finite",), of_tokens=True),
    Check("M01", "again", AGAIN, again, SOUND, "deep", of_tokens=True),
    Check("R03", "precision", ("R03", "M09"), precision, SOUND, "deep", of_tokens=True),
    Check("W01", "tasks", ("W01", "W02"), tasks, SOUND, "deep", of_tokens=True),
)
