"""The fast path of guard programs under change: whatever is done to the objects, native and Python meaning agree.

Random object trees are guarded in full, then changed at random (attributes, items, dicts, classes, tensors' metadata,
the same values put back, objects dropped so that their memory is used again), with a check after each step.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from braze.capture.guards import (
    CodeIs,
    DictHas,
    DictKeys,
    EqualsConst,
    GlobalState,
    GuardSet,
    HasNoAttr,
    IdIs,
    InstanceLacks,
    Length,
    TensorMatch,
    TensorSpec,
    Truth,
    TypeIs,
)
from braze.capture.program import compile_guards
from braze.capture.source import FrameSources, FrameValues, Source

COUNTER = 0
KEPT: list[Any] = []


class Node:
    kind = "node"

    def __init__(self) -> None:
        self.number, self.scale = 1, 0.5

    def act(self) -> int:
        return 1


class OtherNode(Node):
    pass


class Slotted:
    __slots__ = ("left", "right")


class Block(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.depth, self.p, self.name = depth, 0.1, f"block{depth}"
        self.config = {"act": "gelu", "sizes": [3, 2], "nested": {"flag": True}}
        self.steps = (1, 2.0, "three")
        if depth:
            self.inner = Block(depth - 1)


def make_function(n: int) -> Callable[[], int]:
    def inner(k: int = 3) -> int:
        return n + k

    return inner


def root_objects(rng: random.Random) -> list[Any]:
    node, other, slotted = Node(), Node(), Slotted()
    node.child = other  # type: ignore[attr-defined]
    slotted.left, slotted.right = [1, node, {"a": 1.5}], make_function(rng.randrange(3))  # type: ignore[attr-defined]
    other.items = [torch.ones(2, 3), torch.ones(2), "text"]  # type: ignore[attr-defined]
    return [Block(2), node, slotted, {"x": torch.ones(4), "f": make_function(1), "list": [[1], [2]], "none": None}]


def takes(a: Any, b: Any, c: Any, d: Any) -> None: ...


class Guarding:
    """Guards everything that a tree holds, as a trace might."""

    def __init__(self, rng: random.Random, share: float) -> None:
        self.rng, self.share = rng, share
        self.guards = GuardSet([GlobalState.now()])
        self.reads: list[Source] = []

    def maybe(self) -> bool:
        return self.rng.random() < self.share

    def visit(self, source: Source, value: Any) -> None:
        add = self.guards.add
        if isinstance(value, torch.Tensor):
            dynamic = [0] if value.dim() and self.rng.random() < 0.2 else []
            add(TensorMatch(source, TensorSpec.of(value, dynamic)))
            self.reads.append(source)
        elif value is None or isinstance(value, (int, float, str)):
            add(EqualsConst(source, value))
        elif isinstance(value, (dict, list, tuple)):
            self.container(source, value)
        elif callable(value) and hasattr(value, "__code__"):
            add(CodeIs.of(source, value.__code__) if self.maybe() else IdIs.of(source, value))
            if value.__closure__:
                self.visit(source.closure(0).cell_contents(), value.__closure__[0].cell_contents)
            if value.__defaults__ and self.maybe():
                self.visit(source.default(0), value.__defaults__[0])
        else:
            self.object(source, value)

    def container(self, source: Source, value: Any) -> None:
        self.guards.add(TypeIs(source, type(value)))
        if self.maybe():
            self.guards.add(Length(source, len(value)) if self.maybe() else Truth(source, bool(value)))
        if isinstance(value, dict):
            if self.maybe():
                self.guards.add(DictKeys(source, tuple(value)))
            if self.maybe():
                self.guards.add(DictHas(source, "absent", False))
            pairs: list[tuple[Any, Any]] = list(value.items())
        else:
            pairs = list(enumerate(value))
        for k, v in pairs:
            if self.maybe():
                self.visit(source.item(k), v)

    def object(self, source: Source, value: Any) -> None:
        self.guards.add(TypeIs(source, type(value)))
        if self.maybe():
            name = self.rng.choice(["act", "forward", "kind", "absent"])
            if name not in vars_of(value):
                self.guards.add(InstanceLacks(source, name))
        if self.maybe() and not hasattr(value, "missing"):
            self.guards.add(HasNoAttr(source, "missing"))
        if hasattr(type(value), "act") and self.maybe():
            self.guards.add(IdIs.of(source.type().type_attr("act"), type(value).__dict__.get("act", Node.act)))
        if isinstance(value, nn.Module):
            self.module(source, value)
        for k, v in vars_of(value).items():
            if not k.startswith("_") and self.maybe():
                use_attr = isinstance(value, Slotted) or self.maybe()
                self.visit(source.attr(k) if use_attr else source.instance_attr(k), v)

    def module(self, source: Source, value: nn.Module) -> None:
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            self.guards.add(Truth(source.instance_attr(hooks), False))
        for table in ("_parameters", "_buffers", "_modules"):
            for k, v in getattr(value, table).items():
                if self.maybe():
                    self.visit(source.member(table, k), v)


def vars_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Slotted):
        return {k: getattr(value, k) for k in ("left", "right") if hasattr(value, k)}
    return dict(vars(value))


def reachable(roots: list[Any]) -> list[Any]:
    """Every object of the trees that can be changed."""
    out: list[Any] = []
    seen: set[int] = set()
    todo = list(roots)
    while todo:
        v = todo.pop()
        if id(v) in seen or isinstance(v, (int, float, str, type(None))):
            continue
        seen.add(id(v))
        out.append(v)
        if isinstance(v, dict):
            todo += v.values()
        elif isinstance(v, (list, tuple)):
            todo += v
        elif isinstance(v, (Node, Slotted)):
            todo += vars_of(v).values()
        elif isinstance(v, nn.Module):
            todo += [
                *v._parameters.values(),
                *v._buffers.values(),
                *v._modules.values(),
                v.config if isinstance(v, Block) else 0,
            ]
    return out


def fresh(rng: random.Random, old: Any) -> Any:
    """Another value in place of an old one: equal, or not."""
    if isinstance(old, bool):
        return rng.choice([True, False])
    if isinstance(old, int):
        return rng.choice([int(str(old)), old, old + 1, bool(old)])
    if isinstance(old, float):
        return rng.choice([float(repr(old)), old * 3 / 3, old + 1])
    if isinstance(old, str):
        return rng.choice(["".join(list(old)), old, old + "x"])
    if isinstance(old, nn.Parameter):
        return nn.Parameter(old.detach().clone(), requires_grad=rng.random() < 0.9)
    if isinstance(old, torch.Tensor):
        return rng.choice([old.clone(), torch.ones(old.dim() + 1), old])
    if isinstance(old, (list, dict)):
        return rng.choice([old, old.copy()])
    if isinstance(old, Node):
        return rng.choice([old, copy_node(old)])
    if callable(old) and hasattr(old, "__code__"):
        return rng.choice([make_function(1), make_function(1), old])
    return old


def copy_node(old: Node) -> Node:
    new = type(old)()
    new.__dict__.update(old.__dict__)
    return new


def change_module(rng: random.Random, m: nn.Module) -> None:
    table = rng.choice([m._parameters, m._buffers, m._modules])
    what = rng.randrange(7)
    if what == 0 and table:
        name = rng.choice(list(table))
        if not isinstance(table[name], nn.Module):
            table[name] = fresh(rng, table[name])
    elif what == 1:
        m.training = rng.choice([m.training, not m.training])
    elif what == 2:
        m.train(m.training)
    elif what == 3:
        handle = m.register_forward_hook(lambda *a: None)
        if rng.random() < 0.7:
            handle.remove()
    elif what == 4:
        m.extra = rng.random()
    elif what == 5:
        KEPT.append(m.__dict__)
        m.__dict__ = dict(m.__dict__)
    elif isinstance(m, Block):
        name = rng.choice(["depth", "p", "name", "config", "steps"])
        setattr(m, name, fresh(rng, getattr(m, name)))


def change_tensor(rng: random.Random, t: torch.Tensor) -> None:
    with torch.no_grad():
        what = rng.randrange(5)
        if what == 0:
            t.data = t.data.clone()
        elif what == 1 and t.is_leaf and t.is_floating_point():
            t.requires_grad_(rng.choice([t.requires_grad, not t.requires_grad]))
        elif what == 2 and rng.random() < 0.3:
            t.data = torch.ones(t.dim() + 1, dtype=t.dtype)
        elif what == 3 and t.dim() == 2 and rng.random() < 0.5:
            t.data = t.data.t().contiguous().t()
        elif t.is_floating_point() and t.numel():
            t.add_(1)
            if t.requires_grad and t.is_leaf:
                t.grad = torch.zeros_like(t)


def change_object(rng: random.Random, v: Any) -> None:
    names = list(vars_of(v))
    if rng.random() < 0.15 and isinstance(v, Node):
        v.__class__ = rng.choice([type(v), OtherNode, Node])
        return
    if rng.random() < 0.15 and isinstance(v, Node):
        setattr(v, rng.choice(["kind", "act", "unrelated", "missing"]), 1)
        return
    if rng.random() < 0.1 and isinstance(v, Node):
        KEPT.append(v.__dict__)  # alive and unchanged, but no longer the object's
        v.__dict__ = dict(v.__dict__)
        return
    if names:
        name = rng.choice(names)
        old = getattr(v, name)
        delattr(v, name)
        setattr(v, name, fresh(rng, old))


def change_container(rng: random.Random, v: Any) -> None:
    if isinstance(v, dict):
        key = rng.choice([*v, "new"])
        old = v.pop(key, 1)
        if rng.random() < 0.9:
            v[key] = fresh(rng, old)
    elif isinstance(v, list):
        what = rng.randrange(3)
        if what == 0 or not v:
            v.append(1)
            if rng.random() < 0.7:
                v.pop()
        else:
            i = rng.randrange(len(v))
            v[i] = fresh(rng, v[i])


def change(rng: random.Random, roots: list[Any]) -> str:
    global COUNTER
    COUNTER += rng.randrange(2)
    if rng.random() < 0.05:
        Node.kind = rng.choice(["node", "other"])
        return "class"
    v = rng.choice(reachable(roots))
    if isinstance(v, nn.Module):
        change_module(rng, v)
    elif isinstance(v, torch.Tensor):
        change_tensor(rng, v)
    elif isinstance(v, (Node, Slotted)):
        change_object(rng, v)
    elif isinstance(v, (dict, list)):
        change_container(rng, v)
    elif callable(v) and v.__defaults__:
        v.__defaults__ = rng.choice([(3,), (4,), v.__defaults__])
    return type(v).__name__


def run(seed: int, steps: int) -> dict[str, int]:
    rng = random.Random(seed)
    KEPT.clear()
    roots = root_objects(rng)
    sources = FrameSources(takes.__code__)
    guarding = Guarding(rng, share=rng.choice([0.3, 0.7, 1.0]))
    for i, v in enumerate(roots):
        guarding.visit(sources.local(i), v)
    guarding.guards.add(TypeIs(sources.global_("COUNTER"), int))
    guards, reads = guarding.guards, guarding.reads
    program = compile_guards(guards, reads)
    frame = FrameValues(takes, tuple(roots))
    outcomes = {"pass": 0, "fail": 0}
    history: list[str] = []
    for step in range(steps):
        text = guards.explain_failure(frame)
        for _ in range(rng.choice([1, 1, 2, 4])):
            got = program.check(takes, frame.args)
            assert (got is not None) is (text is None), (seed, step, history[-5:], text, program.stats())
        if got is not None:
            want = [s.get(frame) for s in reads]
            assert all(a is b for a, b in zip(got, want)), (seed, step, history[-5:])
        outcomes["pass" if text is None else "fail"] += 1
        del got
        if text is not None and rng.random() < 0.5:  # guard what there is now
            return outcomes | {"fast": program.stats()["fast"]}
        history.append(change(rng, roots))
        if rng.random() < 0.05:
            gc.collect()
    return outcomes | {"fast": program.stats()["fast"]}


@pytest.mark.parametrize("block", range(3))
def test_random_changes(block: int) -> None:
    total = {"pass": 0, "fail": 0, "fast": 0}
    for seed in range(block * 12, block * 12 + 12):
        for k, n in run(seed, 50).items():
            total[k] += n
    assert total["pass"] > 50 and total["fail"] > 5 and total["fast"] > 20, total


@pytest.mark.slow
def test_many_random_changes() -> None:
    for seed in range(1000, 1400):
        run(seed, 80)


def checked(guards: GuardSet, program: Any, *args: Any) -> bool:
    text = guards.explain_failure(FrameValues(takes, args))
    got = program.check(takes, args)
    assert (got is not None) is (text is None), text
    return got is not None


class Holder:
    pass


REUSED: list[tuple[str, Callable[[int], Any], Callable[[Source, Any], Any]]] = [
    ("float", lambda i: 0.25 + i, EqualsConst),
    ("int", lambda i: 10**20 + i, EqualsConst),
    ("tuple", lambda i: ("t", i + 1000), EqualsConst),
    ("function", lambda i: make_function(0), IdIs.of),
    ("list", lambda i: [i] * (i + 1), lambda s, v: Length(s, 1)),
    ("dict", lambda i: {j: 0 for j in range(i + 1)}, lambda s, v: Length(s, 1)),
    ("node", lambda i: OtherNode() if i else Node(), lambda s, v: TypeIs(s, Node)),
    ("node's attribute", lambda i: OtherNode() if i else Node(), lambda s, v: HasNoAttr(s, "other")),
    ("tensor", lambda i: torch.ones(i + 1), lambda s, v: TensorMatch(s, TensorSpec.of(v))),
]


@pytest.mark.parametrize("where", ["attribute", "list", "cell"])
@pytest.mark.parametrize("make, guard_of", [pytest.param(*r[1:], id=r[0]) for r in REUSED])
def test_memory_that_is_used_again(make: Callable[[int], Any], guard_of: Any, where: str) -> None:
    """An object that dies, and another that is made at its address, is not taken for the old one."""
    OtherNode.other = 1  # type: ignore[attr-defined]
    for _ in range(30):
        holder = Holder()
        holder.v, holder.items_, holder.f = None, [None], make_function(0)

        def put(value: Any, holder: Any = holder) -> None:
            if where == "attribute":
                holder.v = value
            elif where == "list":
                holder.items_[0] = value
            else:
                holder.f.__closure__[0].cell_contents = value

        a = FrameSources(takes.__code__).local("a")
        source = {
            "attribute": a.instance_attr("v"),
            "list": a.instance_attr("items_").item(0),
            "cell": a.instance_attr("f").closure(0).cell_contents(),
        }[where]
        put(make(0))
        frame = FrameValues(takes, (holder, None, None, None))
        guards = GuardSet([guard_of(source, source.get(frame))])
        program = compile_guards(guards)
        for _ in range(3):
            assert checked(guards, program, *frame.args)
        address = id(source.get(frame))
        put(None)
        tried = [make(1)]  # until one is made where the old one was, if that happens
        while id(tried[-1]) != address and len(tried) < 50:
            tried.append(make(1))
        put(tried[-1])
        for _ in range(2):
            assert not checked(guards, program, *frame.args)
    del OtherNode.other  # type: ignore[attr-defined]


def test_a_counter_on_the_module_costs_no_full_walk_each_time() -> None:
    block = Block(2)
    block.step = 0
    sources = FrameSources(takes.__code__)
    guarding = Guarding(random.Random(0), share=1.0)
    guarding.visit(sources.local(0), block)
    guards = GuardSet(
        g for g in guarding.guards if "step" not in str(getattr(g, "source", "")) or isinstance(g, Length)
    )
    program = compile_guards(guards, guarding.reads)
    for i in range(200):
        block.step = i
        assert checked(guards, program, block, None, None, None)
    assert program.stats()["full"] < 20, program.stats()


def test_changing_globals_cost_no_full_walk_each_time() -> None:
    global COUNTER
    sources = FrameSources(takes.__code__)
    guards = GuardSet([IdIs.of(sources.global_("Node"), Node), TypeIs(sources.global_("COUNTER"), int)])
    program = compile_guards(guards)
    for i in range(200):
        COUNTER = 10**6 + i
        assert checked(guards, program, 1, 2, 3, 4)
    assert program.stats()["full"] < 20, program.stats()


def test_train_and_eval() -> None:
    block = Block(1)
    sources = FrameSources(takes.__code__)
    versions = []
    for mode in (True, False):
        block.train(mode)
        guarding = Guarding(random.Random(0), share=1.0)
        guarding.visit(sources.local(0), block)
        versions.append((guarding.guards, compile_guards(guarding.guards)))
    for _ in range(30):
        for mode in (True, False):
            block.train(mode)
            for k, (guards, program) in enumerate(versions):
                assert checked(guards, program, block, 0, 0, 0) is (k == (not mode))


def test_requires_grad_of_held_tensors() -> None:
    holder, other = Holder(), torch.ones(2, requires_grad=True)
    sources = FrameSources(takes.__code__)
    for make in (
        lambda: nn.Parameter(torch.ones(2)),
        lambda: nn.Parameter(torch.ones(2), requires_grad=False),
        lambda: torch.ones(2),
        lambda: torch.ones(2, requires_grad=True) * 1,
        lambda: torch.ones(4, requires_grad=True)[:2],
        lambda: torch.ones(4)[:2],
    ):
        holder.t = make()
        guards = GuardSet([TensorMatch(sources.local("a").instance_attr("t"), TensorSpec.of(holder.t))])
        program = compile_guards(guards)
        wanted = holder.t.requires_grad
        for _ in range(4):
            assert checked(guards, program, holder, 0, 0, 0)
        if holder.t.is_leaf:
            for on in (not wanted, wanted, not wanted, wanted):
                holder.t.requires_grad_(on)
                for _ in range(3):
                    assert checked(guards, program, holder, 0, 0, 0) is (on == wanted)
        if not wanted:
            holder.t.add_(other)  # becomes a result: requires grad without a flag of its own
            for _ in range(3):
                assert not checked(guards, program, holder, 0, 0, 0)


def stamped(*guards: Any) -> tuple[GuardSet, Any]:
    set_ = GuardSet(guards)
    return set_, compile_guards(set_)


A = FrameSources(takes.__code__).local("a")


@pytest.mark.parametrize("by_attr", [True, False])
def test_a_replaced_instance_dict_is_seen_while_the_old_one_lives(by_attr: bool) -> None:
    holder = Holder()
    holder.v = 1
    source = A.attr("v") if by_attr else A.instance_attr("v")
    guards, program = stamped(EqualsConst(source, 1))
    for _ in range(3):
        assert checked(guards, program, holder, 0, 0, 0)
    old = holder.__dict__
    holder.__dict__ = {"v": 2}
    for _ in range(2):
        assert not checked(guards, program, holder, 0, 0, 0)
    holder.__dict__ = old
    assert checked(guards, program, holder, 0, 0, 0)


def test_changed_classes_are_seen() -> None:
    class Base:
        kind = "base"

    class Derived(Base):
        pass

    thing = Derived()
    thing.own = 1  # type: ignore[attr-defined]
    guards, program = stamped(EqualsConst(A.attr("kind"), "base"), EqualsConst(A.attr("own"), 1), HasNoAttr(A, "later"))

    def holds() -> list[bool]:
        return [checked(guards, program, thing, 0, 0, 0) for _ in range(3)]

    assert holds() == [True] * 3
    Base.kind = "other"
    assert holds() == [False] * 3
    Base.kind = "base"
    assert holds() == [True] * 3
    Derived.kind = "nearer"
    assert holds() == [False] * 3
    del Derived.kind
    assert holds() == [True] * 3
    Derived.own = property(lambda self: 2)  # type: ignore[attr-defined]
    assert holds() == [False] * 3
    del Derived.own  # type: ignore[attr-defined]
    program = compile_guards(guards)
    assert holds() == [True] * 3
    Base.later = 1  # type: ignore[attr-defined]
    assert holds() == [False] * 3


@pytest.mark.parametrize("present", [True, False])
def test_attributes_inside_an_object_and_then_in_its_dict(present: bool) -> None:
    """From 3.13 on few attributes are kept inside the object, until its dict is used in ways that do not fit there."""
    for move in (True, False):
        holder = Holder()
        holder.v = 1
        guard = EqualsConst(A.instance_attr("v"), 1) if present else InstanceLacks(A, f"never_seen_{move}")
        guards, program = stamped(guard)
        for _ in range(3):
            assert checked(guards, program, holder, 0, 0, 0)
        if move:
            holder.__dict__[0] = None  # type: ignore[index]
            del holder.__dict__[0]  # type: ignore[arg-type]
        setattr(holder, "v" if present else f"never_seen_{move}", 2)
        for _ in range(2):
            assert not checked(guards, program, holder, 0, 0, 0)
