"""Random Python programs over tensors, ints, lists, dicts, objects and generators, with graph breaks in any place.

``generate(seed)`` is the source of one module: helpers and a function ``f(x, y, n, items, table, obj)``. Every name is
bound before it is used on most paths; where it is not, both sides must raise the same error.
"""

from __future__ import annotations

import random
from collections.abc import Callable

PRELUDE = """
import contextlib, collections, functools, itertools, operator
import torch

COUNTER = CLOSED = 0
SEEN = []

class Box:
    kind = "box"
    def __init__(self, v, tag=0):
        self.v = v
        self.log = []
        self.tag = tag
    @property
    def twice(self):
        return self.v * 2
    def bump(self, k=1):
        self.v = self.v + k
        self.log.append(k)
        return self
    def loud(self, k):
        self.log.append(k)
        print("loud", k, len(self.log))
        return self.v + k
    def __len__(self):
        return len(self.log)
    def __getitem__(self, i):
        return self.log[i]
    def __add__(self, other):
        return Box(self.v + other, self.tag + 1)
    def __eq__(self, other):
        return isinstance(other, Box) and self.tag == other.tag
    def __hash__(self):
        return hash(self.tag)

class Manager:
    def __init__(self, obj, swallow):
        self.obj, self.swallow = obj, swallow
    def __enter__(self):
        self.obj.log.append("in")
        return self
    def __exit__(self, kind, value, tb):
        self.obj.log.append("out" if kind is None else kind.__name__)
        return self.swallow and kind is not None and issubclass(kind, ValueError)

class LoudManager(Manager):
    def __exit__(self, kind, value, tb):
        print("leaving", kind and kind.__name__)
        return Manager.__exit__(self, kind, value, tb)

@contextlib.contextmanager
def scope(obj, tag):
    obj.log.append(("+", tag))
    try:
        yield tag
    finally:
        obj.log.append(("-", tag))

def quiet_helper(x, k):
    z = x * 0.5 + k
    return torch.tanh(z)

def loud_helper(x, k):
    z = torch.relu(x) + k
    print("helper", k)
    return z * 0.5

def deep_helper(x, k, *rest, scale=1):
    if k % 2:
        x = loud_helper(x, k) * scale
    return quiet_helper(x, k) + len(rest)

def raising_helper(x, k):
    if k % 3 == 0:
        raise ValueError("bad", k)
    print("survived", k)
    return x - k

def numbers(x, k):
    for i in range(k % 4):
        yield x * i

def loud_numbers(x, k):
    try:
        for i in range(k % 4):
            got = yield x + i
            print("got", i, got is None)
    finally:
        global CLOSED
        CLOSED += 1

def delegating(x, k):
    r = yield from loud_numbers(x, k)
    yield x if r is None else r

def count_calls(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        global COUNTER
        COUNTER += 1
        return fn(*args, **kwargs)
    return inner

@count_calls
def decorated(x, k=2, *, neg=False):
    return -x if neg else x * k
"""


class Generator:
    """Writes one program. ``names`` are the variables bound so far, by kind."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 0
        self.fresh = 0
        self.names: dict[str, list[str]] = {
            "t": ["x", "y"], "i": ["n"], "l": ["items"], "d": ["table"], "o": ["obj"], "s": [],
        }  # fmt: skip
        self.loops = 0
        self.budget = self.r.randint(6, 22)

    # -- helpers ----
    def emit(self, line: str) -> None:
        self.lines.append("    " * (self.depth + 1) + line)

    def new(self, kind: str) -> str:
        self.fresh += 1
        return f"{kind}{self.fresh}"

    def bind(self, kind: str, text: str) -> None:
        """Assign to a new name or, sometimes, to one that is there."""
        old = [v for v in self.names[kind] if v not in ("items", "table", "obj")]
        if old and self.r.random() < 0.4:
            self.emit(f"{self.r.choice(old)} = {text}")
            return
        name = self.new(kind)
        self.emit(f"{name} = {text}")
        self.names[kind].append(name)

    def pick(self, kind: str) -> str:
        return self.r.choice(self.names[kind])

    # -- expressions ----
    def t(self, deep: int = 0) -> str:
        r = self.r
        options = [
            lambda: self.pick("t"),
            lambda: f"({self.pick('t')} {r.choice('+-*')} {self.pick('t')})",
            lambda: f"({self.pick('t')} {r.choice('+-*')} {self.i(1)})",
            lambda: f"torch.{r.choice(['tanh', 'relu', 'sin', 'neg'])}({self.pick('t')})",
            lambda: f"quiet_helper({self.pick('t')}, {self.i(1)})",
        ]
        if deep < 1:
            options += [
                lambda: f"loud_helper({self.t(1)}, {self.i(1)})",
                lambda: f"deep_helper({self.t(1)}, {self.i(1)}, *{self.pick('l')}[:2], scale={r.randint(1, 2)})",
                lambda: f"decorated({self.t(1)}, neg={self.b()})",
                lambda: f"({self.t(1)} if {self.b()} else {self.t(1)})",
                lambda: f"sum([{self.t(1)} * v for v in {self.pick('l')}[:3]], {self.pick('t')})",
                lambda: f"{self.pick('o')}.loud({self.i(1)})",
                lambda: f"{self.pick('o')}.bump().v * {self.pick('t')}",
                lambda: f"{self.pick('d')}.get({self.key()}, {self.pick('t')}) * {self.pick('t')}",
                lambda: f"({self.pick('t')} + {self.pick('t')}.mean().item())",
                lambda: f"functools.reduce(operator.add, [{self.pick('t')}, {self.t(1)}])",
                lambda: f"next(numbers({self.pick('t')}, {self.i(1)}), {self.pick('t')})",
                lambda: f"torch.stack(list({r.choice(['numbers', 'loud_numbers'])}({self.pick('t')}, 2))).sum(0)",
                lambda: f"(lambda a, b={self.i(1)}: a * 0.5 + b)({self.t(1)})",
                lambda: f"torch.clamp(({self.pick('t')}), -9.0, 9.0)",
            ]
        return r.choice(options)()

    def i(self, deep: int = 0) -> str:
        r = self.r
        options = [
            lambda: str(r.randint(-3, 7)),
            lambda: self.pick("i"),
            lambda: f"len({self.pick('l')})",
            lambda: f"({self.pick('i')} {r.choice(['+', '-', '*'])} {r.randint(1, 3)}) % 7",
            lambda: f"({self.pick('i')} // {r.randint(1, 3)})",
        ]
        if deep < 1:
            options += [
                lambda: f"{self.pick('l')}[{self.i(1)}]",
                lambda: f"int({self.pick('t')}.sum().item()) % 5",
                lambda: f"(COUNTER + {self.i(1)}) % 9",
                lambda: f"sum({self.pick('l')}) % 11",
                lambda: f"len({self.pick('o')})",
                lambda: f"max({self.i(1)}, {self.i(1)})",
                lambda: f"{{**{self.pick('d')}}}.__len__()",
                lambda: f"({self.b()}) + {self.i(1)}",
                lambda: f"{self.pick('t')}.shape[{r.randint(0, 1)}]",
                lambda: f"hash({self.pick('o')})",
            ]
        return r.choice(options)()

    def b(self) -> str:
        r = self.r
        return r.choice([
            lambda: f"{self.pick('i')} {r.choice(['<', '>', '==', '!=', '<=', '>='])} {r.randint(-1, 5)}",
            lambda: f"{self.pick('t')}.sum() > {r.randint(-3, 3)}",
            lambda: f"{self.i(1)} in {self.pick('l')}",
            lambda: f"{self.key()} in {self.pick('d')}",
            lambda: f"not {self.pick('l')}",
            lambda: f"{self.pick('i')} % 2",
            lambda: f"isinstance({self.pick('o')}, Box)",
            lambda: f"{self.pick('o')}.v is {self.pick('t')}",
            lambda: "torch.is_grad_enabled()",
            lambda: f"{self.pick('o')} == obj",
        ])()  # fmt: skip

    def key(self) -> str:
        return self.r.choice(
            [lambda: repr(self.r.choice("abc")), lambda: f"({self.i(1)}, 'k')", lambda: self.pick("o")]
        )()

    def list_(self) -> str:
        return f"({self._l()})[:6]"

    def _l(self) -> str:
        r = self.r
        return r.choice([
            lambda: f"[{self.i(1)}, {self.i(1)}, {self.i(1)}]",
            lambda: f"[v * {r.randint(1, 3)} % 13 for v in {self.pick('l')} if v > {r.randint(-1, 2)}]",
            lambda: f"sorted({self.pick('l')}, key=lambda v: -v)",
            lambda: f"list(range({self.i(1)} % 5))",
            lambda: f"{self.pick('l')}[{r.randint(0, 1)}:]",
            lambda: f"[*{self.pick('l')}[:2], {self.i(1)}]",
            lambda: f"list(itertools.islice({self.pick('l')}, {r.randint(0, 3)}))",
            lambda: f"[a + b for a, b in zip({self.pick('l')}, {self.pick('l')})]",
            lambda: f"list(map(lambda v: v % 5, {self.pick('l')}))",
            lambda: f"[(print('in', v), v)[1] for v in {self.pick('l')}[:3]]",
            lambda: f"list({{v: 0 for v in {self.pick('l')}}})",
        ])()  # fmt: skip

    # -- statements ----
    def block(self, size: int) -> None:
        """An indented block; names bound inside stay known for half of the blocks (they may be unbound at run time)."""
        before = {k: list(v) for k, v in self.names.items()}
        self.depth += 1
        for _ in range(self.r.randint(1, size)):
            self.statement()
        self.depth -= 1
        if self.r.random() < 0.9:
            self.names = before

    def statement(self) -> None:
        self.budget -= 1
        r = self.r
        simple: list[Callable[[], None]] = [
            lambda: self.bind("t", self.t()),
            lambda: self.bind("t", self.t()),
            lambda: self.bind("i", self.i()),
            lambda: self.bind("l", self.list_()),
            lambda: self.emit(f"print({self.i(1)}, 'here')"),
            lambda: self.emit(f"{self.pick('l')}.append({self.i()})"),
            lambda: self.emit(
                f"{self.pick('l')}.{r.choice(['sort()', 'reverse()', 'pop()', 'insert(0, 2)', 'clear()'])}"
            ),
            lambda: self.emit(f"{self.pick('l')}[{self.i(1)}] = {self.i()}"),
            lambda: self.emit(f"{self.pick('l')}[1:2] = {self.list_()}"),
            lambda: self.emit(f"{self.pick('l')} += [{self.i(1)}]"),
            lambda: self.emit(f"del {self.pick('l')}[4:]"),
            lambda: self.emit(f"{self.pick('d')}[{self.key()}] = {self.t()}"),
            lambda: self.emit(f"{self.pick('d')}.pop({self.key()}, None)"),
            lambda: self.emit(f"{self.pick('d')}.setdefault({self.key()}, {self.pick('t')})"),
            lambda: self.emit(f"{self.pick('o')}.v = {self.t()}"),
            lambda: self.emit(f"{self.pick('o')}.bump({self.i(1)})"),
            lambda: self.emit(f"{self.pick('o')}.log.append({self.i(1)})"),
            lambda: self.bind("o", f"Box({self.t()})"),
            lambda: self.bind("o", f"{self.pick('o')} + {self.i(1)}"),
            lambda: self.bind("d", f"{{'a': {self.t()}, **{self.pick('d')}}}"),
            lambda: self.bind("d", f"{{k: v for k, v in {self.pick('d')}.items()}}"),
            lambda: self.emit("COUNTER = COUNTER + 1"),
            lambda: self.emit(f"SEEN.append({self.i(1)})"),
            lambda: self.emit(f"a, *rest = {self.list_()} or [0]"),
            lambda: self.emit(f"if (w := {self.i()}) > 2: {self.pick('l')}.append(w)"),
            lambda: self.emit(f"{self.pick('t')}.add_({r.choice(['1', '0.5'])})"),
            lambda: self.emit(f"assert {self.b()}, 'assertion'"),
            lambda: self.bind("s", f"f'{{{self.i(1)}:>3}}|{{{self.i(1)}!r}}'"),
        ]
        compound: list[Callable[[], None]] = [
            self.if_, self.if_, self.for_, self.for_, self.while_, self.try_, self.try_, self.with_, self.closure,
            self.match_, self.generator_loop,
        ]  # fmt: skip
        if self.budget > 0 and self.depth < 3 and r.random() < 0.45:
            r.choice(compound)()
        elif self.loops and r.random() < 0.08:
            self.emit(f"if {self.b()}: {r.choice(['break', 'continue'])}")
        elif r.random() < 0.03:
            self.emit(f"if {self.b()}: return {self.pick('t')}, {self.pick('i')}")
        elif r.random() < 0.03:
            self.emit(f"if {self.b()}: raise {r.choice(['ValueError', 'KeyError'])}({self.i(1)})")
        else:
            r.choice(simple)()

    def if_(self) -> None:
        self.emit(f"if {self.b()}:")
        self.block(3)
        if self.r.random() < 0.5:
            self.emit("else:")
            self.block(3)

    def loop_body(self) -> None:
        self.loops += 1
        self.block(4)
        self.loops -= 1
        if self.r.random() < 0.2:
            self.emit("else:")
            self.block(2)

    def for_(self) -> None:
        r = self.r
        i, t = self.new("i"), self.new("t")
        head, kinds = r.choice([
            (f"{i} in range({r.randint(0, 4)})", [("i", i)]),
            (f"{i} in range({self.i(1)} % 4)", [("i", i)]),
            (f"{i} in {self.pick('l')}[:4]", [("i", i)]),
            (f"{i}, {t} in enumerate([{self.t(1)}, {self.t(1)}])", [("i", i), ("t", t)]),
            (f"{i}, {t} in zip({self.list_()}[:4], ({self.t(1)}, {self.t(1)}, {self.t(1)}))", [("i", i), ("t", t)]),
            (f"_k, {t} in list({self.pick('d')}.items())", [("t", t)]),
            (f"{t} in {self.pick('t')}.unbind(0)", []),
            (f"{i} in reversed({self.list_()}[:3])", [("i", i)]),
            (f"{i} in itertools.chain({self.list_()}[:2], [1, 2])", [("i", i)]),
        ])  # fmt: skip
        self.emit(f"for {head}:")
        before = {k: list(v) for k, v in self.names.items()}
        for kind, name in kinds:
            self.names[kind].append(name)
        self.loop_body()
        self.names = before

    def while_(self) -> None:
        k = self.new("k")
        self.emit(f"{k} = {self.r.randint(0, 3)}")
        self.emit(f"while {k} > 0 and {self.b()}:")
        self.depth += 1
        self.emit(f"{k} -= 1")
        self.depth -= 1
        self.loop_body()

    def try_(self) -> None:
        r = self.r
        self.emit("try:")
        self.depth += 1
        if r.random() < 0.4:
            self.emit(f"raising_helper({self.pick('t')}, {self.i(1)})")
        if r.random() < 0.2:
            self.emit(f"{{}}[{self.i(1)}]")
        self.depth -= 1
        self.block(3)
        if r.random() < 0.75:
            self.emit(f"except {r.choice(['ValueError', 'KeyError', 'Exception', '(IndexError, ValueError)'])} as e:")
            self.depth += 1
            self.emit("SEEN.append(type(e).__name__)")
            if r.random() < 0.15:
                self.emit(r.choice(["raise", "raise KeyError('again') from e", "raise ValueError('other')"]))
            self.depth -= 1
            self.block(2)
            if r.random() < 0.3:
                self.emit("else:")
                self.block(2)
            if r.random() < 0.3:
                self.emit("finally:")
                self.block(2)
        else:
            self.emit("finally:")
            self.block(2)

    def with_(self) -> None:
        head = self.r.choice([
            lambda: f"Manager({self.pick('o')}, {self.r.random() < 0.5})",
            lambda: f"LoudManager({self.pick('o')}, {self.r.random() < 0.5})",
            lambda: f"scope({self.pick('o')}, {self.i(1)}) as i_scope",
            lambda: "torch.no_grad()",
            lambda: f"torch.set_grad_enabled({self.b()})" if self.r.random() < 0.2 else "torch.enable_grad()",
            lambda: f"Manager({self.pick('o')}, False), torch.no_grad()",
            lambda: "contextlib.suppress(ValueError, KeyError)",
            lambda: "contextlib.nullcontext()",
        ])()  # fmt: skip
        self.emit(f"with {head}:")
        self.block(3)

    def closure(self) -> None:
        name, var = self.new("g"), self.new("i")
        self.emit(f"{var} = {self.i(1)}")
        self.emit(f"def {name}(a, b={self.i(1)}):")
        self.depth += 1
        if self.r.random() < 0.6:
            self.emit(f"nonlocal {var}")
            self.emit(f"{var} = {var} + b")
        if self.r.random() < 0.4:
            self.emit(f"print('closure', {var})")
        self.emit(f"return a * 0.5 + {var}")
        self.depth -= 1
        self.names["i"].append(var)
        for _ in range(self.r.randint(1, 2)):
            self.bind("t", f"{name}({self.t(1)}{self.r.choice(['', ', 2', ', b=3'])})")

    def match_(self) -> None:
        self.emit(f"match {self.r.choice([self.pick('l'), self.i(1), self.pick('d'), self.pick('o')])}:")
        self.depth += 1
        cases = [
            "[]", "[i_m, *_]", "0 | 1", "int()", "{'a': t_m}", "Box(kind='box')", "[_, i_m] if i_m > 0", "str()",
        ]  # fmt: skip
        for c in self.r.sample(cases, self.r.randint(1, 3)):
            self.emit(f"case {c}:")
            self.block(2)
        self.emit("case _:")
        self.block(1)
        self.depth -= 1

    def generator_loop(self) -> None:
        t = self.new("t")
        kind = self.r.choice(["numbers", "loud_numbers", "delegating"])
        if self.r.random() < 0.5:
            self.emit(f"for {t} in {kind}({self.t(1)}, {self.i(1)}):")
            self.names["t"].append(t)
            self.loop_body()
            self.names["t"].remove(t)
            return
        g = self.new("gen")
        self.emit(f"{g} = {kind}({self.t(1)}, {self.i(1)})")
        self.emit(f"{t} = next({g}, x)")
        self.names["t"].append(t)
        self.statement()
        self.emit(f"for {t} in {g}:")
        self.loop_body()

    def program(self) -> str:
        while self.budget > 0:
            self.statement()
        tensors = ", ".join(self.r.sample(self.names["t"], min(3, len(self.names["t"]))))
        self.emit(f"return {tensors}, {self.pick('i')}, {self.pick('l')}, torch.is_grad_enabled()")
        head = "def f(x, y, n, items, table, obj):\n    global COUNTER\n"
        return PRELUDE + head + "\n".join(self.lines) + "\n"


def generate(seed: int) -> str:
    """The source of the program of a seed."""
    return Generator(seed).program()
