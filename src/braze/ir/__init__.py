"""The shared bottom: symbolic integers, value types, the graph, its printer, interpreter and verifier.

Takes nothing of braze; every other package imports it.  The running example of all the package docstrings::

    def f(x, w):                       # x: f32[64, 256], w: f32[256, 256]
        h = torch.relu(x @ w)
        return torch.softmax(h, -1).sum()

As a graph it prints as the Python that it means (``print(graph)``), runs with ``interpret(graph, inputs)``, and is
checked by ``verify(graph)``.
"""

from .expr import (
    Expr,
    IntLike,
    Symbol,
    bounds,
    coefficient,
    evaluate,
    floordiv,
    known_eq,
    known_le,
    known_lt,
    mod,
    substitute,
    sym_max,
    sym_min,
    symbol,
    symbol_of,
    symbols,
    terms_of,
    to_str,
)
from .graph import Graph, Node, leaves, map_leaves, map_nodes, node_args, nodes_in, target_name
from .interpret import interpret
from .printer import load_python, spell_operator, to_python
from .signature import MutatedInput, OutputSpec, SavedRef, Signature, ViewStep
from .types import SHORT, Loc, TensorType, contiguous_strides, product, row_major, tensor_type, type_of
from .verify import verify

__all__ = [
    "SHORT",
    "Expr",
    "Graph",
    "IntLike",
    "Loc",
    "MutatedInput",
    "Node",
    "OutputSpec",
    "SavedRef",
    "Signature",
    "Symbol",
    "TensorType",
    "ViewStep",
    "bounds",
    "coefficient",
    "contiguous_strides",
    "evaluate",
    "floordiv",
    "interpret",
    "known_eq",
    "known_le",
    "known_lt",
    "leaves",
    "load_python",
    "map_leaves",
    "map_nodes",
    "mod",
    "node_args",
    "nodes_in",
    "product",
    "row_major",
    "spell_operator",
    "substitute",
    "sym_max",
    "sym_min",
    "symbol",
    "symbol_of",
    "symbols",
    "target_name",
    "tensor_type",
    "terms_of",
    "to_python",
    "to_str",
    "type_of",
    "verify",
]
