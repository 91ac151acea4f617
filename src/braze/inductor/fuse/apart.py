"""Why kernels that read each other's results are not one: the reasons that legality gave, as text to read.

sum_1 | mul_2: one reads the other's result at another point
"""

from __future__ import annotations

from braze.inductor.loops import Program

from .fuse import fuse
from .ops import Analysis
from .vertical import Log


def apart(program: Program) -> str:
    """A line for each pair that fusion tried and left apart, by the names of what they compute. Takes a lowered
    program, before fusion."""
    log: Log = []
    fuse(program, log=log)
    names = {op.id: ", ".join(b.name for b in op.writes) or "a vendor call" for op in Analysis(program).ops}
    return "\n".join(dict.fromkeys(f"{names[a]} | {names[b]}: {why}" for a, b, why in log)) + "\n"
