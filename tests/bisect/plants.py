"""Wrong rows planted into the tables: one for each stage that can have one, for the whole process."""

from __future__ import annotations

from typing import Any


def decomposition() -> None:
    """gelu at twice its value."""
    from braze.prims import registry

    old = registry.DECOMPOSITIONS["gelu"].fn

    def wrong(b: Any, self: Any, approximate: str = "none") -> Any:
        return b.mul(old(b, self, approximate), 2.0)

    registry.DECOMPOSITIONS["gelu"] = registry.Row(wrong)
    registry._FOUND.clear()


def lowering() -> None:
    """A row-wise maximum that takes the minimum."""
    from braze.inductor.loops.rules import RULES
    from braze.ir import Node
    from braze.prims import PRIMS

    old = RULES["amax"]

    def wrong(state: Any, node: Any) -> Any:
        return old(state, Node(node.name, node.op, PRIMS["amin"], node.args, node.kwargs, node.val, node.loc))

    RULES["amax"] = wrong


def kernel() -> None:
    """LLVM code for tanh that negates it."""
    from braze.inductor.codegen import llvm_ops, program

    old = llvm_ops.OPS["tanh"]
    llvm_ops.OPS["tanh"] = lambda s, x: llvm_ops.OPS["neg"](s, old(s, x))
    program._EMITTED.clear()


PLANTS = {"prims": decomposition, "loops": lowering, "codegen": kernel}


if __name__ == "__main__":  # python plants.py PLANT repro.py: run a repro with the wrong row in place
    import runpy
    import sys

    PLANTS[sys.argv[1]]()
    runpy.run_path(sys.argv[2], run_name="__main__")
