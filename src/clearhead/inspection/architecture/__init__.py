"""The architecture page: a graph made from a config, its layout, equations, source lines and the page of them all."""

from clearhead.lazy import attach

TYPE_CHECKING = False  # as `typing` has it, which takes a while to load
if TYPE_CHECKING:
    from clearhead.inspection.architecture.assembly import build_graph as build_graph
    from clearhead.inspection.architecture.graph import ArchitectureGraph as ArchitectureGraph
    from clearhead.inspection.architecture.marks import Mark as Mark
    from clearhead.inspection.architecture.page import ArchitectureReport as ArchitectureReport

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "assembly": ("build_graph",),
        "graph": ("ArchitectureGraph",),
        "marks": ("Mark",),
        "page": ("ArchitectureReport",),
    },
)
