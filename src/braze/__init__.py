"""braze: a compiler for PyTorch programs. ``braze.compile(model)`` where you wrote ``torch.compile(model)``."""

from . import bench
from .api import compile  # noqa: A004
from .backends import list_backends, register_backend
from .capture.directives import allow_in_graph, assume_constant, disable, graph_break, is_compiling
from .capture.frames import reset
from .capture.markers import mark_dynamic, mark_static
from .config import Config
from .custom import primitive
from .errors import BrazeError, CompileWarning, Unsupported
from .report import explain

__version__ = "0.1.0"
__all__ = [
    "BrazeError",
    "CompileWarning",
    "Config",
    "Unsupported",
    "allow_in_graph",
    "assume_constant",
    "bench",
    "compile",
    "disable",
    "explain",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "primitive",
    "register_backend",
    "reset",
]
