"""The public surface: arguments, errors, what a compiled module still is."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import pytest
import torch
from torch import nn

import braze
from braze.api import log_of


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        (dict(model=3), TypeError, "takes a function or an nn.Module, got int"),
        (dict(model=Net), TypeError, "compile its instance"),
        (dict(model=Net(), mode="fastest"), ValueError, "unknown mode 'fastest'. Available: default, reduce-overhead"),
        (dict(model=Net(), backend="inductr"), ValueError, "did you mean 'inductor'"),
        (dict(model=Net(), backend=3), ValueError, "backend must be a name or a callable"),
        (dict(model=Net(), mode="default", options={"verify": True}), ValueError, "mode or options, not both"),
        (dict(model=Net(), options={"nope": 1}), ValueError, "unknown option 'nope'"),
        (dict(model=Net(), dynamic="yes"), ValueError, "dynamic must be"),
        (dict(model=Net(), recompile_limit=0), ValueError, "recompile_limit must be a positive"),
        (dict(model=Net(), fulgraph=True), TypeError, "unexpected keyword argument 'fulgraph'"),
    ],
)
def test_bad_arguments(arguments: dict, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        braze.compile(**arguments)


def test_decorator_forms() -> None:
    @braze.compile
    def f(x: torch.Tensor) -> torch.Tensor:
        "Doc."
        return x + 1

    @braze.compile(backend="eager")
    def g(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    x = torch.ones(3)
    assert f.__doc__ == "Doc." and f.__name__ == "f"
    torch.testing.assert_close((f(x), g(x)), (x + 1, x + 1))


def test_every_argument_of_torch_compile_is_taken() -> None:
    """Or is missing for a reason that docs/migrating.md gives."""
    theirs, ours = (set(inspect.signature(f).parameters) for f in (torch.compile, braze.compile))
    assert theirs - ours <= {"dynamic_shapes"}
    fast = braze.compile(Net(), backend=None, name="a net", recompile_limit=2, isolate_recompiles=False)
    x = torch.randn(3, 4)
    torch.testing.assert_close(braze.compile()(fast)(x), fast(x))
    assert braze.explain(fast, quiet=True)(x).report.title == "a net"


def test_the_recompile_limit_of_one_call(caplog: pytest.LogCaptureFixture) -> None:
    def f(x: torch.Tensor, kind: str) -> torch.Tensor:
        return getattr(torch, kind)(x)

    fast = braze.compile(f, recompile_limit=2)
    x = torch.rand(3)
    for kind in ("sin", "cos", "exp", "tanh"):
        torch.testing.assert_close(fast(x, kind), getattr(torch, kind)(x))
    assert len(log_of(fast).graphs) == 2 and "it was compiled 2 times" in caplog.text
    assert "compiled too often and runs in eager" in str(braze.explain(fast, quiet=True)(x, "sin"))


def test_disable_returns_the_model() -> None:
    net = Net()
    assert braze.compile(net, disable=True) is net


def test_compiled_module_is_still_the_module() -> None:
    net = Net()
    fast = braze.compile(net)
    assert isinstance(fast, Net) and type(fast).__name__ == "Net"
    assert list(fast.state_dict()) == list(net.state_dict()) == ["a.weight", "a.bias", "b.weight", "b.bias"]
    assert fast.a is net.a
    fast.eval()
    assert not net.training
    x = torch.randn(3, 4)
    torch.testing.assert_close(fast(x), net(x))
    net.b = nn.Linear(8, 5)
    assert fast(x).shape == (3, 5)


def test_pickle_and_deepcopy() -> None:
    fast = braze.compile(Net())
    x = torch.randn(3, 4)
    want = fast(x)
    for twin in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        assert isinstance(twin, Net) and twin.a is not fast.a
        torch.testing.assert_close(twin(x), want)
        with torch.no_grad():
            twin.a.weight.zero_()
        torch.testing.assert_close(fast(x), want)


def test_shape_error_is_the_users_own() -> None:
    net = Net()
    fast = braze.compile(net)
    bad = torch.randn(3, 5)
    with pytest.raises(RuntimeError) as eager:
        net(bad)
    with pytest.raises(RuntimeError) as compiled:
        fast(bad)
    assert str(compiled.value) == str(eager.value)
    torch.testing.assert_close(fast(torch.ones(1, 4)), net(torch.ones(1, 4)))
    assert len(log_of(fast).graphs) == 1, "a call that raised does not keep the next one from compiling"


def test_device_without_code_generation() -> None:
    fast = braze.compile(Net().to("meta"))
    with pytest.raises(braze.Unsupported, match="generates code for cpu and cuda"):
        fast(torch.randn(3, 4, device="meta"))


def test_internal_failure_falls_back_with_one_warning() -> None:
    calls = []

    def broken(gm, inputs):
        calls.append(gm)
        raise RuntimeError("the backend is broken")

    net = Net()
    fast = braze.compile(net, backend=broken)
    x = torch.randn(3, 4)
    with pytest.warns(braze.CompileWarning, match="the backend is broken") as caught:
        torch.testing.assert_close(fast(x), net(x))
    assert len(caught) == 1 and len(calls) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(fast(x), net(x))
    with pytest.raises(RuntimeError, match="the backend is broken"):
        braze.compile(net, backend=broken, fullgraph=True)(x)


def test_custom_backend_gets_a_graph_module() -> None:
    seen = []

    def mine(gm, example_inputs):
        assert isinstance(gm, torch.fx.GraphModule) and all(isinstance(x, torch.Tensor) for x in example_inputs)
        seen.append([n.target for n in gm.graph.nodes if n.op.startswith("call")])
        return gm.forward

    net = Net()
    x = torch.randn(3, 4)
    torch.testing.assert_close(braze.compile(net, backend=mine)(x), net(x))
    assert len(seen) == 1 and len(seen[0]) == 3


def test_register_backend() -> None:
    @braze.register_backend(name="as_it_is")
    def backend(gm, example_inputs):
        return gm.forward

    assert "as_it_is" in braze.list_backends()
    torch.testing.assert_close(braze.compile(lambda x: x * 2, backend="as_it_is")(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="built-in"):
        braze.register_backend(backend, name="inductor")


def test_public_names() -> None:
    assert sorted(braze.__all__) == sorted(set(braze.__all__))
    for name in braze.__all__:
        assert getattr(braze, name) is not None
