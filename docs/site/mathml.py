"""Formulas as MathML, which browsers draw themselves: no page loads MathJax from elsewhere."""

from typing import Any

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.application import Sphinx
from sphinx.util.logging import getLogger

logger = getLogger(__name__)


def visit_inline(writer: Any, node: nodes.math) -> None:
    _write(writer, node, as_block=False)


def visit_block(writer: Any, node: nodes.math_block) -> None:
    _write(writer, node, as_block=True)


def _write(writer: Any, node: nodes.Element, as_block: bool) -> None:
    try:
        writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logger.warning("no MathML for %r: %s", node.astext(), error, location=node)
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(visit_inline, None), block_renderers=(visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
