"""Loop nests over buffers: what kernels are before anyone decides which of them become one.

Takes a primitive graph (``prims.decompose``), gives a :class:`Program`: kernels (``ir``) and vendor calls in order.

* ``lower(graph)``: one kernel a computing primitive; views have become index expressions.
* ``interpret_program(program, inputs)``: the reference meaning, in vectorised torch.
* ``verify_program(program)``: the invariants, checked; ``canonical(kernel)``: kernels up to renaming;
  ``print(to_text(program))``: as runnable Python.

The running example at this stage, before fusion (``relu`` then the row maximum of softmax)::

    mm = aten.mm(x, w)
    for i0 in range(64):
        for i1 in range(256):
            maximum[i0, i1] = max(mm[i0, i1], 0)
    for i0 in range(64):
        amax[i0] = reduce max over i1 < 256 of maximum[i0, i1]
    ...
"""

from .build import compute_dtype, fresh_type
from .canonical import Canonical, canonical, canonical_all, flattened
from .interpret import buffers_in, interpret_program, run_kernel
from .ir import (
    REDUCTIONS,
    Axis,
    Buffer,
    Compute,
    Const,
    Extern,
    Index,
    Instr,
    Kernel,
    Load,
    Program,
    Reduce,
    Step,
    Store,
    Strided,
    Value,
    operands,
)
from .lower import allocated, lower
from .printer import kernel_text, load_text, point_level, to_text
from .verify import verify_kernel, verify_program

__all__ = [
    "REDUCTIONS",
    "Axis",
    "Buffer",
    "Canonical",
    "Compute",
    "Const",
    "Extern",
    "Index",
    "Instr",
    "Kernel",
    "Load",
    "Program",
    "Reduce",
    "Step",
    "Store",
    "Strided",
    "Value",
    "allocated",
    "buffers_in",
    "canonical",
    "canonical_all",
    "flattened",
    "compute_dtype",
    "fresh_type",
    "interpret_program",
    "kernel_text",
    "load_text",
    "lower",
    "operands",
    "point_level",
    "run_kernel",
    "to_text",
    "verify_kernel",
    "verify_program",
]
