"""An optimizer's updates in few launches: which kernels share one, that each member gets its own memory and sizes, and
that it compiles for cards."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")

from triton_interpreter import Interpreter
from triton_simulated import captured, simulate_steps

from braze.autograd import partition, trace_joint
from braze.inductor.codegen.host import HostWriter, adjacent
from braze.inductor.codegen.program import kernel_order
from braze.inductor.codegen.triton_group import emit_groups
from braze.inductor.fuse import fuse, plan
from braze.inductor.fuse.contract import contract
from braze.inductor.loops import Kernel, Program, lower, verify_program
from braze.ir import type_of
from braze.prims.decompose import decompose
from braze.runtime.cuda_compile import Pool, request
from braze.runtime.cuda_group import TritonGroup

Network, CUDA = captured.Network, captured.CUDA
SIZES = ((40,), (7, 9, 16), (64, 64), (48,), (1000,), (3, 5), (31,), (64, 64), (2,), (4096, 2))


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """After its first step, which makes the state."""
    out = torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, nesterov=True, foreach=True)
    for p in parameters:
        out.state[p]["momentum_buffer"] = torch.zeros_like(p)
    return out


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1, foreach=True),
    "momentum": lambda p: momentum(list(p)),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3, amsgrad=True, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5, foreach=True),
}


def layers() -> nn.Sequential:
    sizes = (16, 48, 48, 48, 20, 20, 20, 8)
    return nn.Sequential(*(m for a, b in zip(sizes, sizes[1:]) for m in (nn.Linear(a, b), nn.Tanh())))


def mean_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(out, y)


def network() -> Any:
    return Network(layers(), (torch.randn(12, 16),), torch.randn(12, 8), mean_of, 12)


def programs_of(text: str) -> list[tuple[int, int]]:
    """(launches, kernels) of each call for groups."""
    notes = [line.partition("  # ")[2] for line in text.splitlines() if "_and_like(" in line]
    return [(int(n.split()[0]), int(n.split()[3])) for n in notes]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_a_few_launches(name: str, triton_run: Interpreter) -> None:
    case, steps = network(), 3
    with torch.device("meta"):
        ghost = network()
    model = copy.deepcopy(case.model)
    state = dict(ghost.model.named_parameters())
    values = {id(state[n]): p.detach() for n, p in model.named_parameters()}
    values |= {id(ghost.inputs[0]): case.inputs[0], id(ghost.target): case.target}
    parts = captured.whole_step(ghost, precision="tf32", make_optimizer=OPTIMIZERS[name])
    rate = OPTIMIZERS[name]([nn.Parameter(torch.zeros(1))]).defaults["lr"]
    losses, run = simulate_steps(parts, values, triton_run, steps, rate)
    ((launches, kernels),) = programs_of(run.source)
    assert launches == 1 and kernels == 7  # the weights; biases are updated where their gradients are summed
    exact = copy.deepcopy(case.model).double()
    own = OPTIMIZERS[name](exact.parameters())
    start = {n: p.detach().clone() for n, p in exact.named_parameters()}
    for found in losses:
        loss = mean_of(exact(case.inputs[0].double()), case.target.double())
        torch.testing.assert_close(found.double(), loss.detach(), rtol=1e-5, atol=1e-6)
        loss.backward()
        own.step()
        own.zero_grad()
    for n, p in model.named_parameters():
        want = dict(exact.named_parameters())[n].detach()
        assert (p.double() - want).norm() <= 5e-3 * (want - start[n]).norm(), n


def update(*tensors: torch.Tensor) -> None:
    """Momentum, with a scalar of its own for each parameter in one tensor."""
    *rest, rates = tensors
    third = len(rest) // 3
    for k, (p, g, m) in enumerate(zip(rest, rest[third:], rest[2 * third :])):
        m.mul_(0.9).add_(g)
        p.sub_(m * rates[k])


def program_of(inputs: list[torch.Tensor], fn: Callable[..., None] = update) -> Program:
    joint = trace_joint(fn, [type_of(t).with_(device=CUDA) for t in inputs])
    return verify_program(plan(verify_program(fuse(lower(decompose(partition(joint).forward))))))


def group_of(program: Program) -> tuple[TritonGroup, list[tuple[int, int]]]:
    writer = HostWriter(program, kernel_order)
    (call,) = programs_of(writer.write())
    (group,) = writer.groups.values()
    return group, [call]


def run(program: Program, inputs: list[torch.Tensor], triton_run: Interpreter) -> None:
    from triton_simulated import Simulated

    outs = Simulated(program, triton_run)(inputs)
    for position, index in program.overwrites:
        if outs[position] is not None:
            inputs[index].copy_(outs[position])


def tensors(place: Callable[[tuple[int, ...]], torch.Tensor] = torch.randn) -> list[torch.Tensor]:
    return [place(s) for _ in range(3) for s in SIZES] + [torch.rand(len(SIZES), dtype=torch.float64)]


def moved(by: int) -> Callable[[tuple[int, ...]], torch.Tensor]:
    """Tensors that begin ``by`` elements into their storage."""
    return lambda s: torch.randn(torch.Size(s).numel() + by)[by:].view(s)


@pytest.mark.parametrize("place", [torch.randn, moved(1), moved(2), moved(4)], ids=["aligned", "by 4", "by 8", "by 16"])
def test_values_at_any_address(place: Callable[[tuple[int, ...]], torch.Tensor], triton_run: Interpreter) -> None:
    inputs = tensors(place)
    if place is not torch.randn:
        inputs[2] = torch.randn(64, 64)  # one member's parameter is aligned where others are not
    program = program_of([torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in inputs])
    want = [t.clone() for t in inputs]
    update(*want)
    run(program, inputs, triton_run)
    for got, expected in zip(inputs, want):
        torch.testing.assert_close(got, expected)


def test_sizes_share_a_launch_by_their_divisor() -> None:
    group, calls = group_of(program_of(tensors()))
    assert calls == [(2, len(SIZES))]  # multiples of 16, whose accesses are wide, and others
    own = [math.prod(size) for size in SIZES]
    for odd in (False, True):
        (k,) = [k for k in group.mains if ("tl.multiple_of(size, 16)" in k.source) is not odd]
        assert k.programs() == sum(-(-n // k.launch.block("XBLOCK")) for n in own if bool(n % 16) is odd)
    assert group.entries == len(SIZES) * 4  # p, g, m and the rate: new values lie where the old ones do


def test_sums_and_transposes_in_groups(triton_run: Interpreter) -> None:
    """Members that fold partial sums, or read a gradient in another layout: one launch for those of equal sizes."""

    def folds(*xs: torch.Tensor) -> None:
        for k in range(10):
            p, part, w, g = xs[4 * k : 4 * k + 4]
            p.sub_(part.sum(0) * 0.1)
            w.sub_(g * 0.1)

    def inputs(n: int) -> list[torch.Tensor]:
        g = torch.randn(8, n, 3, 3).contiguous(memory_format=torch.channels_last)
        return [torch.randn(n), torch.randn(32, n), torch.randn(8, n, 3, 3), g]

    given = [t for n in (64, 64, 64, 64, 64, 64, 48, 48, 48, 50) for t in inputs(n)]
    program = program_of(given, folds)
    assert sorted(end - first for first, end in program.groups) == [3, 3, 6]  # sums of one size in pairs
    want = [t.clone() for t in given]
    folds(*want)
    run(program, given, triton_run)
    for got, expected in zip(given, want):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_groups_are_found_again_after_products_took_kernels() -> None:
    """Joining a product with what follows it moves steps, so that ranges of an earlier order would name others."""

    def step(x: torch.Tensor, w: torch.Tensor, *ps: torch.Tensor) -> torch.Tensor:
        out = torch.tanh(x @ w)
        for p, g in zip(ps[:4], ps[4:]):
            p.sub_(g * 0.1)
        return out

    given = [torch.randn(256, 256) for _ in range(2)] + [torch.randn(n) for n in (64, 32, 96, 160) for _ in range(2)]
    order = [given[0], given[1], *given[2::2], *given[3::2]]
    joint = trace_joint(step, [type_of(t.bfloat16() if t.dim() == 2 else t).with_(device=CUDA) for t in order])
    before = fuse(lower(decompose(partition(joint).forward)))
    after = verify_program(plan(contract(before)))
    assert len(after.steps) < len(before.steps)
    ((first, end),) = after.groups
    assert end - first == 4 and all(isinstance(s, Kernel) and not s.r for s in after.steps[first:end])


def test_updates_that_read_each_other_stay_apart() -> None:
    def chained(*ps: torch.Tensor) -> None:
        for p, q in zip(ps, ps[1:]):
            q.add_(p.sum() * 0.5)

    joint = trace_joint(chained, [type_of(torch.zeros(64)).with_(device=CUDA) for _ in range(5)])
    assert not plan(fuse(lower(decompose(partition(joint).forward)))).groups


def test_pointwise_convolutions_weights_are_written_in_place() -> None:
    """channels_last and contiguous are one memory for them: their strides differ in dims of one element."""

    def scaled(w: torch.Tensor, g: torch.Tensor) -> None:
        w.copy_(w.contiguous(memory_format=torch.channels_last) - g)

    w = torch.randn(8, 4, 1, 1)
    g = torch.randn(8, 4, 1, 1).contiguous(memory_format=torch.channels_last)
    joint = trace_joint(scaled, [type_of(t).with_(device=CUDA) for t in (w, g)])
    program = plan(fuse(lower(decompose(partition(joint).forward))))
    assert [program.outputs[o] for o, _ in program.overwrites] == [None]


@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx942"])
def test_groups_compile_for_cards(target: str) -> None:
    group, _ = group_of(program_of(tensors()))
    pool = Pool(2)
    try:
        for job, code in [(pool.submit(request(k, target)), k) for k in group.kernels]:
            answer, image = job.result(timeout=240)
            assert "error" not in answer, f"{answer['error']}\n{code.source}"
            assert image[:4] == b"\x7fELF"
        (wide,) = [k for k in group.mains if "tl.multiple_of(size, 16)" in k.source]
        if target == "cuda:90":
            text = pool.submit({**request(wide, target), "until": "ptx"}).result(timeout=240)[1].decode()
            assert text.count("ld.global.v4") >= 3 and text.count("st.global.v4") >= 2
    finally:
        pool.close()


def test_the_table_is_written_by_launches_of_few_arguments() -> None:
    """What a card takes as arguments of a launch is limited; so is what the launcher takes."""
    from braze.runtime.cuda_launch import MOST_ARGUMENTS

    many = [torch.randn(32) for _ in range(3 * 200)] + [torch.rand(200, dtype=torch.float64)]
    program = program_of(many)
    group, calls = group_of(program)
    assert calls == [(1, 200)] and len(group.fillers) == 2
    assert all(len(k.signature) + 2 <= min(MOST_ARGUMENTS, 4096 // 8) for k in group.kernels)
    assert [n for n, _ in adjacent(program, 0)] == [0]
    kernels = [s for s in program.steps if isinstance(s, Kernel)]
    assert emit_groups([kernels], {}).code.entries == 200 * 6  # without the plan's word on memory
