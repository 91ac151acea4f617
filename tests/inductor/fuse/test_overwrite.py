"""Updates of inputs in place: where it is legal, and that the rest is left alone."""

from __future__ import annotations

import torch

from braze.autograd import partition, trace_joint
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import interpret_program, lower, verify_program
from braze.ir import type_of
from braze.prims.decompose import decompose


def test_new_values_of_inputs_are_written_into_them() -> None:
    """An update is in place where each point reads the old value only where it writes, and nobody reads it later."""

    def update(p: torch.Tensor, m: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        old = p.clone()
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)
        b.add_(g.sum(0))  # row by row of a reduction
        return old.flip(0) * 2

    joint = trace_joint(update, [type_of(torch.empty(s)) for s in ((8, 32), (8, 32), (8, 32), (32,))])
    program = plan(fuse(lower(decompose(partition(joint).forward))))
    verify_program(program)
    assert program.overwrites == ((1, 0), (2, 1), (3, 3))
    assert [x is None for x in program.outputs] == [False, True, True, True]
    inputs = [torch.randn(s) for s in ((8, 32), (8, 32), (8, 32), (32,))]
    want = [x.clone() for x in inputs]
    result = update(*want)
    (got, *_) = interpret_program(program, inputs)
    torch.testing.assert_close(got, result)
    torch.testing.assert_close(inputs, want)


def test_an_old_value_that_is_read_elsewhere_is_kept() -> None:
    def shift(p: torch.Tensor) -> torch.Tensor:
        p.copy_(torch.roll(p, 1, 0) + 1)
        return p * 2

    joint = trace_joint(shift, [type_of(torch.empty(8, 4))])
    program = plan(fuse(lower(decompose(partition(joint).forward))))
    verify_program(program)
    assert program.overwrites and not any(x is None for x in program.outputs)
