"""In-place changes of sizes, ``out=``, conjugate views and transforms of torch.func, compiled against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

X = torch.randn(4, 5)


def compare(fn: Any, *inputs: torch.Tensor, inside: bool = True) -> None:
    """Outputs, inputs afterwards, sizes and strides as eager's; ``inside``: in one graph, without falling back."""
    mine, theirs = ([x.clone() for x in inputs] for _ in range(2))
    fast = braze.compile(fn)
    got, want = fast(*mine), fn(*theirs)
    pairs = list(zip(mine, theirs))
    pairs += list(zip(got, want)) if isinstance(want, tuple) else [(got, want)]
    for g, w in pairs:
        torch.testing.assert_close(g, w)
        assert (g.shape, g.stride(), g.is_conj()) == (w.shape, w.stride(), w.is_conj())
    log = log_of(fast)
    assert log is not None
    if inside:
        assert len(log.graphs) == 1 and not log.breaks and not log.graphs[0].fallback, (log.breaks, log.graphs)


def test_an_input_is_reshaped() -> None:
    def f(x: Any) -> Any:
        row = x[0]
        x.t_()
        x.unsqueeze_(0)
        x.mul_(2)
        return x, row, x[0]

    compare(f, X)
    y = X.clone()
    assert braze.compile(lambda x: x.t_())(y) is y and y.shape == (5, 4)


def test_the_backward_keeps_what_an_input_was() -> None:
    def f(x: Any, w: Any) -> Any:
        y = (x * 1) * w
        x.t_()
        return y.sum() + x.sum()

    w = torch.randn(4, 5, requires_grad=True)
    grads = [torch.autograd.grad(g(X.clone(), w), w)[0] for g in (f, braze.compile(f))]
    torch.testing.assert_close(*grads)


def test_resize() -> None:
    def shrink(x: Any) -> Any:
        y = x * 2
        z = y.view(-1)
        y.resize_(2, 5)
        y.add_(1)
        return y, z

    compare(shrink, X, inside=False)  # the resized tensor and a view of all of it
    compare(lambda x: shrink(x)[0], X)
    compare(lambda x: x.resize_(2, 5) + 1, X)
    compare(lambda x: x[:0].view(-1).resize_(3) * 2, X, inside=False)  # shows memory that the view did not


@pytest.mark.parametrize("size", [(0,), (4, 5)])
def test_out_of_a_new_tensor(size: tuple[int, ...]) -> None:
    def f(x: Any) -> Any:
        y = torch.empty(size)
        torch.add(x, 1, out=y)
        return y.mul_(2)

    compare(f, X)


def test_out_of_an_input() -> None:
    compare(lambda x, y: torch.add(x, 1, out=y), X, torch.zeros(4, 5))
    compare(lambda x, y: torch.add(x, 1, out=y), X, torch.zeros(0), inside=False)
    compare(lambda x, y: torch.kron(x, x, out=y), X, torch.zeros(16, 25))
    compare(lambda x, y: torch.arange(2, 7, out=y) + x, X, torch.zeros(5))
    rank = torch.zeros((), dtype=torch.int64)
    compare(
        lambda x, y: torch.linalg.matrix_rank(x, out=y), X, rank, inside=False
    )  # not written through the dispatcher


def test_what_is_written_to_a_product_is_in_it() -> None:
    def f(x: Any, w: Any) -> Any:
        y = torch.matmul(x, w)
        y.add_(1)
        return y, y.view(-1)

    compare(f, torch.randn(2, 3, 5), torch.randn(5, 4))


def test_memory_outside_of_an_input() -> None:
    x = torch.arange(8.0)[4:]
    torch.testing.assert_close(braze.compile(lambda x: x.as_strided((8,), (1,), 0) * 2)(x), torch.arange(8.0) * 2)


def test_conjugate_views() -> None:
    z = torch.randn(3, 4, dtype=torch.complex64)
    compare(lambda x: x.conj(), z)
    compare(lambda x: (x * 2).conj().t(), z)
    compare(lambda x: torch.fft.ifft(x), torch.randn(8))
    compare(lambda x: x + 1, z.conj(), inside=False)
    x = z.clone().requires_grad_()
    head = torch.randn(3, 4, dtype=torch.complex64)
    grads = [
        torch.autograd.grad(f(x), x, head)[0]
        for f in (lambda x: (x * 1j).conj(), braze.compile(lambda x: (x * 1j).conj()))
    ]
    torch.testing.assert_close(*grads)


def test_transforms_of_torch_func() -> None:
    """A frame that runs inside of a transform sees wrapped tensors, which look like plain ones."""
    v = torch.randn(4, 5)
    for f in (
        lambda x: torch.func.grad(lambda t: (t * t).sum())(x) + 1,
        lambda x: torch.vmap(lambda t: t.sum() * t)(x) + 1,
        lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1] + 1,
        lambda x: torch.func.jacrev(lambda t: t.sin())(x[0]) + 1,
        lambda x: torch.vmap(torch.func.grad(lambda t: (t.sin() ** 3).sum()))(x) + 1,
    ):
        compare(f, v, inside=False)
    cube = braze.compile(lambda t: (t.sin() ** 3).sum())
    cube(v)
    torch.testing.assert_close(torch.func.grad(cube)(v), 3 * v.sin() ** 2 * v.cos())
    row = braze.compile(lambda t: t.sin() ** 3)
    row(v[0])
    torch.testing.assert_close(torch.vmap(row)(v), v.sin() ** 3)


def test_a_class_of_the_traced_function() -> None:
    def f(x: Any, apply: bool) -> Any:
        class Triple(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x * 3

            @staticmethod
            def backward(ctx: Any, grad: Any) -> Any:
                return grad * 3

        y = x.sin()
        return Triple.apply(y) if apply else y

    fast = braze.compile(f)
    torch.testing.assert_close(fast(X, False), X.sin())
    log = log_of(fast)
    assert log is not None and not log.breaks
    torch.testing.assert_close(fast(X, True), 3 * X.sin())


def test_a_class_whose_methods_close_over_what_comes_later() -> None:
    def f(x: Any) -> Any:
        class Sums:
            def total(self) -> Any:
                return y

            @property
            def more(self) -> Any:
                return y + 1

        y = x.sum()
        return Sums, x * 2

    fast = braze.compile(f, fullgraph=True)
    sums, twice = fast(X)
    torch.testing.assert_close((sums().total(), sums().more, twice), (X.sum(), X.sum() + 1, X * 2))
    masked = braze.compile(lambda x, m: torch.masked.sum(x, 0, mask=m), fullgraph=True)  # which defines a Function
    torch.testing.assert_close(masked(X, X > 0), torch.masked.sum(X, 0, mask=X > 0))


def test_a_new_value_and_a_result_are_two_programs() -> None:
    """The same operators, once into the input and once into a result: not one entry of the disk cache."""
    x = torch.randn(37)
    add = braze.compile(lambda x: x.add_(3))
    torch.testing.assert_close(add(x.clone()), x + 3)
    torch.testing.assert_close(braze.compile(lambda x: x + 3)(x), x + 3)


def test_overlapping_memory() -> None:
    def through_windows(x: Any) -> Any:
        x.unfold(0, 2, 1)[..., :1].mul_(2)
        return x

    compare(through_windows, X, inside=False)
    compare(lambda x: torch._foreach_add_([x, x[0]], 1.0)[0], X, inside=False)
    windows = braze.compile(lambda x: (x * 2).unfold(0, 2, 1))(X)
    assert windows.stride() == (5, 1, 5)  # as in eager, its elements share memory


def test_places_in_the_storage() -> None:
    """A view of another place in a storage is the same input."""
    memory = torch.arange(24.0)
    first = braze.compile(lambda x: x.as_strided((2,), (1,)))
    assert [first(memory[i : i + 4]).tolist() for i in (4, 10)] == [[4.0, 5.0], [10.0, 11.0]]
    given = braze.compile(lambda x: x.as_strided((2,), (1,), 5) * 1)
    assert [given(memory[i : i + 4]).tolist() for i in (4, 10)] == [[5.0, 6.0]] * 2

    def diagonal(x: Any) -> Any:
        x.t()[1:].as_strided((2,), (5,)).add_(1)
        return x * 2

    fast = braze.compile(diagonal)
    for i in (0, 8):
        got, want = memory.clone(), memory.clone()
        torch.testing.assert_close(fast(got[i : i + 8].view(2, 4)), diagonal(want[i : i + 8].view(2, 4)))
        torch.testing.assert_close(got, want)


def test_a_write_through_complex_and_transposed_views() -> None:
    def f(x: Any) -> Any:
        y = torch.view_as_real(torch.view_as_complex(x.view(-1, 2)))
        y.t_()
        y.copy_(y.flip(0))
        return x, y

    compare(f, torch.randn(4, 4))


def test_the_first_part_of_what_is_made() -> None:
    """Views of less than their memory that begin where it does."""
    compare(lambda x: torch.diag(x), torch.randn(10))
    compare(lambda x: (x * 2)[:2], X)
    compare(lambda x: torch.mm((x * 2)[:2], x.t()), X)
    compare(lambda x: torch.block_diag(x, x[:1]), X)
