"""Which sizes and ints become symbolic, how marks change that, and what reports say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import braze
from braze.api import log_of
from braze.capture.markers import Mark, marks_of
from braze.capture.sizes import SizePolicy, follow
from braze.ir import symbol

R = torch.randn


def graphs(f: Any) -> int:
    log = log_of(f)
    assert log is not None
    return len(log.graphs)


def shapes(f: Any) -> list[str]:
    """The guards on sizes of the newest version."""
    return [g.strip() for g in f._braze_session.describe_guards() if "shape" in g or "stride" in g]


# ---- the policy


def test_the_second_size_is_symbolic() -> None:
    policy = SizePolicy()
    assert not any(c.symbolic for c in policy.sizes("x", torch.empty(8, 4)))
    policy.begin()
    assert [c.symbolic for c in policy.sizes("x", torch.empty(9, 4))] == [True, False]
    assert [c.symbolic for c in policy.sizes("x", torch.empty(9, 4))] == [True, False]  # the second pass agrees
    policy.begin()
    one = policy.sizes("x", torch.empty(1, 4))[0]
    assert not one.symbolic and "0 and 1" in one.reason
    policy.begin()
    assert [c.symbolic for c in policy.sizes("x", torch.empty(9, 5))] == [True, True]


def test_true_and_false() -> None:
    x, p = torch.empty(8, 1), nn.Parameter(torch.empty(8, 4))
    assert [c.symbolic for c in SizePolicy(True).sizes("x", x)] == [True, False]
    assert not any(c.symbolic for c in SizePolicy(True).sizes("p", p))
    assert not any(c.symbolic for c in SizePolicy(True).sizes("m.buffer", torch.empty(8), owned=True))
    policy = SizePolicy(False)
    policy.sizes("x", x)
    policy.begin()
    assert [c.reason for c in policy.sizes("x", torch.empty(9, 1))] == ["dynamic=False", ""]
    assert not policy.integer("n", 3)


def test_integers() -> None:
    policy = SizePolicy()
    seen = []
    for n in (3, 3, 4, 2**70):
        policy.begin()
        seen.append(policy.integer("n", n))
    assert seen == [False, False, True, False]


def test_strides_follow_sizes() -> None:
    s, t = symbol("s0", 2, hint=6), symbol("s1", 2, hint=5)
    assert follow([s, t, 4], (6, 5, 4), (20, 4, 1)) == [t * 4, 4, 1]
    assert follow([s, 3, t, 7], (6, 3, 5, 7), (105, 1, 21, 3)) == [t * 21, 1, 21, 3]  # channels last
    assert follow([s, t], (6, 5), (1, 6)) == [1, s]
    assert follow([s, t], (6, 5), (64, 1)) == [64, 1]  # a slice
    assert follow([s, t], (6, 5), (0, 1)) == [0, 1]


# ---- marks


def test_marks() -> None:
    x = torch.empty(8, 4, 2)
    assert marks_of(x) == {}
    braze.mark_dynamic(x, -1, min=2, max=9)
    braze.mark_static(x, [0, 1])
    assert marks_of(x) == {2: Mark(True, 2, 9), 0: Mark(False), 1: Mark(False)}
    braze.mark_static(x)
    assert marks_of(x)[2] == Mark(False)
    with pytest.raises(IndexError, match="dim 3 of a tensor with 3 dims"):
        braze.mark_dynamic(x, 3)
    with pytest.raises(ValueError, match="min=5 is more than max=4"):
        braze.mark_dynamic(x, 0, min=5, max=4)


def test_marks_of_the_peer_are_understood() -> None:
    x = torch.empty(8, 4)
    peer = "_dynamo_"
    setattr(x, peer + "dynamic_indices", {0})
    setattr(x, peer + "static_indices", {1})
    assert marks_of(x) == {0: Mark(True), 1: Mark(False)}
    braze.mark_static(x, 0)
    assert marks_of(x)[0] == Mark(False)


def test_a_marked_size_is_symbolic_at_once() -> None:
    f = braze.compile(lambda x: x * x.shape[0], backend="eager")
    x = R(8, 4)
    braze.mark_dynamic(x, 0, min=4, max=64)
    f(x)
    assert "4 <= x.shape[0] <= 64" in shapes(f)
    assert torch.equal(f(torch.ones(64, 4)), torch.full((64, 4), 64.0)) and graphs(f) == 1
    f(R(65, 4))
    assert graphs(f) == 2


def test_a_static_mark_holds() -> None:
    f = braze.compile(lambda x: x * x.shape[0], backend="eager", dynamic=True)
    for n in (5, 6, 7):
        x = R(n, 4)
        braze.mark_static(x, 0)
        f(x)
    assert graphs(f) == 3


def rows(x: Tensor) -> Any:
    out = 0
    for i in range(x.shape[0]):
        out = out + x[i] * i
    return out


def test_soft_marks_never_raise_and_strict_ones_name_the_line() -> None:
    x = R(8, 4)
    braze.mark_dynamic(x, 0)
    f = braze.compile(rows, backend="eager")
    torch.testing.assert_close(f(x), rows(x))
    log = log_of(f)
    assert log is not None
    (notes,) = log.sizes.values()
    assert "fixed, which test_sizes.py" in notes["x.shape[0]"].reason
    braze.mark_dynamic(x, 0, strict=True)
    with pytest.raises(
        braze.Unsupported, match=r"x.shape\[0\] was marked dynamic \(strict\), but the program needs it"
    ):
        braze.compile(rows, backend="eager")(x)
    one = R(1, 4)
    braze.mark_dynamic(one, 0, strict=True)
    with pytest.raises(braze.Unsupported, match="sizes 0 and 1 are specialised"):
        braze.compile(rows, backend="eager")(one)


# ---- guards and versions


def test_the_reason_of_a_recompile_is_the_condition() -> None:
    def f(x: Tensor, y: Tensor) -> Tensor:
        return x + y if x.shape[0] % 8 == 0 and x.shape[0] <= 512 else x - y[: x.shape[0]]

    g = braze.compile(f, backend="eager", dynamic=True)
    for n, m in [(16, 16), (24, 24), (17, 17), (17, 18), (1024, 1024)]:
        x, y = R(n), R(m)
        assert torch.equal(g(x, y), f(x, y))
    log = log_of(g)
    assert log is not None
    assert log.recompiles[0].reason == "x.shape[0] % 8 == 0: got x.shape[0] = 17"
    found = shapes(g)
    assert "x.shape[0] % 8 == 0" in found and "x.shape[0] <= y.shape[0]" in found, found
    assert any(s.endswith("<= x.shape[0] <= 512") for s in found), found


def test_the_budget_names_the_guard(caplog: pytest.LogCaptureFixture) -> None:
    f = braze.compile(rows, backend="eager", options={"recompile_limit": 3})
    for n in range(2, 8):
        x = R(n, 4)
        torch.testing.assert_close(f(x), rows(x))
    assert graphs(f) == 3
    assert "compiled 3 times" in caplog.text and "x.shape[0]: expected" in caplog.text


def test_versions_of_other_modules_do_not_make_sizes_symbolic() -> None:
    class Scale(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.w, self.n = nn.Parameter(torch.ones(n)), n

        def forward(self, x: Tensor) -> Tensor:
            return x * self.w * self.n

    for n in (3, 4, 5):
        m = braze.compile(Scale(n), backend="eager")
        assert torch.equal(m(torch.ones(2, n)), torch.full((2, n), float(n)))
        log = log_of(m)
        assert log is not None and not any(log.sizes.values())


def test_an_int_that_turns_into_a_bool_or_float() -> None:
    def f(x: Tensor, n: Any) -> Any:
        return x * n, type(n)

    g = braze.compile(f, backend="eager")
    for n in (2, 3, 5, True, 7, 2.5, -4, 2**62, 0, 1):
        got, want = g(torch.ones(2), n), f(torch.ones(2), n)
        assert torch.equal(got[0], want[0]) and got[1] is want[1]


def test_one_tensor_in_two_symbolic_places() -> None:
    """Versions made for separate tensors do not serve a call with one tensor twice, where it is written."""

    def f(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x + y

    g = braze.compile(f, backend="aot_eager", dynamic=True)
    for n in (4, 5):
        assert torch.equal(g(torch.zeros(n), torch.zeros(n)), torch.ones(n))
    x = torch.zeros(6)
    assert torch.equal(g(x, x), torch.full((6,), 2.0))


def test_sizes_leave_the_graph_as_ints() -> None:
    class Holder:
        pass

    def f(x: Tensor, h: Any) -> Any:
        h.n = x.shape[0] * 2
        h.sizes = [x.shape, {"k": x.size(1) - 1}]
        return x + 1, f"{x.shape[0]:>4}|{len(x)}", x.shape[0] // 3, min(x.shape[0], 6), -x.shape[0], divmod(len(x), 4)

    g = braze.compile(f, backend="eager")
    for n in (5, 8, 11):
        a, b = Holder(), Holder()
        got, want = g(torch.zeros(n, 3), a), f(torch.zeros(n, 3), b)
        assert got[1:] == want[1:] and vars(a) == vars(b) and type(a.n) is int
    assert graphs(g) == 2


def test_a_program_that_does_not_compile_with_symbols_is_compiled_without(monkeypatch: pytest.MonkeyPatch) -> None:
    from braze.backends import registry

    def refusing(request: Any) -> Any:
        if any(not hasattr(t, "sizes") for t in request.types):
            raise NotImplementedError("no symbols here")
        return eager(request)

    eager = registry._BUILT_IN["eager"]
    monkeypatch.setitem(registry._BUILT_IN, "eager", refusing)
    f = braze.compile(lambda x: x + 1, backend="eager")
    for n in (3, 4, 5):
        assert torch.equal(f(torch.zeros(n)), torch.ones(n))
    log = log_of(f)
    assert log is not None and not any(g.fallback for g in log.graphs) and len(log.graphs) == 3
    (notes,) = log.sizes.values()
    assert "does not compile with symbolic sizes (NotImplementedError: no symbols here" in notes["x.shape[0]"].reason
