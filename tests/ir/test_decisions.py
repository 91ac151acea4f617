"""Decisions: answers agree with the hints, what is taken for granted is exactly what the answers need."""

from __future__ import annotations

import operator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from braze.errors import Unsupported
from braze.ir import Expr, Graph, IntLike, contiguous_strides, evaluate, sym_max, sym_min, tensor_type
from braze.ir.decisions import Decisions, proven, settle

OPS: dict[str, Any] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
NAMES = ("s0", "s1", "s2")


def fresh(values: tuple[int, ...] = (8, 8, 5)) -> tuple[Decisions, list[Expr]]:
    d = Decisions()
    return d, [d.new(n, v, 2, 2**40) for n, v in zip(NAMES, values)]


def test_limits_narrow_the_range() -> None:
    d, (s, t, _) = fresh()
    assert d("<", s, 512) and d("<=", s, 511) and not d(">", s, 511)
    assert [str(x) for x in d.taken] == ["s0 <= 511"] and d.ranges["s0"] == (2, 511)
    assert not d("<", s, 8) and d.ranges["s0"] == (8, 511)
    assert d(">=", s // 2, 3)  # proven by now
    assert d("<", (t - 1) // 2 + 1, 5) and str(d.taken[-1]) == "s1 <= 8"


def test_equal_sizes_become_one() -> None:
    d, (s, t, u) = fresh()
    assert d("==", s, t) and d.resolve(t * 3) == s * 3
    assert not d("==", s, u) and str(d.taken[-1]) == "s0 != s2"
    assert d("==", t * 2, 16) and d.resolve(s) == d.resolve(t) == 8
    assert d("==", s + t, 16) and len(d.taken) == 3


def test_an_equal_size_inherits_the_range() -> None:
    d, (s, t, _) = fresh()
    assert d("<=", t, 10) and d("==", s, t)
    assert d("<=", s, 10) and d.ranges["s0"][1] == 10 and len(d.taken) == 2


def test_what_has_no_solution_is_kept_as_it_is() -> None:
    d, (s, t, _) = fresh()
    assert d("==", (s * t) % 16, 0) and not d("==", (s * t) % 5, 0)
    assert [str(x) for x in d.taken] == ["((s0*s1) % 16) == 0", "((s0*s1) % 5) != 0"]
    assert d("==", (s * t) % 16, 0) and len(d.taken) == 2


def test_numbers_become_fixed() -> None:
    d, (s, t, _) = fresh()
    assert d.number(s + t) == 16 and d.resolve(s + t) == 16


def test_after_the_guards_are_made_nothing_more_is_taken() -> None:
    d, (s, _, _) = fresh()
    assert d("<", s, 20)
    d.closed = True
    assert d("<", s, 30)
    with pytest.raises(Unsupported, match="backward depends on whether s0 < 10"):
        d("<", s, 10)


def test_sizes_of_0_and_1_become_numbers() -> None:
    d, (s, t, u) = fresh()
    x = tensor_type((s - 7, t - 8, u - 1))
    assert d.sized(x).sizes == (1, 0, d.resolve(u - 1)) and d.ranges["s2"] == (3, 2**40)
    with pytest.raises(RuntimeError, match="negative"):
        d.sized(tensor_type((u - 20,)))


def test_settle_rewrites_a_graph() -> None:
    d, (s, t, _) = fresh()
    g = Graph()
    a, b = g.input("s0", s), g.input("s1", t)
    x = g.input("x", tensor_type((s, t)))
    g.outputs = (g.call(operator.mul, (x, t + 1), val=x.val), t)
    d("==", s, t)
    settle(g, d)
    assert x.val.sizes == (s, s) and g.outputs[0].args[1] == s + 1 and g.outputs[1] == s
    assert a.val == s and b.val == t
    assert x.val.strides == contiguous_strides((s, s))


@st.composite
def exprs(draw: Any, depth: int = 3) -> Any:
    """(expression of the symbols, the same as a Python function of their values)."""
    kind = draw(st.integers(0, 8 if depth else 1))
    if kind == 0:
        k = draw(st.integers(-6, 12))
        return (lambda s: k), (lambda v: k)
    if kind <= 2 or not depth:
        i = draw(st.integers(0, 2))
        return (lambda s: s[i]), (lambda v: v[i])
    a, fa = draw(exprs(depth - 1))
    b, fb = draw(exprs(depth - 1))
    k = draw(st.integers(1, 9))
    table: list[Any] = [
        ((lambda s: a(s) + b(s)), (lambda v: fa(v) + fb(v))),
        ((lambda s: a(s) - b(s)), (lambda v: fa(v) - fb(v))),
        ((lambda s: a(s) * b(s)), (lambda v: fa(v) * fb(v))),
        ((lambda s: a(s) // k), (lambda v: fa(v) // k)),
        ((lambda s: a(s) % k), (lambda v: fa(v) % k)),
        ((lambda s: sym_min(a(s), b(s))), (lambda v: min(fa(v), fb(v)))),
        ((lambda s: sym_max(a(s), b(s))), (lambda v: max(fa(v), fb(v)))),
    ]
    return draw(st.sampled_from(table))


SIZES = st.lists(st.integers(2, 40), min_size=3, max_size=3)


@settings(max_examples=300, deadline=None)
@given(exprs(), SIZES)
def test_arithmetic_is_pythons(e: Any, values: list[int]) -> None:
    make, plain = e
    _, symbols = fresh()
    assert evaluate(make(symbols), dict(zip(NAMES, values))) == plain(values)


@settings(max_examples=300, deadline=None)
@given(exprs(2), exprs(2), st.sampled_from(sorted(OPS)), SIZES)
def test_proofs_hold(e: Any, f: Any, op: str, values: list[int]) -> None:
    _, symbols = fresh()
    a, b = e[0](symbols), f[0](symbols)
    if op in ("==", "<", "<="):
        known = proven(op, a, b)
        assert known is None or known == OPS[op](e[1](values), f[1](values))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(exprs(2), exprs(2), st.sampled_from(sorted(OPS))), min_size=1, max_size=5), SIZES, SIZES)
def test_answers_hold_wherever_the_guards_do(questions: Any, hints: list[int], others: list[int]) -> None:
    """With the hints all answers are right; at other sizes they are, too, where everything taken holds."""
    d, symbols = fresh(tuple(hints))
    answers = []
    for (a, fa), (b, fb), op in questions:
        x, y = a(symbols), b(symbols)
        answers.append(d(op, x, y))
        assert answers[-1] == OPS[op](fa(hints), fb(hints))
        assert d.value(d.resolve(x)) == fa(hints)
    env = dict(zip(NAMES, others))
    guards = all(OPS[t.op](evaluate(t.lhs, env), evaluate(t.rhs, env)) for t in d.taken)
    ranges = all(lo <= env[n] <= hi for n, (lo, hi) in d.ranges.items())
    if guards:
        assert ranges, "ranges say more than was taken for granted"
        for answer, ((a, fa), (_, fb), op) in zip(answers, questions):
            assert answer == OPS[op](fa(others), fb(others))
            resolved: IntLike = d.resolve(a(symbols))
            assert evaluate(resolved, env) == fa(others)
