"""Random Python programs over tensors, numbers, containers, objects and modules, with graph breaks in any place.

``generate(seed)`` is the source of one module: :mod:`fuzz_prelude` and a function
``f(x, y, n, items, table, obj, net, conf, few, word)``. Every name is bound before it is used on most paths; where it
is not, both sides must raise the same error.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from fuzz_prelude import PRELUDE

HEAD = """
def make():
  shift = 1
  def set_shift(v):
    nonlocal shift
    shift = v
  def f(x, y, n, items, table, obj, net, conf, few, word):
    global COUNTER, SCALE, KIND
    base, derived = Base(x), Derived(y)
    shift
"""
TAIL = """
    # f ends
  return f, set_shift
f, set_shift = make()
"""


class Generator:
    """Writes one program. ``names`` are the variables bound so far, by kind."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 0
        self.fresh = 0
        self.names: dict[str, list[str]] = {
            "t": ["x", "y"], "i": ["n"], "l": ["items"], "d": ["table"], "o": ["obj"], "s": ["word"], "e": ["few"],
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
        old = [v for v in self.names[kind] if v not in ("items", "table", "obj", "few")]
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
                *self.more_tensors(),
            ]
        return r.choice(options)()

    def more_tensors(self) -> list[Callable[[], str]]:
        """State that changes between calls, views, breaks inside comprehensions and callees."""
        t, i, lst = (lambda: self.pick("t")), (lambda: self.i(1)), (lambda: self.pick("l"))
        state = [
            lambda: f"{self.r.choice(['NET', 'net'])}({t()})",
            lambda: f"net({t()}, k={i()})",
            lambda: f"net.loud({t()})",
            lambda: f"{t()} * {self.r.choice(['SCALE', 'Base.factor', 'Box.weight', 'net.gain', 'shift'])}",
            lambda: f"{t()} * {self.r.choice(['CONF', 'conf'])}.rate",
            lambda: f"{t()} + TABLE.{self.r.choice(['get', 'setdefault'])}('{self.r.choice('kz')}', 1)",
            lambda: f"conf.fn({t()})",
            lambda: f"conf.part({t()}{self.r.choice(['', ', k=1'])})",
            lambda: f"quiet_helper({t()})",
            lambda: f"Base.shift({t()}, {i()})",
            lambda: f"{self.r.choice(['Base', 'Derived'])}.make({t()}).apply({t()}, {i()})",
            lambda: f"base({t()})",
            lambda: f"sum(base, {t()})",
            lambda: f"Pair({t()}, {i()}).both()",
            lambda: f"Point({t()}, {i()}).x",
        ]
        shapes = [
            lambda: f"{t()}[:]",
            lambda: f"{t()}.{self.r.choice(['clone()', 'detach()', 't().t()', 'flip(0)', 'contiguous()', 'abs()'])}",
            lambda: f"torch.where({t()} > 0, {t()}, {t()})",
            lambda: f"{t()}.reshape(-1).view({t()}.shape)",
            lambda: f"({t()} / max({t()}.shape[0], 1))",
            lambda: f"torch.cat([{t()}, {t()}])[:{t()}.shape[0]]",
            lambda: f"torch.full(({t()}.shape[0], 3), float({i()}))",
            lambda: f"{t()}.new_ones(x.shape)",
            lambda: f"({t()} * len({t()}) + {t()}.numel())",
        ]
        calls = [
            lambda: f"recurse({t()}, {i()} % 4)",
            lambda: f"finder({t()}, {lst()}[:3])",
            lambda: f"careful({t()}, {i()}, {self.pick('o')})",
            lambda: f"sum([loud_helper({t()}, v) for v in {lst()}[:2]], {t()})",
            lambda: f"sum((deep_helper({t()}, v) for v in {lst()}[:2]), {t()})",
            lambda: f"{{v: loud_helper({t()}, v) for v in {lst()}[:2]}}.get({i()}, {t()})",
            lambda: f"[f(v) for v in {lst()}[:2] for f in [lambda a: {t()} * a + v]][-1:][0] if {lst()} else {t()}",
            lambda: f"sum([{t()} * a for _, a in pairs({lst()}[:3])], {t()})",
            lambda: f"next((v * {t()} for v in {lst()} if v > {i()}), {t()})",
            lambda: f"max([{t()}, {t()}], key=lambda v: float(v.sum()))",
            lambda: f"functools.partial(quiet_helper, k={i()})({t()})",
            lambda: f"dict(zip('ab', ({t()}, {t()})))['b']",
        ]
        return [lambda: self.r.choice(state)(), lambda: self.r.choice(state)(), lambda: self.r.choice(state)(),
                lambda: self.r.choice(shapes)(), lambda: self.r.choice(calls)(),
                lambda: self.r.choice(calls)()]  # fmt: skip

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
                lambda: f"len({self.pick('e')})",
                lambda: f"sum(sorted({self.pick('e')})) % 7",
                lambda: (
                    f"len({self.r.choice(['TABLE', 'NAMES', 'conf.flags', 'conf.sizes', 'conf.shared', 'net.layers'])})"
                ),
                lambda: f"getattr(conf, '{self.r.choice(['extra', 'rate', 'limit'])}', 2)",
                lambda: "conf.nested['a'].get('b', 0)",
                lambda: "base.dyn_name",
                lambda: f"sum(conf.sizes) * {self.i(1)} % 11",
                lambda: f"len(tally({self.pick('l')}, a={self.i(1)}))",
                lambda: f"len({self.pick('s')})",
                lambda: f"{self.r.choice(['KIND', 'Kind.A'])}.value",
                lambda: f"sum(v for _, v in pairs({self.pick('l')}[:4])) % 7",
                lambda: "len(TABLE) + sum(1 for k in TABLE if k == 'k')",
                lambda: f"list(TABLE).index('k') if 'k' in TABLE else {self.i(1)}",
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
            lambda: self.state_test(),
            lambda: self.state_test(),
        ])()  # fmt: skip

    def state_test(self) -> str:
        r = self.r
        return r.choice([
            "conf.mode == 'a'", "'p' in conf.flags", "'k' in TABLE", "'z' in TABLE", "hasattr(conf, 'extra')",
            "KIND is Kind.A", "conf.limit is None", "conf.limit", "Box.kind == 'box'", "net.training", "'r' in NAMES",
            "isinstance(conf, OtherConf)", "hasattr(obj, 'extra')", "conf.shared is conf.nested['list']",
            "net.lin.bias is None", "conf.fn is quiet_helper", "SCALE == 2", "isinstance(SCALE, int)", "3 in base",
            "x is y", "x.requires_grad", "y.shape == x.shape", "x.shape[0] > 2", "conf.sizes == (1, 2)",
            "net.lin.weight.requires_grad", "not TABLE", "list(TABLE)[:1] == ['k']", "type(n) is int", "callable(conf)",
            "'rate' in vars(conf)", "word.startswith('w')", f"{self.i(1)} in {self.pick('e')}", "word in ('word', 'w')",
            f"any(v > 2 for v in {self.pick('l')})", f"all(v < 9 for v in {self.pick('l')})",
            "issubclass(Derived, Base)",
            f"{self.pick('e')} == {{1, 2}}", f"{self.pick('l')} == [3, 1, 2]", f"{self.pick('s')} == word",
        ])  # fmt: skip

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
            lambda: f"sorted({self.pick('e')})",
            lambda: f"list(itertools.accumulate({self.pick('l')}[:4]))",
            lambda: f"[len(loud_helper(x, v)) for v in {self.pick('l')}[:2]]",
            lambda: f"[*collections.deque({self.pick('l')}, maxlen=3)]",
            lambda: f"[v for v, k in collections.Counter({self.pick('l')}).items() if k]",
            lambda: f"list(filter(None, {self.pick('l')}))",
            lambda: "list(conf.sizes)",
            lambda: f"[v for vs in tally({self.pick('l')}).values() for v in vs]",
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
            self.in_place,
            self.in_place,
            self.containers,
            self.containers,
            self.attributes,
            self.attributes,
        ]
        compound: list[Callable[[], None]] = [
            self.if_, self.if_, self.for_, self.for_, self.while_, self.try_, self.try_, self.with_, self.closure,
            self.match_, self.generator_loop, self.sender, self.loop_of_tries, self.inner_class, self.shared_cell,
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

    def in_place(self) -> None:
        t, u, i = self.pick("t"), self.pick("t"), self.i(1)
        self.emit(self.r.choice([
            f"{t}[0].add_({i})", f"{t}[:, 1:] *= 2", f"{t}[0] = {u}[0]", f"{t}.copy_({u})", f"{t} += {u}",
            f"{t}.reshape(-1)[{i} % 3] = 1.0", f"{t}[{u} > 0] = 0.5", f"{t}.mul_({u})", f"{t}.t().sub_({i})",
            f"{t}.zero_()", f"{t}[:, {i} % 3] += {u}[:, 0]", f"{t}[...].neg_()", f"{t}.unbind(1)[0].add_(1)",
            f"torch.add({t}, 1, out={u})", f"{t}.clamp_(min={i})", f"{t}.fill_({u}.sum())",
        ]))  # fmt: skip

    def containers(self) -> None:
        d, e, lst, t, i = self.pick("d"), self.pick("e"), self.pick("l"), self.t(1), self.i(1)
        r = self.r
        k = self.key() if "obj" not in d else repr("a")
        self.emit(r.choice([
            f"del {d}[{k}]", f"{d}.update(b={t})", f"{d}.popitem()", f"{d} |= {{'c': {t}}}",
            f"{d}.update({{{k}: {t}}})",
            f"{e}.add({i})", f"{e}.discard({i})", f"{e}.remove({i})", f"{e} |= {{{i}, 1}}", f"{e} &= {{1, 2, {i}}}",
            f"{lst}.extend(sorted({e}))", f"{lst}.remove({i})", f"{lst}[::2] = [0] * len({lst}[::2])", f"{lst} *= 2",
            f"{lst}[:] = {lst}[:5]", "TABLE['k'] = " + i, "TABLE.pop('m', None)",
            "NAMES.append('x')" , "TABLE.update(z=1)",
            f"for _k, _v in {d}.items(): {d}[_k] = _v * 2", f"for _k in list({d}): {d}[_k] = {t}",
            f"conf.nested['list'].append({i})", "conf.shared[0] += 1", f"conf.flags.add('{r.choice('pz')}')",
            f"{d}.setdefault('l', []) and None", f"SEEN.extend(reversed({lst}[:2]))",
            f"SEEN.append(list({d})[0] == 'a')",
            f"conf.nested['a']['b'] = {i}", f"{lst}.sort(key=lambda v: (v % 2, v))",
            f"{e}.symmetric_difference_update({lst}[:2])",
            f"SEEN[-1:] = [{i}]", f"{lst}[{i}], {lst}[-1] = {lst}[-1], {lst}[0]",
        ]))  # fmt: skip

    def attributes(self) -> None:
        i, t = self.i(1), self.t(1)
        self.emit(self.r.choice([
            f"conf.extra = {i}", "del conf.extra", f"setattr(conf, 'limit', {i})", f"conf.rate = {i}", "conf.rate *= 2",
            f"conf.__dict__['z'] = {i}", f"base.seen += {i}", f"Base.factor = {i} % 3", f"base.v = {t}",
            "SCALE = SCALE + 1", f"SCALE = {i}", "conf.mode += 'x'", f"base.extra = {t}",
            "del base.extra", "Box.weight += 1",
            f"derived.level = {i}", "derived.level += 1", f"net.gain = {i} * 0.5",
            f"net.count += {i}", f"net.extra = {t}",
            "net.count = net.count * 2", f"derived.apply({t})", "conf.fn = other_helper",
            "KIND = Kind.B", "delattr(conf, 'rate')",
            f"conf.__dict__.update(extra={i})", "base.__dict__.clear()" , f"obj.__class__.kind = 'k{self.fresh % 2}'",
            "net.lin.bias.data.add_(1)" if self.r.random() < 0.2 else "net.seen = getattr(net, 'seen', 0) + 1",
            "conf.box = obj", f"obj.other = {t}", "net.eval()", "net.train()",
        ]))  # fmt: skip

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

    def sender(self) -> None:
        g, t = self.new("gen"), self.new("t")
        self.emit(f"{g} = accumulate({self.pick('t')})")
        self.emit(f"{t} = next({g})")
        self.names["t"].append(t)
        self.emit(f"for _v in {self.pick('l')}[:3]:")
        self.depth += 1
        self.emit(f"{t} = {g}.send(_v)")
        self.depth -= 1
        self.loops += 1
        self.block(2)
        self.loops -= 1
        if self.r.random() < 0.3:
            self.emit(self.r.choice([f"{g}.close()", f"SEEN.append(next({g}, None) is None)"]))

    def loop_of_tries(self) -> None:
        r = self.r
        i = self.new("i")
        self.emit(f"for {i} in {r.choice([f'range({r.randint(1, 3)})', self.pick('l') + '[:3]'])}:")
        before = {k: list(v) for k, v in self.names.items()}
        self.names["i"].append(i)
        self.depth += 1
        self.loops += 1
        self.emit(r.choice(["try:", "with Manager(obj, True):", "with contextlib.suppress(ValueError):"]))
        kind = self.lines[-1].strip()
        self.block(3)
        if kind == "try:":
            self.emit(f"except {r.choice(['ValueError', 'Exception'])}:")
            self.depth += 1
            self.emit(r.choice(["continue", "break", "pass", f"{self.pick('l')}.append({i})", "print('caught')"]))
            self.depth -= 1
            self.emit("finally:")
            self.block(2)
        self.loops -= 1
        self.depth -= 1
        self.names = before

    def inner_class(self) -> None:
        name, o = self.new("C"), self.new("c")
        self.emit(f"class {name}({self.r.choice(['Base', 'Derived', 'Box'])}):")
        self.depth += 1
        self.emit(f"factor = {self.i(1)}")
        self.emit(f"def extra(self, a, k={self.i(1)}): return a * self.v + k")
        self.depth -= 1
        self.emit(f"{o} = {name}({self.t(1)})")
        self.bind("t", f"{o}.extra({self.t(1)})")

    def shared_cell(self) -> None:
        var, get, put = self.new("i"), self.new("g"), self.new("g")
        self.emit(f"{var} = {self.i(1)}")
        self.emit(f"def {put}(v):")
        self.depth += 1
        self.emit(f"nonlocal {var}")
        self.emit(f"{var} = {var} * 2 + v")
        if self.r.random() < 0.3:
            self.emit(f"print('put', {var})")
        self.depth -= 1
        self.emit(f"{get} = lambda a: a + {var}")
        self.names["i"].append(var)
        self.emit(f"for _v in {self.pick('l')}[:2]: {put}(_v)")
        self.bind("t", f"{get}({self.t(1)})")
        self.emit(f"conf.fn = {get}" if self.r.random() < 0.2 else f"SEEN.append({var})")

    def program(self) -> str:
        while self.budget > 0:
            self.statement()
        tensors = ", ".join(self.r.sample(self.names["t"], min(3, len(self.names["t"]))))
        self.emit(f"return {tensors}, {self.pick('i')}, {self.pick('l')}, {self.pick('d')}, torch.is_grad_enabled()")
        return PRELUDE + HEAD + "\n".join(self.lines) + "\n" + TAIL


def generate(seed: int) -> str:
    """The source of the program of a seed."""
    return Generator(seed).program()
