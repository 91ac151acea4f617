"""The nvfuser backend against a double of nvfuser_direct: translation, partition, cache, forward and backward."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator

import nvfuser_double as double
import pytest
import torch
from torch import nn

import braze
from braze.api import log_of
from braze.backends import registry
from braze.backends.nvfuser import backend, definition, find_regions
from braze.ir import Graph, interpret, tensor_type
from braze.prims import PRIMS


@pytest.fixture(autouse=True)
def on_the_double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "nvfuser_direct", double)
    monkeypatch.setitem(registry._WHY_NOT, "nvfuser", lambda: "")
    monkeypatch.setattr(backend, "DEVICE", "cpu")
    monkeypatch.setenv("BRAZE_STRICT", "1")
    backend._fusions.clear()
    double.FusionDefinition.made.clear()
    yield
    backend._fusions.clear()


def made() -> list[double.FusionDefinition]:
    return double.FusionDefinition.made


def both(make: Callable[[], nn.Module], x: torch.Tensor, dtype: torch.dtype | None = None) -> tuple[nn.Module, list]:
    """Train one step with eager and with nvfuser; compare the loss and all gradients. The compiled model."""
    torch.manual_seed(0)
    plain = make()
    fast = braze.compile(copy.deepcopy(plain), backend="nvfuser", fullgraph=True)
    out = []
    for model in (plain, fast):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model(x).float().square().mean()
        loss.backward()
        out.append([loss, *(p.grad for p in model.parameters())])
    tolerance = dict(rtol=1e-4, atol=1e-5) if dtype is None else dict(rtol=5e-2, atol=5e-3)
    torch.testing.assert_close(out[1], out[0], **tolerance)
    return fast, out[1]


class Attention(nn.Module):
    """Softmax attention written out, with a mask and a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / 4
        n = x.shape[-2]
        mask = torch.ones(n, n, dtype=torch.bool).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        return x + self.out(scores.softmax(-1) @ v)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)), (8, 16)),
    "attention": (Attention, (2, 6, 16)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (2, 3, 8, 8),
    ),
    "dropout": (lambda: nn.Sequential(nn.Linear(16, 16), nn.SiLU(), nn.Dropout(0.0), nn.Softplus()), (4, 16)),
}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", list(MODELS))
def test_models_train_as_in_eager(name: str, dtype: torch.dtype | None) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(1)
    fast, _ = both(make, torch.randn(shape), dtype)
    assert made() and all(fd.executed for fd in made())
    record = log_of(fast).graphs[0]
    assert not record.fallback
    assert "fd.define_tensor" in record.levels["forward: nvfuser"] + record.levels["backward: nvfuser"]


def test_channels_last_keeps_its_layout() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.SiLU(), nn.Tanh())
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    model = model.to(memory_format=torch.channels_last)
    fast = braze.compile(model, backend="nvfuser", fullgraph=True)
    torch.testing.assert_close(fast(x), model(x), check_stride=True, rtol=1e-5, atol=1e-6)
    assert made()[0].recorded[-1] == "permute"


def test_equal_layers_share_a_fusion() -> None:
    def make() -> nn.Module:
        return nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)) for _ in range(4)])

    fast, _ = both(make, torch.randn(4, 16))
    kernels = [k for k in log_of(fast).graphs[0].kernels if k.startswith("nvfuser")]
    assert len(kernels) >= 8 and len(made()) < len(kernels)


def test_random_numbers_stay_with_braze() -> None:
    """A dropout's mask is a function of the saved seed; nvFuser's generator has other bits."""
    fast = braze.compile(nn.Sequential(nn.Dropout(0.5), nn.GELU()), backend="nvfuser", fullgraph=True)
    x = torch.ones(64, 64, requires_grad=True)
    torch.manual_seed(0)
    y = fast(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad != 0, y.detach() != 0)
    assert not any("uniform" in op for fd in made() for op in fd.recorded)


def test_a_fusion_that_fails_runs_in_eager(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("BRAZE_STRICT", "0")
    monkeypatch.setattr(double.FusionDefinition, "execute", lambda self, inputs: 1 / 0)
    model, x = MODELS["mlp"][0](), torch.randn(8, 16)
    fast = braze.compile(model, backend="nvfuser", fullgraph=True)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-4, atol=1e-5)
    assert "nvFuser cannot run nvfuser_0" in caplog.text and "fd.define_tensor" in caplog.text


def test_regions_do_not_depend_on_themselves() -> None:
    """x -> a -> matrix product -> c, with a -> c beside it: a and c are two regions."""
    g = Graph()
    t = tensor_type((4, 4))
    x = g.input("x", t)
    a = g.call(PRIMS["exp"], (g.call(PRIMS["neg"], (x,), val=t),), val=t)
    m = g.call(torch.ops.aten.mm.default, (a, a), val=t)
    c = g.call(PRIMS["add"], (g.call(PRIMS["tanh"], (m,), val=t), a), val=t)
    g.outputs = (c,)
    regions = find_regions(g, "cpu")
    assert [[n.target.name for n in r.nodes] for r in regions] == [["neg", "exp"], ["tanh", "add"]]
    assert list(regions[1].inputs) == [m, a]


SAMPLES = {
    torch.float32: (-1.5, 0.0, -0.0, 0.75, 2.0, float("inf"), float("nan"), -3.0),
    torch.bfloat16: (-1.5, 0.0, 0.75, 2.0, 100.0, -0.125, 1.0, -3.0),
    torch.int64: (-7, 0, 3, 5, 2, -1, 9, 4),
    torch.bool: (True, False, True, True, False, False, True, False),
}


def elementwise_cases() -> Iterator[tuple[str, torch.dtype]]:
    from braze.backends.nvfuser.rules import ELEMENTWISE

    for name, (_, dtypes) in ELEMENTWISE.items():
        for dtype in SAMPLES:
            if dtype in dtypes:
                yield name, dtype


@pytest.mark.parametrize("name, dtype", list(elementwise_cases()))
def test_elementwise_rules_mean_the_primitive(name: str, dtype: torch.dtype) -> None:
    prim = PRIMS[name]
    x = torch.tensor(SAMPLES[dtype], dtype=dtype)
    if dtype.is_floating_point and name in ("acosh", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "pow", "lgamma"):
        x = x.abs() + 1
    arity = {"where": 3, "clone": 1}.get(name) or (2 if _takes(prim, x, x) else 1)
    args = [x, x.flip(0), x.roll(3)][:arity]
    if name == "where":
        args[0] = torch.tensor(SAMPLES[torch.bool])
    want = prim(*args)
    g = Graph()
    nodes = [g.input(f"x{k}", tensor_type(a.shape, a.dtype)) for k, a in enumerate(args)]
    out = g.call(prim, tuple(nodes), val=tensor_type(want.shape, want.dtype))
    g.outputs = (out,)
    (got,) = backend.fusion_of(definition(g)).execute(args)
    assert got.dtype is want.dtype
    torch.testing.assert_close(got, want, equal_nan=True)
    torch.testing.assert_close(got, interpret(g, args)[0], equal_nan=True)


def _takes(prim: object, *args: torch.Tensor) -> bool:
    try:
        prim(*args)  # type: ignore[operator]
    except (TypeError, RuntimeError):
        return False
    return True


def test_without_nvfuser_the_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._WHY_NOT, "nvfuser", backend.why_not)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        ValueError, match="'nvfuser' is not available: nvFuser needs a CUDA device.*Available: aot_eager"
    ):
        braze.compile(nn.ReLU(), backend="nvfuser")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (6, 1))
    assert "7.0 (Volta) or later; this device has 6.1" in backend.why_not()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    backend._import_error.cache_clear()
    monkeypatch.setitem(sys.modules, "nvfuser_direct", None)
    assert "cannot be imported" in backend.why_not() and torch.__version__.split("+")[0] in backend.why_not()
    backend._import_error.cache_clear()
