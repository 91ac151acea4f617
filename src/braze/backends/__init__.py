"""Backends: a captured graph of torch calls goes in, a callable comes out.

``eager`` runs the running example as the torch calls that capture saw; ``aot_eager`` runs its forward and backward
ATen graphs call by call; ``inductor`` compiles both to kernels; ``nvfuser`` gives parts of both to nvFuser; a user's
backend gets it as a ``torch.fx.GraphModule``.
"""

from . import aot, inductor, nvfuser
from .registry import GraphBackend, Request, list_backends, lookup, register_backend, unavailable_backends

__all__ = [
    "GraphBackend",
    "Request",
    "aot",
    "inductor",
    "list_backends",
    "lookup",
    "nvfuser",
    "register_backend",
    "unavailable_backends",
]
