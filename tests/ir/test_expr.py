"""Symbolic integers against plain integers: normal form, ranges, printing."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from braze.ir import Expr, IntLike, bounds, coefficient, evaluate, substitute, symbol, symbol_of, to_str

X, Y = symbol("x", 0, 1000), symbol("y", 0, 50)
b, i, j = symbol("b", 1, 64), symbol("i", 0, 7), symbol("j", 0, 15)


def test_linear_index_round_trip() -> None:
    lin = (b * 8 + i) * 16 + j
    assert (lin // 128, (lin // 16) % 8, lin % 16) == (b, i, j)
    assert (lin // 5) * 5 + lin % 5 == lin
    assert lin // (8 * 16) == b


def test_constants_are_ints() -> None:
    assert (X - X) == 0 and type(X - X) is int
    assert type((X * 0) + 3) is int
    assert (X * 12 + 4) % 4 == 0 and (X * 12 + 5) // 4 == X * 3 + 1


def test_symbolic_divisor() -> None:
    n = symbol("n", 1, 100)
    assert (X * n) // n == X and (X * n + n) % n == 0


def test_coefficient_and_symbol_of() -> None:
    s = symbol_of(X)
    assert s is not None
    assert coefficient(X * 3 + Y, s) == 3 and coefficient(Y, s) == 0
    assert coefficient(X // 3, s) is None and coefficient(X * X, s) is None


@st.composite
def programs(draw: st.DrawFn, depth: int = 4) -> tuple[IntLike, object]:
    """An expression, and a function of (x, y) with its meaning on plain integers."""
    if depth == 0 or draw(st.booleans()):
        k = draw(st.integers(-3, 12))
        return draw(st.sampled_from([(X, lambda x, y: x), (Y, lambda x, y: y), (k, lambda x, y, k=k: k)]))
    a, fa = draw(programs(depth - 1))
    op = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    if op in ("//", "%"):
        k = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
        return (a // k, lambda x, y: fa(x, y) // k) if op == "//" else (a % k, lambda x, y: fa(x, y) % k)
    c, fc = draw(programs(depth - 1))
    if op == "+":
        return a + c, lambda x, y: fa(x, y) + fc(x, y)
    if op == "-":
        return a - c, lambda x, y: fa(x, y) - fc(x, y)
    return a * c, lambda x, y: fa(x, y) * fc(x, y)


@settings(max_examples=400, deadline=None)
@given(programs(), st.integers(0, 1000), st.integers(0, 50))
def test_expressions_mean_what_they_say(program: tuple[IntLike, object], x: int, y: int) -> None:
    e, f = program
    want = f(x, y)  # type: ignore[operator]
    assert evaluate(e, {"x": x, "y": y}) == want
    lo, hi = bounds(e)
    assert lo <= want <= hi
    assert eval(to_str(e), {"x": x, "y": y, "min": min, "max": max}) == want
    if isinstance(e, Expr):
        assert evaluate(substitute(e, {symbol_of(X): Y + 2}), {"y": y}) == f(y + 2, y)  # type: ignore[operator, dict-item]
