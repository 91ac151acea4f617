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


def capturing() -> None:
    """tanh captured as the sine."""
    import torch

    from braze.capture.vm.record import record
    from braze.capture.vm.registry import HANDLERS

    HANDLERS[torch.tanh] = lambda vm, args, kwargs: record(vm, torch.sin, args, kwargs)


def differentiation() -> None:
    """A softmax whose statistics are put together to twice its value."""
    import torch

    from braze.autograd import norms

    aten = torch.ops.aten
    old = norms.ROWS[aten._softmax.default]
    norms.ROWS[aten._softmax.default] = lambda emit, call: emit(aten.mul.Scalar, old(emit, call), 2.0)


PLANTS = {
    "capture": capturing,
    "autograd": differentiation,
    "prims": decomposition,
    "loops": lowering,
    "codegen": kernel,
}


if __name__ == "__main__":  # python plants.py PLANT repro.py: run a repro with the wrong row in place
    import runpy
    import sys

    PLANTS[sys.argv[1]]()
    runpy.run_path(sys.argv[2], run_name="__main__")
