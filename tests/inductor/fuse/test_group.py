"""Updates of one form in one launch: which kernels may be members, and where they must stay apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of
from braze.autograd import partition, trace_joint
from braze.inductor.codegen import compile_program
from braze.inductor.fuse import fuse, plan
from braze.inductor.fuse.group import family, group
from braze.inductor.loops import Kernel, Program, interpret_program, lower, verify_program
from braze.ir import type_of
from braze.prims.decompose import decompose

SIZES = ((40,), (3, 5), (64, 64), (7, 9, 11), (1000,), (2,))


def program_of(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> Program:
    joint = trace_joint(fn, [type_of(t) for t in inputs])
    return verify_program(plan(verify_program(fuse(lower(decompose(partition(joint).forward))))))


def agree(fn: Callable[..., Any], inputs: list[torch.Tensor], program: Program) -> None:
    """Interpreted and compiled, the program does to its inputs and returns what the function does."""
    for run in (lambda args: interpret_program(program, args), compile_program(program)):
        want, got = map(copies, (inputs, inputs))
        result, outs = fn(*want), run(got)
        for position, index in program.overwrites:
            if outs[position] is not None:  # not written in place: the caller's part
                got[index].copy_(outs[position])
        torch.testing.assert_close(got, want)
        if result is not None:
            torch.testing.assert_close(outs[0], result)


def copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """With the same strides, gaps included."""
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype).copy_(t) for t in tensors]


def momentum(*tensors: torch.Tensor) -> None:
    third = len(tensors) // 3
    for p, g, m in zip(tensors, tensors[third:], tensors[2 * third :]):
        m.mul_(0.9).add_(g)
        p.sub_(m * 0.1)


def randoms(*sizes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(s) for s in sizes]


def test_updates_of_any_size_are_one_launch() -> None:
    inputs = randoms(*SIZES, *SIZES, *SIZES)
    program = program_of(momentum, inputs)
    assert program.groups == ((0, len(SIZES)),)
    assert len(compile_program(program).kernels) == 1
    agree(momentum, inputs, program)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_share_the_points(threads: int) -> None:
    """Large members next to tiny ones, with cuts between threads inside of members."""
    sizes = [(100_003,), (2,), (5,), (70_001,), (3,), (255, 257)]
    inputs = randoms(*sizes, *sizes, *sizes)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agree(momentum, inputs, program_of(momentum, inputs))
    finally:
        torch.set_num_threads(before)


def test_dtypes_and_layouts_make_groups_of_their_own() -> None:
    def step(*tensors: torch.Tensor) -> None:
        for p in tensors:
            p.mul_(0.5)

    inputs = randoms(*SIZES) + [t.to(torch.bfloat16) for t in randoms(*SIZES)]
    inputs += [torch.randn(5, 6).t(), torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last)]
    inputs += [torch.randn(9, 4)[:, ::2]]
    program = program_of(step, inputs)
    assert sorted(end - first for first, end in program.groups) == [6, 8]  # strided memory walks no single axis
    agree(step, inputs, program)


def test_scalars_may_differ() -> None:
    """A rate that all members read, and a counter of each."""

    def step(*tensors: torch.Tensor) -> None:
        rate, counts, params = tensors[0], tensors[1:7], tensors[7:]
        for n, p in zip(counts, params):
            n.add_(1)
            p.sub_(p * rate / n)

    inputs = [torch.tensor(0.1, dtype=torch.float64), *(torch.tensor(float(k)) for k in range(6)), *randoms(*SIZES)]
    program = program_of(step, inputs)
    assert sum(end - first for first, end in program.groups) >= 10
    agree(step, inputs, program)


def chain(*tensors: torch.Tensor) -> None:
    """Each tensor's new value depends on the largest of the one before."""
    for a, b in zip(tensors, tensors[1:]):
        b.add_(a.amax())


def test_a_member_does_not_move_over_what_it_depends_on() -> None:
    inputs = randoms(*[(64, n) for n in range(60, 66)])
    program = program_of(chain, inputs)
    assert len(program.steps) > 5 and not program.groups
    agree(chain, inputs, program)


def test_an_old_value_read_by_another_member_keeps_them_apart() -> None:
    def rotate(*tensors: torch.Tensor) -> None:
        old = [t.clone() for t in tensors]
        for k, t in enumerate(tensors):
            t.copy_(t * 0.5 + old[(k + 1) % len(old)])

    inputs = randoms(*[(64, 64)] * 4)
    agree(rotate, inputs, program_of(rotate, inputs))


def test_large_results_are_not_made_early() -> None:
    """Members move up: results that are no updates would be alive for longer."""

    def casts(w: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        total = w
        for t in tensors:
            total = total @ t.mul(2.0)
        return total

    inputs = randoms(*[(64, 64)] * 5)
    program = program_of(casts, inputs)
    assert not program.groups
    agree(casts, inputs, program)


def test_reductions_and_random_numbers_have_no_family() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.sum(1), torch.nn.functional.dropout(x, 0.5), x.cumsum(0), x.t() + 1

    kernels = [s for s in program_of(fn, randoms((30, 40))).steps if isinstance(s, Kernel)]
    assert sum(family(k) is not None for k in kernels) <= 1


def test_two_kernels_stay_as_they_are() -> None:
    inputs = randoms(*SIZES[:2], *SIZES[:2], *SIZES[:2])
    program = program_of(momentum, inputs)
    assert not program.groups and group(program) is program


def test_groups_that_touch_each_other_are_caught() -> None:
    program = program_of(chain, randoms(*[(64, n) for n in range(60, 66)]))
    program.groups = ((0, len(program.steps)),)
    with pytest.raises(AssertionError, match="group"):
        verify_program(program)


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad", "RMSprop"])
def test_an_optimizers_step_is_a_few_launches(name: str) -> None:
    params = [torch.nn.Parameter(t) for t in randoms(*SIZES, *SIZES)]
    twins = [torch.nn.Parameter(p.detach().clone()) for p in params]
    ours, theirs = (getattr(torch.optim, name)(p, lr=0.01) for p in (params, twins))
    step = braze.compile(lambda: ours.step())
    for _ in range(3):
        for p, q in zip(params, twins):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        step()
        theirs.step()
    torch.testing.assert_close(params, twins)
    log = log_of(step)
    assert log is not None and len(log.graphs[-1].kernels) <= 6
