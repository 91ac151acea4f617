"""What the partitioner saves and computes again, by the memory budget, on whole models."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

import braze
from braze.autograd import AotGraphs, Joint, budget_curve, partition, trace_joint
from braze.inductor.codegen.host import last_uses
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import Program, lower
from braze.ir import Graph, type_of
from braze.prims.decompose import decompose
from braze.prims.rng import philox_uniform
from braze.report.steps import memory_of

BUDGETS = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
HEAVY = {
    "mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward", "mkldnn_convolution",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward",
}  # fmt: skip


def transformer() -> tuple[nn.Module, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.1, batch_first=True, activation="gelu")
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(2, 8, 32)


def attention() -> tuple[nn.Module, torch.Tensor]:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (t.view(*x.shape[:2], 4, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
            y = nn.functional.scaled_dot_product_attention(q, k, v)
            return x + nn.functional.dropout(self.out(y.transpose(1, 2).flatten(2)), 0.2)

    return nn.Sequential(Attention(), Attention()), torch.randn(2, 8, 32)


def convnet() -> tuple[nn.Module, torch.Tensor]:
    def block(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.SiLU(), nn.Dropout(0.1))

    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(block(3, 8), block(8, 8), nn.MaxPool2d(2), block(8, 16), *head), torch.randn(2, 3, 8, 8)


MODELS = [transformer, attention, convnet]


def joint_of(make: Callable[[], tuple[nn.Module, torch.Tensor]]) -> Joint:
    torch.manual_seed(0)
    model, x = make()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def loss(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, dict(zip(state, values)), (x,)).square().mean()

    return trace_joint(loss, [type_of(t) for t in (x, *state.values())])


def heavy(*graphs: Graph) -> int:
    return sum(getattr(n.target, "_opname", "") in HEAVY for g in graphs for n in g.calls)


def draws(graph: Graph) -> int:
    return sum(n.target is philox_uniform for n in graph.calls)


def saved_bytes(aot: AotGraphs) -> int:
    assert aot.backward is not None
    pairs = zip(aot.backward.inputs, aot.signature.saved)
    return sum(n.val.nbytes for n, r in pairs if r.kind in ("extra", "result"))


@pytest.mark.parametrize("make", MODELS)
def test_library_calls_run_once_and_bytes_fall_with_the_budget(make: Callable[..., object]) -> None:
    joint = joint_of(make)  # type: ignore[arg-type]
    whole = heavy(joint.graph)
    assert whole >= 6
    parts = [partition(joint, b) for b in BUDGETS]
    for aot in parts:
        assert aot.backward is not None
        assert heavy(aot.forward, aot.backward) == whole
        assert draws(aot.forward) == draws(joint.graph)
    sizes = [saved_bytes(aot) for aot in parts]
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 0.95 * sizes[0]
    assert parts[0].backward is not None and draws(parts[0].backward) == 0  # drawn again only when told to save memory


@pytest.mark.parametrize("make", MODELS)
def test_numbers_that_are_drawn_again_are_the_same(make: Callable[..., object]) -> None:
    grads = []
    for budget in (1.0, 0.0):
        torch.manual_seed(0)
        model, x = make()  # type: ignore[misc]
        fast = braze.compile(model, options={"activation_memory_budget": budget}, backend="inductor")
        torch.manual_seed(1)
        fast(x).square().mean().backward()
        grads.append([p.grad for p in model.parameters()])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


def generated(seed: int) -> tuple[nn.Module, torch.Tensor]:
    """A residual network of random parts."""
    rng = random.Random(seed)
    width = rng.choice([24, 32])
    norms = [lambda: nn.LayerNorm(width), lambda: nn.RMSNorm(width), nn.Identity]
    bends = [nn.GELU, nn.ReLU, nn.SiLU, nn.Tanh]
    drop = rng.choice([0.0, 0.2])

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            wide = rng.choice([1, 2]) * width
            self.parts = nn.ModuleList(
                nn.Sequential(
                    rng.choice(norms)(),
                    nn.Linear(width, wide),
                    rng.choice(bends)(),
                    nn.Linear(wide, width),
                    nn.Dropout(drop),
                )  # fmt: skip
                for _ in range(rng.randint(6, 10))
            )
            self.after = nn.ModuleList(rng.choice(norms)() for _ in self.parts)
            self.kinds = [rng.choice("plain sum scaled".split()) for _ in self.parts]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part, after, kind in zip(self.parts, self.after, self.kinds):
                y = part(x)
                x = after({"plain": y, "sum": x + y, "scaled": x * torch.sigmoid(y) + y}[kind])
            return x

    return Net(), torch.randn(1024, width)


def planned(graph: Graph) -> Program:
    return plan(fuse(lower(decompose(graph))))


def planned_peak(aot: AotGraphs) -> int:
    """The most bytes that the buffer plans of forward and backward hold, with what is saved until its last use."""
    assert aot.backward is not None
    forward, backward = planned(aot.forward), planned(aot.backward)
    last = {b: n for n, buffers in last_uses(backward).items() for b in buffers}
    saved = [(b, b.type.nbytes) for b, r in zip(backward.inputs, aot.signature.saved) if r.kind == "extra"]
    held = [m.nbytes + sum(s for b, s in saved if last.get(b, -1) >= n) for n, m in enumerate(memory_of(backward))]
    return max(*held, *(m.nbytes for m in memory_of(forward)))


@pytest.mark.parametrize("seed", range(4))
def test_a_lower_budget_has_no_higher_peak(seed: int) -> None:
    """By the partitioner's estimate; the buffers that fusion then makes may differ from it."""
    joint = joint_of(lambda: generated(seed))
    curve = budget_curve(joint, BUDGETS)
    for of in (lambda p: p.saved, lambda p: p.peak):
        assert [of(p) for p in curve] == sorted(map(of, curve), reverse=True)
    peaks = [planned_peak(partition(joint, b)) for b in (1.0, 0.8, 0.6, 0.0)]
    assert all(b <= 1.2 * a for a, b in zip(peaks, peaks[1:])), peaks


def test_of_a_residual_stream_only_parts_are_computed_again() -> None:
    """Computed again from the first layer on, all of it would be alive at once: no gain."""

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for part in self.parts:
                x = torch.tanh(x + torch.tanh(part(x)))
            return x

    joint = joint_of(lambda: (Stream(), torch.randn(2048, 32)))
    peaks = [planned_peak(partition(joint, b)) for b in BUDGETS]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[-1] < 0.85 * peaks[0], peaks
