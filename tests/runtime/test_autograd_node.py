"""The glue around compiled graphs, with hand-written forwards, backwards and signatures."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from braze.errors import Unsupported
from braze.ir import MutatedInput, OutputSpec, SavedRef, Signature, ViewStep, symbol, tensor_type
from braze.runtime.autograd_node import make_autograd_callable

T = tensor_type((2, 3))
RESULT = OutputSpec("result", 0, (), True)
VIEW = ViewStep(torch.ops.aten.view.default, ([-1],))


def square(saved="input", **kw):
    """y = x * x * w as a compiled pair: saves both inputs, or an extra."""
    calls = []

    def forward(x, w):
        calls.append("forward")
        return (x * x * w, *([x * 2] if saved == "extra" else []))

    def backward(a, w, g):
        calls.append("backward")
        return (g * w * (a if saved == "extra" else 2 * a), None)

    first = SavedRef("extra", 0) if saved == "extra" else SavedRef("input", 0)
    sig = Signature(2, 1, (RESULT,), (True,), (), (first, SavedRef("input", 1)), (T,), (True, False), **kw)
    return forward, backward, sig, calls


def make(saved="input", fallback=None):
    forward, backward, sig, calls = square(saved)
    return make_autograd_callable(forward, lambda: (calls.append("compile"), backward)[1], sig, fallback), calls


def data():
    torch.manual_seed(0)
    return torch.randn(2, 3, requires_grad=True), torch.randn(2, 3)


@pytest.mark.parametrize("saved", ["input", "extra"])
def test_gradient(saved):
    f, calls = make(saved)
    x, w = data()
    (y,) = f(x, w)
    assert calls == ["forward"] and y.requires_grad
    y.sum().backward()
    assert calls == ["forward", "compile", "backward"]
    torch.testing.assert_close(x.grad, 2 * x.detach() * w)
    f(x, w)[0].sum().backward()
    assert calls.count("compile") == 1
    torch.testing.assert_close(x.grad, 4 * x.detach() * w)


def test_without_grad_the_function_is_skipped():
    f, calls = make()
    x, w = data()
    with torch.no_grad():
        (y,) = f(x, w)
    assert not y.requires_grad and y.grad_fn is None
    torch.testing.assert_close(y, x * x * w)


def test_results_without_grad_do_not_build_a_graph():
    """Library calls inside must not be recorded by eager autograd, also in grad mode."""
    sig = Signature(1, 1, (OutputSpec("result", 0),), (False,), (), (), (), (False,))
    f = make_autograd_callable(lambda x: (x * 2,), None, sig)
    (y,) = f(torch.ones(2, requires_grad=True))
    assert not y.requires_grad and torch.is_grad_enabled()


def test_retain_graph_and_freeing():
    f, _ = make("extra")
    x, w = data()
    (y,) = f(x, w)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, 4 * x.detach() * w)
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()


def test_extras_are_freed_after_the_backward():
    alive = []

    def forward(x):
        extra = torch.ones(10)
        alive.append(weakref.ref(extra))
        return x * 2, extra

    sig = Signature(1, 1, (RESULT,), (True,), (), (SavedRef("extra", 0),), (T,), (True,))
    f = make_autograd_callable(forward, lambda: lambda e, g: (g * 2,), sig)
    (y,) = f(torch.ones(2, 3, requires_grad=True))
    assert alive[0]() is not None
    y.sum().backward()
    gc.collect()
    assert alive[0]() is None


def test_boxed_functions_own_their_arguments():
    dead = []

    def backward(args):
        extra, g = args
        args.clear()
        probe = weakref.ref(extra)
        del extra
        dead.append(probe() is None)
        return (g * 2,)

    backward.boxed = True

    def forward(args):
        (x,) = args
        args.clear()
        return x * 2, torch.ones(10)

    forward.boxed = True
    sig = Signature(1, 1, (RESULT,), (True,), (), (SavedRef("extra", 0),), (T,), (True,))
    f = make_autograd_callable(forward, lambda: backward, sig)
    x = torch.ones(2, 3, requires_grad=True)
    f(x)[0].sum().backward()
    assert dead == [True] and torch.equal(x.grad, torch.full((2, 3), 2.0))


@pytest.mark.parametrize("kind", ["input", "result"])
def test_overwriting_what_is_saved_is_an_error(kind):
    saved = (SavedRef(kind, 0),)
    sig = Signature(1, 1, (RESULT,), (True,), (), saved, (T,), (True,))
    f = make_autograd_callable(lambda x: (x.exp(),), lambda: lambda s, g: (g * s,), sig)
    x = torch.ones(2, 3, requires_grad=True) * 1
    (y,) = f(x)
    with torch.no_grad():
        (x if kind == "input" else y).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_watched_results():
    """An extra that shares memory with a result: overwriting the result must be an error, not a wrong gradient."""

    def forward(x):
        e = x.exp()
        return e.view(-1), e

    sig = Signature(1, 1, (RESULT,), (True,), (), (SavedRef("extra", 0),), (tensor_type((6,)),), (True,), watched=(0,))
    f = make_autograd_callable(forward, lambda: lambda e, g: (g.view(2, 3) * e,), sig)
    x = torch.ones(2, 3, requires_grad=True)
    (y,) = f(x)
    y.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_results_may_be_overwritten_in_place():
    """A view that comes out of the program must not count as a view of a custom function."""
    sig = Signature(1, 1, (RESULT,), (True,), (), (), (tensor_type((6,)),), (True,))
    f = make_autograd_callable(lambda x: ((x * 2).view(-1),), lambda: lambda g: (g.view(2, 3) * 2,), sig)
    x = torch.ones(2, 3, requires_grad=True)
    (y,) = f(x)
    y.mul_(3)
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((2, 3), 6.0))


def test_tangents_are_materialised_and_laid_out():
    seen = []

    def backward(g, h):
        seen.append((g, h))
        return (g + h,)

    outs = (RESULT, OutputSpec("result", 1, (), True))
    sig = Signature(1, 2, outs, (True, True), (), (), (T, T), (True,))
    f = make_autograd_callable(lambda x: (x * 1, x * 1), lambda: backward, sig)
    x = torch.ones(2, 3, requires_grad=True)
    y, z = f(x)
    z.backward(torch.arange(6.0).view(3, 2).t())
    g, h = seen[0]
    assert g.stride() == (3, 1) and not g.any()
    assert h.stride() == (3, 1) and torch.equal(h, torch.arange(6.0).view(3, 2).t())
    y, z = f(x)
    y.sum().backward()  # an expanded tangent
    assert seen[1][0].stride() == (3, 1) and seen[1][0].all()


def test_symbolic_tangents_take_this_calls_sizes():
    n = symbol("n", 2, 100)
    sig = Signature(1, 2, (RESULT, OutputSpec("result", 1, (), True)), (True, True), (), (),
                    (tensor_type((n, 3)), tensor_type((n, 3))), (True,))  # fmt: skip
    seen = []
    f = make_autograd_callable(lambda x: (x * 1, x * 1), lambda: lambda g, h: (seen.append(g), (h,))[1], sig)
    for k in (2, 5):
        x = torch.ones(k, 3, requires_grad=True)
        f(x)[1].sum().backward()
        assert seen[-1].shape == (k, 3)


def test_non_differentiable_results():
    outs = (RESULT, OutputSpec("result", 1), OutputSpec("const", value=7))
    sig = Signature(1, 2, outs, (True, False), (), (), (T,), (True,))
    f = make_autograd_callable(lambda x: (x * 2, x * 3), lambda: lambda g: (g * 2,), sig)
    y, z, c = f(torch.ones(2, 3, requires_grad=True))
    assert y.requires_grad and not z.requires_grad and c == 7


def test_quiet_and_dirty_mutation():
    outs = (OutputSpec("result", 0, (), True), OutputSpec("input", 1, (VIEW,), True))
    sig = Signature(
        3, 1, outs, (True,), (MutatedInput(1, True), MutatedInput(2, False)), (), (T, T), (True, True, False)
    )
    f = make_autograd_callable(lambda x, y, n: (x * 2, y * 3, n + 1), lambda: lambda g, h: (g * 2, h * 3, None), sig)
    leaf = torch.ones(2, 3, requires_grad=True)
    x, y, n = torch.ones(2, 3, requires_grad=True), leaf * 1, torch.zeros(())
    a, v = f(x, y, n)
    assert n == 1 and y._version > 0 and torch.equal(y, torch.full((2, 3), 3.0))
    assert v.data_ptr() == y.data_ptr() and v.shape == (6,) and v.requires_grad
    (a.sum() + v.sum() + y.sum()).backward()
    assert torch.equal(x.grad, torch.full((2, 3), 2.0)) and torch.equal(leaf.grad, torch.full((2, 3), 6.0))
    with pytest.raises(RuntimeError, match="leaf Variable"):
        f(x, torch.ones(2, 3, requires_grad=True), n)


def test_forward_that_writes_itself():
    sig = Signature(1, 1, (RESULT,), (False,), (MutatedInput(0, False),))

    def forward(x):
        y = x * 2
        x.add_(1)
        return y, None

    x = torch.zeros(2, 3)
    (y,) = make_autograd_callable(forward, None, sig)(x)
    assert not y.any() and x.all()


def test_symbolic_views():
    n = symbol("n", 2, 100)
    view = ViewStep(torch.ops.aten.view.default, ([n * 3],))
    outs = (OutputSpec("input", 0, (view,)), OutputSpec("const", value=n * 2))
    sig = Signature(1, 0, outs, (), sizes=(("n", 0, 0),))
    f = make_autograd_callable(lambda x: (), None, sig)
    for k in (2, 5):
        x = torch.zeros(k, 3)
        v, twice = f(x)
        assert twice == 2 * k and v.shape == (3 * k,) and v.data_ptr() == x.data_ptr()


def test_views_of_results_and_inputs():
    outs = (
        RESULT,
        OutputSpec("result", 0, (VIEW,), True),
        OutputSpec("input", 0, (VIEW,), True),
        OutputSpec("input", 0, (VIEW,), False),
        OutputSpec("input", 0, (), True),
        OutputSpec("result", 0, (ViewStep(torch.ops.aten.split.Tensor, (1,), (), 1),), True),
    )
    sig = Signature(1, 1, outs, (True,), (), (), (T,), (True,))
    f = make_autograd_callable(lambda x: (x * 2,), lambda: lambda g: (g * 2,), sig)
    x = torch.ones(2, 3, requires_grad=True)
    y, yv, xv, xd, same, part = f(x)
    assert same is x and xv.data_ptr() == x.data_ptr() and yv.data_ptr() == y.data_ptr()
    assert xv.requires_grad and not xd.requires_grad and part.shape == (1, 3)
    (yv.sum() + xv.sum() + part.sum()).backward()
    assert torch.equal(x.grad, torch.tensor([[3.0] * 3, [5.0] * 3]))


def test_double_backward():
    f, _ = make()
    x, w = data()
    (y,) = f(x, w)
    with pytest.raises(Unsupported, match="twice"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    f, _ = make(fallback=lambda x, w: (x * x * w,))
    (g,) = torch.autograd.grad(f(x, w)[0].sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h, 2 * w)


def test_saved_tensor_hooks_see_inputs():
    """Activation offloading works on what is saved as an input or result."""
    f, _ = make()
    x, w = data()
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(t), t)[1], lambda t: t):
        (y,) = f(x, w)
    assert len(packed) == 2
    y.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach() * w)
