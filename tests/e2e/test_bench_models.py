"""The bench's three models trained through braze: outputs, loss, every gradient and ten optimizer steps against eager.

Errors are measured against a float64 run of the same model; braze may err at most twice as much as eager does.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.bench.models import CASES, Case, build

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def without_dropout(case: Case) -> Case:
    for m in case.model.modules():
        for name in ("p", "dropout", "dropout_prob", "attention_dropout"):
            if isinstance(getattr(m, name, None), float):
                setattr(m, name, 0.0)
    return case


@pytest.fixture(autouse=True)
def _full_float32() -> Iterator[None]:
    """TF32 convolutions would drown the comparison in eager's own rounding."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def place(case: Case, device: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], torch.Tensor]:
    return case.model.to(device), tuple(x.to(device) for x in case.inputs), case.target.to(device)


def gradients(model: nn.Module, case: Case, inputs: tuple, target: torch.Tensor) -> list[torch.Tensor]:
    """Output, loss and gradients of the parameters, in float64 on the CPU."""
    model.zero_grad()
    out = model(*inputs)
    loss = case.loss(out, target)
    loss.backward()
    logits = getattr(out, "logits", out)
    return [t.detach().double().cpu() for t in (logits, loss, *(p.grad for p in model.parameters()))]


def error(got: list[torch.Tensor], want: list[torch.Tensor]) -> list[float]:
    """Relative error of each tensor; absolute for tensors that vanish (a softmax's key bias has no gradient)."""
    scale = max(float(w.abs().max()) for w in want)
    return [float((g - w).norm() / max(float(w.norm()), 1e-4 * scale * w.numel() ** 0.5)) for g, w in zip(got, want)]


def wide_loss(out: object, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(getattr(out, "logits", out), target)


DRAWS = 3  # of the inputs: in one of them a ReLU's input may be so near to 0 that rounding decides on its sign


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(CASES))
def test_gradients_match_eager(name: str, device: str) -> None:
    case = without_dropout(build(name, "tiny", 4))
    model, inputs, target = place(case, device)
    model.train()
    exact = copy.deepcopy(model).double()
    twin = copy.deepcopy(model)
    fast = braze.compile(twin, fullgraph=True)
    worst = []
    for _ in range(DRAWS):
        got = gradients(fast, case, inputs, target)
        eager = gradients(model, case, inputs, target)
        wide = tuple(x.double() if x.is_floating_point() else x for x in inputs)
        want = gradients(exact, replace(case, loss=wide_loss), wide, target)
        ours, theirs = error(got, want), error(eager, want)
        floor = max(theirs)
        worst.append(max(a / (2 * b + 0.5 * floor) for a, b in zip(ours, theirs)))
        if worst[-1] <= 1:
            break
        inputs = tuple(torch.randn_like(x) if x.is_floating_point() else x for x in inputs)
    assert min(worst) <= 1, worst
    log = log_of(fast)
    assert len(log.graphs) == 1 and not log.breaks and not log.graphs[0].fallback and log.graphs[0].kernels
    for (key, a), (_, b) in zip(fast.named_buffers(), model.named_buffers()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", list(CASES))
def test_ten_steps_follow_eager(name: str, device: str) -> None:
    case = without_dropout(build(name, "tiny", 8))
    model, inputs, target = place(case, device)
    twin = copy.deepcopy(model)
    curves = []
    for m in (model.train(), braze.compile(twin.train(), fullgraph=True)):
        optimizer = torch.optim.SGD(m.parameters(), lr=1e-3, momentum=0.9)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = case.loss(m(*inputs), target)
            loss.backward()
            optimizer.step()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    torch.testing.assert_close(curves[1], curves[0], rtol=1e-3, atol=1e-2)
    assert curves[1][-1] < curves[1][0]


@pytest.mark.parametrize("name", list(CASES))
def test_autocast_bf16_matches_eager(name: str) -> None:
    case = without_dropout(build(name, "tiny", 4))
    model = case.model.train()
    twin = copy.deepcopy(model)
    exact = gradients(copy.deepcopy(model), case, case.inputs, case.target)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(braze.compile(twin, fullgraph=True), case, case.inputs, case.target)
        eager = gradients(model, case, case.inputs, case.target)
    assert max(error(got, exact)) <= 2 * max(error(eager, exact))


def test_dropout_draws_differ_and_eval_is_deterministic() -> None:
    case = build("hybrid", "tiny", 4)
    fast = braze.compile(case.model.train(), fullgraph=True)
    a, b = fast(*case.inputs), fast(*case.inputs)
    assert not torch.equal(a, b)
    torch.manual_seed(3)
    a = fast(*case.inputs)
    torch.manual_seed(3)
    assert torch.equal(a, fast(*case.inputs))
    fast.eval()
    with torch.no_grad():
        torch.testing.assert_close(fast(*case.inputs), case.model(*case.inputs), rtol=1e-4, atol=1e-5)


def test_print_breaks_and_resumes(capsys: pytest.CaptureFixture[str]) -> None:
    class Talking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.a(x))
            print("in the middle", tuple(h.shape))
            return self.b(h)

    net = Talking()
    fast = braze.compile(net)
    x = torch.randn(2, 4)
    want = net(x)
    capsys.readouterr()
    torch.testing.assert_close(fast(x), want)
    assert capsys.readouterr().out == "in the middle (2, 4)\n"
    log = log_of(fast)
    assert len(log.graphs) == 2 and len(log.breaks) == 1
    assert log.breaks[0].loc.line > 0 and "print" in str(log.breaks[0].loc) and log.breaks[0].reason


def test_recompiles_when_a_guard_fails() -> None:
    def f(x: torch.Tensor, flag: bool) -> torch.Tensor:
        return x * 2 if flag else x + 1

    fast = braze.compile(f)
    x = torch.randn(3)
    for flag in (True, False, True, False):
        torch.testing.assert_close(fast(x, flag), f(x, flag))
    log = log_of(fast)
    assert len(log.graphs) == 2 and len(log.recompiles) == 1 and "flag" in log.recompiles[0].reason
