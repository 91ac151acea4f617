"""Whole small networks, forward and backward, through their generated GPU programs on the CPU, against float64 eager:
host text, Triton kernels in the interpreter, channels_last, memory reuse, autocast."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytest.importorskip("triton")
pytest.importorskip("transformers")
pytest.importorskip("torchvision")

from triton_interpreter import Interpreter
from triton_simulated import captured, simulate_steps, simulate_training

from braze.bench.models import Hybrid

Network, without_dropout = captured.Network, captured.without_dropout


class SmallResNet(nn.Module):
    """ResNet's parts: a strided stem of three channels, max pooling, bottlenecks with and without stride."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.resnet import Bottleneck

        self.conv, self.bn = nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16)
        wide = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.blocks = nn.Sequential(Bottleneck(16, 8, 2, wide), Bottleneck(32, 8))
        self.fc = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn(self.conv(x))), 3, 2, 1)
        out: torch.Tensor = self.fc(F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))
        return out


def classify(out: Any, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(getattr(out, "logits", out).float(), y)


def resnet() -> Network:
    return Network(SmallResNet(), (torch.randn(4, 3, 32, 32),), torch.arange(4), classify, 4)


def hybrid() -> Network:
    model = Hybrid(4, d=32, depth=1, heads=2, classes=10)
    return Network(model, (torch.randn(2, 3, 32, 32),), torch.arange(2), classify, 2)


def bert() -> Network:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=99, num_labels=3, **sizes))  # type: ignore[arg-type]
    ids = torch.zeros(2, 12, dtype=torch.int64) if torch.get_default_device().type == "meta" else None
    return Network(model, (torch.randint(0, 99, (2, 12)) if ids is None else ids,), torch.arange(2), classify, 2)


NETWORKS: dict[str, Callable[[], Network]] = {"resnet": resnet, "hybrid": hybrid, "bert": bert}


def eager(case: Network, autocast: bool) -> dict[str, torch.Tensor]:
    """Loss, gradients and statistics after one step."""
    model = copy.deepcopy(case.model)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        loss = case.loss(model(*case.inputs), case.target)
    loss.backward()
    return {"loss": loss.detach(), **dict(model.named_buffers()), **{n: p.grad for n, p in model.named_parameters()}}


def on_meta(make: Callable[[], Network], case: Network) -> tuple[Network, nn.Module, dict[int, torch.Tensor]]:
    """(the network on meta tensors, a copy of the case's model, what each meta tensor stands for: by id, that copy's
    parameters and buffers and the case's inputs)."""
    with torch.device("meta"):
        ghost = make()
    without_dropout(ghost.model)
    model = copy.deepcopy(case.model)
    names = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    state = {**dict(ghost.model.named_parameters()), **dict(ghost.model.named_buffers())}
    values = {id(state[n]): t.detach() for n, t in names.items()}
    values |= {id(m): t for m, t in zip((*ghost.inputs, ghost.target), (*case.inputs, case.target))}
    return ghost, model, values


def simulated(make: Callable[[], Network], case: Network, precision: str, triton_run: Interpreter) -> dict[str, Any]:
    """The same of the generated programs."""
    ghost, model, values = on_meta(make, case)
    state = dict(ghost.model.named_parameters())
    loss, grads, runs = simulate_training(captured.training(ghost, precision=precision), values, triton_run)
    assert all(r.calls > 10 for r in runs)
    assert set(grads) == {id(state[n]) for n, _ in model.named_parameters()}
    return {
        "loss": loss,
        **dict(model.named_buffers()),
        **{n: grads[id(state[n])] for n, _ in model.named_parameters()},
    }


def errors(got: dict[str, Any], want: dict[str, torch.Tensor]) -> dict[str, float]:
    """The relative error of each result; what is next to nothing (a key's bias has no gradient) counts by others."""
    size = {n: float(t.double().norm()) for n, t in want.items()}
    least = 1e-3 * max(size[n] for n in want)
    return {n: float((got[n].double() - want[n].double()).norm()) / max(size[n], least) for n in want}


SLOW = pytest.mark.slow
CASES = [
    pytest.param("resnet", "tf32"),
    pytest.param("bert", "bf16"),
    *(
        pytest.param(n, p, marks=SLOW)
        for n, p in (("bert", "tf32"), ("hybrid", "tf32"), ("hybrid", "bf16"), ("resnet", "bf16"))
    ),
]


@pytest.mark.parametrize("name, precision", CASES)
def test_training(name: str, precision: str, triton_run: Interpreter) -> None:
    case = NETWORKS[name]()
    without_dropout(case.model)
    got = simulated(NETWORKS[name], case, precision, triton_run)
    own = eager(case, precision == "bf16")
    inputs = tuple(x.double() if x.is_floating_point() else x for x in case.inputs)
    want = eager(Network(case.model.double(), inputs, case.target, case.loss, 0), False)
    mine, theirs = errors(got, want), errors(own, want)
    rounding = 2e-3 if precision == "bf16" else 2e-6
    bad = {n: (e, theirs[n]) for n, e in mine.items() if e > 3 * theirs[n] + rounding}
    assert not bad
    if precision == "bf16":  # where single values may be unlucky, all together are not
        assert sum(mine.values()) <= 1.5 * sum(theirs.values())


@pytest.mark.parametrize("name", ["bert", pytest.param("resnet", marks=SLOW), pytest.param("hybrid", marks=SLOW)])
def test_whole_steps(name: str, triton_run: Interpreter) -> None:
    """Forward, loss, backward and AdamW as one program, several times: parameters move as float64's do in eager."""
    case, rate, steps = NETWORKS[name](), 1e-3, 3
    without_dropout(case.model)
    ghost, model, values = on_meta(NETWORKS[name], case)
    losses, run = simulate_steps(captured.whole_step(ghost, precision="tf32"), values, triton_run, steps, rate)
    assert run.calls > 20 * steps
    inputs = tuple(x.double() if x.is_floating_point() else x for x in case.inputs)
    exact = Network(copy.deepcopy(case.model).double(), inputs, case.target, case.loss, 0)
    own, want = trained(case, rate, steps), trained(exact, rate, steps)
    torch.testing.assert_close(torch.stack(losses).double(), want["loss"], rtol=1e-4, atol=1e-4)
    start = dict(case.model.named_parameters())
    for n, p in model.named_parameters():
        moved, rounding = (want[n] - start[n]).norm(), (own[n].double() - want[n]).norm()
        if moved > 1e-2 * rate * p.numel() ** 0.5:  # a key's bias has no gradient
            assert (p.double() - want[n]).norm() <= 3 * rounding + 1e-2 * moved, n


def trained(case: Network, rate: float, steps: int) -> dict[str, torch.Tensor]:
    """Parameters, statistics and losses after some steps in eager."""
    model, losses = copy.deepcopy(case.model), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, foreach=True)
    for _ in range(steps):
        loss = case.loss(model(*case.inputs), case.target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().double())
    return {"loss": torch.stack(losses), **{n: t.detach() for n, t in model.state_dict().items()}}
