"""Whole models: values, gradients and buffers against eager, with float64 to tell rounding from error."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from autograd_harness import compile_program
from torch.func import functional_call

from braze.autograd import partition, trace_joint
from braze.autograd.choose import nbytes
from braze.ir import type_of


class Model:
    """A module as a function of flat tensors: parameters, buffers, inputs; gives the loss."""

    def __init__(
        self, module: nn.Module, xs: list[torch.Tensor], loss: Callable[[Any], torch.Tensor], amp: bool
    ) -> None:
        self.module, self.loss, self.amp, self.xs = module, loss, amp, xs
        self.names = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
        self.state = [*module.parameters(), *module.buffers()]

    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        k = len(self.names)
        with torch.autocast("cpu", torch.bfloat16) if self.amp else contextlib.nullcontext():
            return self.loss(functional_call(self.module, dict(zip(self.names, args[:k])), args[k:]))

    def inputs(self, wide: bool = False) -> list[torch.Tensor]:
        out = [t.detach().clone().requires_grad_(t.requires_grad) for t in self.state] + [x.clone() for x in self.xs]
        if wide:
            out = [t.detach().double().requires_grad_(t.requires_grad) if t.is_floating_point() else t for t in out]
        return out


def mean_square(out: Any) -> torch.Tensor:
    return getattr(out, "logits", out).float().pow(2).mean()


def mean_square_wide(out: Any) -> torch.Tensor:
    return getattr(out, "logits", out).pow(2).mean()


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got.double() - want).norm() / (want.norm() + 1e-12)).item()


def check_model(module: nn.Module, *xs: torch.Tensor, amp: bool = False, budget: float = 1.0) -> Any:
    """Errors of the gradients against float64, and that they are at most twice eager's."""
    model = Model(module, list(xs), mean_square_wide, amp)
    ours, eager, wide = model.inputs(), model.inputs(), model.inputs(wide=True)
    f, aot = compile_program(model, ours, budget)
    (loss,) = f(*ours)
    loss.backward()
    want = model(*eager)
    want.backward()
    model.amp = False
    model(*wide).backward()
    assert loss.item() == pytest.approx(want.item(), rel=2e-2 if amp else 1e-4)
    mine, theirs = [], []
    for a, b, c in zip(ours, eager, wide):
        if b.requires_grad:
            assert (a.grad is None) == (b.grad is None)
            if b.grad is not None:
                assert a.grad.dtype == b.grad.dtype and a.grad.stride() == b.grad.stride()
                mine.append(error(a.grad, c.grad))
                theirs.append(error(b.grad, c.grad))
        else:
            torch.testing.assert_close(a, b, rtol=1e-2 if amp else 1e-4, atol=1e-2 if amp else 1e-5)
    assert statistics.median(mine) <= 2 * statistics.median(theirs) + 1e-7
    # gradients that are zero but for rounding (a bias before a norm) have no meaningful relative error
    assert max(m / max(t, 1e-6) for m, t in zip(mine, theirs)) < 8 or amp
    return aot


def encoder_layer(**kw: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, activation=F.gelu, batch_first=True, **kw)


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


CASES: dict[str, Callable[[], tuple[nn.Module, list[torch.Tensor]]]] = {
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 4)), [torch.randn(16, 8)]),
    "convnet": lambda: (convnet(), [torch.randn(4, 3, 16, 16)]),
    "convnet eval": lambda: (convnet().eval(), [torch.randn(4, 3, 16, 16)]),
    "convnet channels_last": lambda: (
        convnet().to(memory_format=torch.channels_last),
        [torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)],
    ),
    "encoder": lambda: (encoder_layer(norm_first=True), [torch.randn(2, 10, 32)]),
    "encoder post norm": lambda: (encoder_layer(), [torch.randn(2, 10, 32)]),
    "lstm cell": lambda: (LSTMStep(), [torch.randn(4, 8)]),
}


class LSTMStep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(4, 16)
        for _ in range(3):
            h, c = self.cell(x, (h, c))
        return h + c


@pytest.mark.parametrize("name", CASES)
def test_model(name: str) -> None:
    torch.manual_seed(0)
    module, xs = CASES[name]()
    check_model(module, *xs)


@pytest.mark.parametrize("name", ["mlp", "convnet", "encoder"])
def test_autocast(name: str) -> None:
    torch.manual_seed(0)
    module, xs = CASES[name]()
    check_model(module, *xs, amp=True)


def test_ambient_autocast_and_shared_weight() -> None:
    """A weight used twice is cast once, whether autocast is entered inside or outside."""
    w = torch.randn(8, 8, requires_grad=True)
    x = torch.randn(4, 8)

    def fn(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.linear(F.linear(x, w).relu(), w).sum()

    with torch.autocast("cpu", torch.bfloat16):
        f, aot = compile_program(fn, [w, x])
        want = fn(w, x)
    casts = [
        n
        for n in aot.forward.calls
        if n.target is torch.ops.aten._to_copy.default and n.args[0] is aot.forward.inputs[0]
    ]
    assert len(casts) == 1
    (out,) = f(w, x)
    assert out.dtype == want.dtype
    torch.testing.assert_close(out, want)
    (g,) = torch.autograd.grad(out, w)
    (h,) = torch.autograd.grad(want, w)
    torch.testing.assert_close(g, h, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("budget", [0.5, 0.05])
@pytest.mark.parametrize("name", ["convnet", "encoder"])
def test_budget(name: str, budget: float) -> None:
    """Values at any budget. Networks this small have a higher peak when they save less, and so may save as much; bytes
    that fall are in test_budget.py."""
    torch.manual_seed(0)
    module, xs = CASES[name]()
    full, less = check_model(module, *xs), check_model(module, *xs, budget=budget)
    assert saved_bytes(less) <= saved_bytes(full)


def saved_bytes(aot: Any) -> int:
    pairs = zip(aot.backward.inputs, aot.signature.saved)
    return sum(nbytes(n) for n, r in pairs if r.kind != "input")


def eager_saved_bytes(model: Model, inputs: list[torch.Tensor]) -> int:
    """Bytes of the storages that eager keeps for the backward, inputs apart."""
    seen = {}
    own = {x.untyped_storage()._cdata for x in inputs}

    def pack(t: torch.Tensor) -> torch.Tensor:
        seen[t.untyped_storage()._cdata] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        keep = model(*inputs)
    assert keep.requires_grad
    return sum(n for s, n in seen.items() if s not in own)


def test_saves_less_than_eager() -> None:
    """At least 20% under eager, at sizes where activations dominate."""
    torch.manual_seed(0)
    cases = [
        (encoder_layer(norm_first=True), torch.randn(8, 64, 32)),
        (convnet(), torch.randn(8, 3, 32, 32)),
    ]
    for module, x in cases:
        model = Model(module, [x], mean_square, False)
        aot = partition(trace_joint(model, [type_of(t) for t in model.inputs()]))
        assert saved_bytes(aot) <= 0.8 * eager_saved_bytes(model, model.inputs())


def test_resnet18() -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    aot = check_model(torchvision.models.resnet18(), torch.randn(2, 3, 64, 64))
    assert len(aot.signature.mutated) == 60  # 20 norms: mean, variance, counter


@pytest.mark.slow
def test_resnet50() -> None:
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    check_model(torchvision.models.resnet50(), torch.randn(4, 3, 96, 96))


def bert(**kw: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    off = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 2}
    return transformers.BertForSequenceClassification(transformers.BertConfig(**off, **kw))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_small_bert(attention: str) -> None:
    torch.manual_seed(0)
    small = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    check_model(bert(vocab_size=100, attn_implementation=attention, **small), torch.randint(0, 100, (2, 16)))


@pytest.mark.slow
def test_bert_base_in_time() -> None:
    """BERT-base's joint trace in under 0.35 s and its partition in under 0.15 s (with room for a busy machine)."""
    torch.manual_seed(0)
    model = Model(bert(), [torch.randint(0, 30000, (2, 16))], mean_square, False)
    types = [type_of(t) for t in model.inputs()]
    times = []
    for _ in range(4):
        start = time.process_time()
        joint = trace_joint(model, types)
        middle = time.process_time()
        partition(joint)
        times.append((middle - start, time.process_time() - middle))
    assert min(t for t, _ in times) < 0.35 and min(t for _, t in times) < 0.15
