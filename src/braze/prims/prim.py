"""What a primitive is: one row of the table, callable on real tensors (its reference meaning).

A graph after the ``prims`` stage calls ``Prim`` objects, and ATen ``OpOverload``s that stay opaque (vendor work:
matrix products, convolutions, attention, sorts).  Conventions:

* Elementwise primitives take tensors of ONE shape, or Python scalars: broadcasting is an explicit ``expand`` and type
  promotion an explicit ``convert`` before them.  16-bit floats compute in float32 and round at the end.
* ``shape(*args, **kwargs)`` maps the arguments' vals to the result's ``TensorType`` (contiguous unless it is a view).
* View primitives may alias their input; nothing in a primitive graph mutates anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FAMILIES = (
    "elementwise",
    "reduction",
    "view",
    "indexing",
    "creation",
    "rng",
    "scan",
    "sort",
    "contraction",
    "collective",
    "opaque",
)


@dataclass(frozen=True, eq=False)
class Prim:
    """A primitive: ``name``, ``family``, its shape rule, and ``reference`` on real tensors."""

    name: str
    family: str
    shape: Callable[..., Any]
    reference: Callable[..., Any]
    doc: str = ""

    def __post_init__(self) -> None:
        assert self.family in FAMILIES, self.family
        assert self.name not in PRIMS, f"primitive {self.name} is defined twice"
        PRIMS[self.name] = self

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def qualified_name(self) -> str:
        """How a printed graph spells it."""
        return f"prims.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.reference(*args, **kwargs)

    def __repr__(self) -> str:
        return self.qualified_name


PRIMS: dict[str, Prim] = {}
