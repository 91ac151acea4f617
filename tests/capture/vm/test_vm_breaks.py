"""Graph breaks: what cannot be captured runs in Python, at its place, and the rest is captured again."""

from __future__ import annotations

import array
import contextlib
import sys
import time
from typing import Any

import pytest
import torch
from vm_harness import Log, check, compiled

import braze
from braze.api import log_of
from braze.capture import Skip, capture_frame
from braze.errors import Unsupported

CASES: list[Any] = []
X = torch.arange(6.0).reshape(2, 3)


def case(*args: Any, breaks: int = 1, graphs: int | None = 2) -> Any:
    """Register a function with its arguments, and how many breaks and graphs it must have."""

    def register(f: Any) -> Any:
        CASES.append(pytest.param(f, args, breaks, graphs, id=f.__name__))
        return f

    return register


@case(X)
def printing(x):
    y = x + 1
    print("middle", y.shape[0])
    return y * 2


@case(X, breaks=3, graphs=3)
def printing_many_times(x):
    print("first")
    x = x + 1
    print("second")
    x = x * 2
    print("third", x.dim(), sep="-", end="!")
    return x.sum() + torch.relu(x)


@case(X)
@case(-X - 1)
def branch_on_a_tensor(x):
    y = x * 2
    if y.sum() > 0:
        z = y + 1
    else:
        z = y - 1
    return z * 3


@case(X, breaks=2, graphs=3)
def boolean_operators_on_tensors(x):
    y = x.sum() + 0
    z = y or x.mean()
    w = (x.max() > 100) and z
    return x + z, w * 1


@case(X)
def not_of_a_tensor(x):
    y = x.sum() * 1
    n = not y
    return x + n


@case(X)
def item(x):
    n = x.long().sum().item()
    return x + n


@case(X)
def values_on_the_stack(x):
    return [x + 1, (x * 2, {"k": x.sum().tolist()}), x - 1, len([1, 2])]


@case(X)
def call_with_waiting_callable(x):
    return torch.add(x * 2, int(x.sum()), alpha=2)


@case(X)
def method_with_waiting_self(x):
    return (x + 1).add(int(x.sum())).mul(2)


def helper(x, n):
    print("helper")
    return x + n


def outer_helper(x, *, n):
    return helper(x * 2, n) + 1


@case(X)
def break_in_a_callee(x):
    y = x + 1
    z = outer_helper(y, n=3)
    return z * y


@case(X)
def break_with_locals_of_all_kinds(x):
    a, b, c, d = [1], {"k": x}, (x + 1, 2), {1, 2}
    same = a
    fn = lambda v: v + c[1]  # noqa: E731
    print("here")
    a.append(3)
    return fn(x), same, b, c, d, same is a


@case(X)
def closure_cells_survive(x):
    n = 1

    def add(v):
        nonlocal n
        n += 1
        return v + n

    y = add(x)
    print("n", n)
    z = add(y)
    return z, n


@case(X, [1, 2])
def effects_before_and_after(x, log):
    log.append(x + 1)
    print(len(log))
    log.append(len(log))
    return x * 2


@case(torch.ones(2, requires_grad=True))
def inside_no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y * 3
        print("inside", torch.is_grad_enabled())
        w = z * 4
    return y + w, z, w * x, torch.is_grad_enabled()


@case(torch.ones(2, 2))
def inside_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        print("inside", torch.is_autocast_enabled("cpu"))
        z = x @ x
    return y, z, x @ x


class Manager:
    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit" if kind is None else kind.__name__)
        return kind is ValueError


def fails(n):
    print("fails")
    raise ValueError(n)


@case(X, [])
def inside_a_context_manager(x, log):
    with Manager(log) as m:
        x = x + 1
        print("in", len(m.log))
        x = x * 2
    return x - 1, log


@case(X, [], graphs=2)
def exception_through_a_context_manager(x, log):
    with Manager(log):
        x = x + 1
        fails(3)
        x = x * 100
    return x * 2


@case(X)
def exception_from_the_broken_instruction(x):
    y = x + 1
    try:
        n = time.strptime("nonsense", "%Y")
    except ValueError as e:
        n = len(str(e))
    return y + n


@case(X)
def exception_from_a_callee(x):
    y = x * 2
    try:
        fails(7)
    except (KeyError, ValueError) as e:
        n = e.args[0]
    else:
        n = 0
    finally:
        y = y + 1
    return y * n


@case(X)
def break_in_a_try_without_exception(x):
    try:
        x = x + 1
        print("fine")
        x = x * 2
    except ValueError:
        x = x * 100
    finally:
        x = x - 1
    return x


@case(X, graphs=1)
def error_of_a_torch_call(x):
    try:
        return x @ x
    except RuntimeError:
        return x + 1


@case(X)
def text_of_a_tensor(x):
    y = x + 1
    s = f"value: {y}"
    return y * 2, s


@case(X, graphs=1)
def unpacking_a_generator_that_breaks(x):
    def gen():
        yield x + 1
        print("yielded")
        yield x + 2

    a, b = gen()
    return a * b


@case(X)
def conditional_expression(x):
    y = x + 1
    return (y * 2 if y.sum() > 3 else y) + (1 if len(y) else 2)


@case(X, graphs=1)
def subscript_by_item(x):
    table = {15: "a", 0: "b"}
    return x + 1, table[int(x.sum())]


@case(X)
def unknown_c_function(x):
    y = x + 1
    n = array.array("i", [1, 2])
    return y + 2, n


@case(X, 3, breaks=1)
def arguments_are_rebound(x, n):
    x = x + n
    n = n * 2
    print(n)
    n = n + 1
    return x * n


@case(X)
def inside_an_except_block(x):
    y = x + 1
    try:
        raise KeyError("a", 2)
    except KeyError as e:
        print("handling", sys.exc_info()[1] is e, e.args)
        y = y * e.args[1]
    return y, sys.exc_info()[0] is None


@case(X, breaks=2, graphs=3)
def inside_nested_except_and_finally_blocks(x):
    try:
        try:
            x = x + 1
            raise ValueError("outer")
        except ValueError as e:
            try:
                raise KeyError("inner") from e
            except KeyError as f:
                print("both", f.__cause__ is e, sys.exc_info()[0].__name__)
                x = x * 2
                raise
            finally:
                print("finally", sys.exc_info()[0].__name__)
                x = x - 1
    except KeyError as e:
        x = x + len(str(e))
    return x, sys.exc_info()[0] is None


@case(X)
def reraised_after_a_break(x):
    try:
        try:
            x = x + 1
            raise ValueError("v")
        except ValueError:
            print("logging it")
            raise
    except ValueError as e:
        return x * 2, str(e)


class Loud:
    def __init__(self, swallow):
        self.swallow = swallow

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        print("exit", kind and kind.__name__, value)
        return self.swallow


@case(X, breaks=2, graphs=3)
def exits_that_break(x):
    with Loud(False):
        x = x + 1
    with Loud(True):
        x = x * 2
        raise ValueError("swallowed")
    return x - 1


@pytest.mark.parametrize(("f", "args", "breaks", "graphs"), CASES)
def test_break(f, args, breaks, graphs):
    log = check(f, *args, breaks=None)
    assert len(log.breaks) == breaks, (log.breaks, log.skips)
    if graphs is not None:
        assert len(log.graphs) == graphs, (log.breaks, log.skips)


# ---- frames that are left to Python


def test_frame_without_tensors_is_skipped():
    log = check(lambda n: n + 1, 3, breaks=None)
    assert log.skips == ["no tensor operations"]


def test_error_of_the_program_is_eagers_own():
    def f(x):
        return torch.nn.functional.linear(x + 1, torch.ones(5, 7))

    check(f, X, breaks=None)


def test_exception_leaves_the_frame():
    def f(x, log):
        log.append(1)
        y = x + 1
        log.append(y)
        raise KeyError("gone", 3)

    check(f, X, [], breaks=None)


def test_exception_inside_an_except_block():
    def f(x):
        try:
            x.add(1)
            raise KeyError("a")
        except KeyError as e:
            raise ValueError("b") from e

    check(f, X, breaks=None)


def test_exception_through_an_exit_that_breaks():
    def f(x):
        with Loud(False):
            y = x + 1
            raise KeyError(y.shape[0])

    check(f, X, breaks=None)


def test_exception_in_finally_replaces_the_first():
    def f(x):
        y = x + 1
        try:
            raise KeyError("first")
        finally:
            print("cleaning")
            raise ValueError(y.dim())

    check(f, X, breaks=None)


def test_break_inside_an_except_block():
    def f(x):
        y = x + 1
        try:
            raise KeyError("a")
        except KeyError:
            print("handling")
            y = y * 2
        return y

    check(f, X, breaks=None)


# ---- fullgraph


def test_fullgraph_names_the_line_the_reason_and_the_hint():
    def f(x):
        y = x + 1
        if y.sum() > 0:
            y = y * 2
        return y

    with pytest.raises(Unsupported) as e:
        capture_frame(f.__code__, f, (X,), compile_graph=lambda *a: None, fullgraph=True)
    text = str(e.value)
    assert "branch on the value of a tensor" in text and "if y.sum() > 0:" in text and "torch.where" in text
    assert f"test_vm_breaks.py:{f.__code__.co_firstlineno + 2}" in text


def test_fullgraph_names_the_line_in_the_callee():
    with pytest.raises(Unsupported) as e:
        f = break_in_a_callee
        capture_frame(f.__code__, f, (X,), compile_graph=lambda *a: None, fullgraph=True)
    assert 'print("helper")' in str(e.value)


def test_breaks_carry_reason_and_place():
    f = printing
    out = capture_frame(f.__code__, f, (X,), compile_graph=lambda *a: lambda *t: ())
    assert not isinstance(out, Skip)
    ((reason, loc),) = out.breaks
    assert reason == "print()" and loc is not None and loc.text.startswith("print(")


def test_tracing_changes_nothing():
    def f(x, log, d):
        log.append(1)
        d["k"] = x
        torch._C._set_grad_enabled(False)
        y = x + 1
        return y.numpy()

    log, d = [], {}
    out = capture_frame(f.__code__, f, (X, log, d), compile_graph=lambda *a: lambda *t: ())
    assert not isinstance(out, Skip) and log == [] and d == {} and torch.is_grad_enabled()


def test_modes_after_a_break_are_the_frames_own():
    def f(x):
        torch.set_grad_enabled(False)
        y = x * 2
        print("off")
        z = x * 3
        torch.set_grad_enabled(True)
        return y, z, x * 4

    x = torch.ones(2, requires_grad=True)
    with contextlib.redirect_stdout(None):
        y, z, w = compiled(f, Log())(x)
    assert torch.is_grad_enabled()
    assert not y.requires_grad and not z.requires_grad and w.requires_grad


def test_containers_of_many_items_are_pythons() -> None:
    """Capture follows items one by one: making, growing and reading a large list takes Python's time."""

    def f(x: torch.Tensor, n: int) -> tuple[torch.Tensor, int, list[int], int]:
        a = [0] * n
        b = list(range(n))
        c = [1, 2]
        for _ in range(16):
            c += c
        d = [1, 2]
        for _ in range(16):
            d.extend(d)
        return x + b[-1] + len(a) + len(d), len(c), c[:2], sum(1 for v in b if v % 2)

    compiled = braze.compile(f, backend="eager")
    start = time.process_time()
    for n in (10, 300_000):
        got, want = compiled(torch.ones(2), n), f(torch.ones(2), n)
        assert torch.equal(got[0], want[0]) and got[1:] == want[1:]
    assert time.process_time() - start < 5  # 10 s and more, item by item
    assert any("more than 20,000 items" in b.reason for b in log_of(compiled).breaks)
