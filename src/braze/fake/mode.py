"""The dispatch mode: every ATen call on tracing tensors, answered from the table of shape rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import Unsupported
from ..ir import Expr, IntLike, TensorType
from ..ir.decisions import Decisions
from .custom import declared_rule
from .execute import by_execution
from .kernels import intercept
from .layout import contiguous
from .questions import FORGETTERS, ONE_TRACE, Undecided, answered, called, forget_answers
from .refused import trial_of
from .registry import Rule, find_rule
from .sharded import left_to
from .symint import Decide, refuse, to_expr, to_static, to_symint
from .tensor import FakeTensor, wrap

OnOp = Callable[[OpOverload, tuple[Any, ...], dict[str, Any], Any], None]
Lift = Callable[[torch.Tensor], FakeTensor]

_PLAIN = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)
_NUMBERS = frozenset({int, bool, float})
_MEMO_LIMIT = 10_000  # results kept an operator


class Plan:
    """How to answer one operator: its rule and where each result goes.

    ``targets[i]`` says which argument result i is (a position, or a name for ``out=``), or None for a new tensor.
    ``lists`` are the positions of lists of tensors that are written: kernels, not autograd, count their versions.
    """

    __slots__ = ("op", "rule", "targets", "fresh", "drop", "reshapes", "executed", "memo", "casts", "lists", "trial")

    def __init__(self, op: OpOverload) -> None:
        schema = op._schema
        self.op = op
        self.memo: dict[Any, Any] = {}
        written = {}
        self.drop: list[str] = []
        self.lists: list[int] = []
        for i, arg in enumerate(schema.arguments):
            alias = arg.alias_info
            if alias is not None and alias.is_write:
                for name in alias.before_set:
                    written[name] = arg.name if arg.kwarg_only else i
                if arg.kwarg_only:
                    self.drop.append(arg.name)
                elif str(arg.type).startswith("List"):
                    self.lists.append(i)
        self.targets: list[int | str | None] = []
        for ret in schema.returns:
            alias = ret.alias_info
            names = alias.before_set if alias is not None and alias.is_write else ()
            self.targets.append(next((written[n] for n in names if n in written), None))
        self.fresh = self.targets == [None]
        self.reshapes = bool(self.drop) or torch.Tag.inplace_view in op.tags
        self.casts = not (self.drop and _makes(op))  # what makes a tensor makes it of the dtype of out=
        rule = find_rule(op) or declared_rule(op, _unrecorded)
        self.executed = rule is None
        self.trial = trial_of(op)
        self.rule = rule or by_execution(op)


def rule_for(op: OpOverload) -> Rule:
    """How the types of an operator's results are found: its rule, its registered fake implementation, or a trial.

    The rule is called with types for tensors and raises Unsupported when all three are missing.
    """
    return (_PLANS.get(op) or _plan(op)).rule


def _has_tensors(op: OpOverload) -> bool:
    schema = op._schema
    return any("Tensor" in str(x.type) for x in (*schema.arguments, *schema.returns))


def _makes(op: OpOverload) -> bool:
    """Whether the operator makes a tensor of a dtype that its caller chooses (``arange``, ``full``)."""
    packet = getattr(getattr(torch.ops, op.namespace), op._schema.name.split("::")[1])
    forms = [getattr(packet, name)._schema.arguments for name in packet.overloads()]
    return any(a.name == "device" for arguments in forms for a in arguments)


def _unrecorded(call: Callable[[], Any]) -> Any:
    with FakeMode():
        return call()


_PLANS: dict[Any, Plan] = {}

# C++ code that needs the sizes as plain integers: symbolic ones become static, by a guard.
_QUERIES: dict[str, Callable[[TensorType], tuple[IntLike, ...]]] = {
    "aten::size": lambda t: t.sizes,
    "aten::stride": lambda t: t.strides,
}
_DEFAULT_DTYPE = [torch.get_default_dtype()]
_DEPTH = [0]  # modes that are entered


# Derivatives conjugate the number in ``x * 1j``, which comes as a Python number. These have no plan in the table.
_OF_NUMBERS: dict[OpOverload, Callable[[Any], torch.Tensor]] = {
    torch.ops.aten._conj.default: lambda x: torch.tensor(x).conj_physical(),
}


def _plan(op: OpOverload) -> Plan:
    plan = Plan(op)
    if op not in _OF_NUMBERS:
        _PLANS[op] = plan
    return plan


class FakeMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``with FakeMode(on_op, lift) as mode:`` answers every ATen call from shape rules and reports it.

    ``on_op(op, args, kwargs, out)`` is called after each operator, with :class:`FakeTensor` for every tensor; in-place
    operators give their argument as ``out``. ``lift(real)`` gives the fake for a real tensor that meets the trace;
    without it such a tensor raises Unsupported. ``decide(op, a, b)`` answers what the ranges of symbolic sizes leave
    open (and records a guard); by default Unsupported. :class:`~braze.ir.decisions.Decisions` also puts what it decided
    into every type that it meets. ``executed_rules`` holds the operators that have no rule and
    were answered by running them on zeros.
    """

    def __init__(self, on_op: OnOp | None = None, lift: Lift | None = None, decide: Decide = refuse) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.on_op = on_op
        self.lift = lift
        self.decide = decide
        self.decisions = decide if isinstance(decide, Decisions) else None
        self.executed_rules: set[OpOverload] = set()
        self._ends: list[Callable[[], None] | None] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import and wrap with torch's own compiler

    def __enter__(self) -> FakeMode:
        if torch.get_default_dtype() is not _DEFAULT_DTYPE[0]:
            forget()
        if self.decisions is not None:
            self._lock = ONE_TRACE[0]
            self._lock.acquire()
        _DEPTH[0] += 1
        self._ends.append(intercept())
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        _DEPTH[0] -= 1
        end = self._ends.pop()
        if end is not None:
            end()
        if not _DEPTH[0] and answered():
            forget_answers()
        if self.decisions is not None:
            self._lock.release()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (len(types) > 1 or types and types[0] is not FakeTensor) and left_to(types, func):
            return NotImplemented
        plan = _PLANS.get(func)
        if plan is None:
            query = _QUERIES.get(func._schema.name)
            if query is not None:
                return [to_static(n, self.decide) for n in query(args[0].val)]
            if not _has_tensors(func):  # profiler marks, questions about dtypes: nothing of the trace
                return func(*args, **(kwargs or {}))
            if func in _OF_NUMBERS and type(args[0]) is not FakeTensor:
                return _OF_NUMBERS[func](args[0])
            plan = _plan(func)
        if self.decisions is not None and self.decisions.refined:
            return self._general(plan, args, kwargs)
        key: list[Any] = []
        for a in args:
            t = type(a)
            if t is FakeTensor:
                key.append(a.val)
            elif t in _PLAIN:
                key.append(a)
                key.append(t)
            elif t is list and _NUMBERS.issuperset(map(type, a)):
                key.append(tuple(a))
            else:
                return self._general(plan, args, kwargs)
        if kwargs:
            return self._general(plan, args, kwargs)
        memo = plan.memo
        k = tuple(key)
        res = memo.get(k)
        if res is None:
            res = self._rule(plan, [a.val if type(a) is FakeTensor else a for a in args], {})
            if len(memo) > _MEMO_LIMIT:
                memo.clear()
            memo[k] = res
        if plan.fresh and type(res) is TensorType:
            out: Any = wrap(res, False, self.decide)
        else:
            out = self._results(plan, res, args, {})
        if plan.executed:
            self.executed_rules.add(func)
        if self.on_op is not None:
            self.on_op(func, args, {}, out)
        return out

    def _general(self, plan: Plan, args: Any, kwargs: Any) -> Any:
        """As ``__torch_dispatch__``, for lists of tensors, keyword arguments and real tensors."""
        args = tuple([self._fake(a) for a in args])
        kwargs = {k: self._fake(v) for k, v in kwargs.items()} if kwargs else {}
        vals = [_value(a) for a in args]
        kvals = {k: _value(v) for k, v in kwargs.items() if k not in plan.drop}
        key = (_key(vals), _key(list(kvals.items())))
        try:
            res = plan.memo.get(key)
        except TypeError:
            res = self._rule(plan, vals, kvals)
        else:
            if res is None:
                res = plan.memo[key] = self._rule(plan, vals, kvals)
        out = self._results(plan, res, args, kwargs)
        for i in plan.lists:
            torch.autograd.graph.increment_version(args[i])
        if plan.executed:
            self.executed_rules.add(plan.op)
        if self.on_op is not None:
            self.on_op(plan.op, args, kwargs, out)
        return out

    def _rule(self, plan: Plan, vals: Any, kvals: Any) -> Any:
        if plan.trial is not None:
            plan.trial(vals, kvals)
        try:
            return plan.rule(*vals, **kvals)
        except Undecided:
            if self.decide is refuse:
                raise
            return called(plan.rule, vals, kvals, self.decide, self._settled)

    def _settled(self, tree: Any) -> Any:
        return tree if self.decisions is None else self.decisions.put(tree)

    def _fake(self, a: Any) -> Any:
        """The argument with real tensors lifted, and with what was decided."""
        if isinstance(a, torch.Tensor):
            if type(a) is FakeTensor:
                if self.decisions is not None:
                    a.val = self.decisions.resolve_type(a.val)
                return a
            if self.lift is None:
                what = f"a real tensor ({a.dtype}, {tuple(a.shape)}) met traced ones"
                raise Unsupported(what, hint="pass it as an input of the compiled function")
            return self.lift(a)
        if type(a) in (list, tuple):
            return [self._fake(x) for x in a]
        if isinstance(a, torch.SymInt):
            return to_expr(a) if self.decisions is None else self.decisions.resolve(to_expr(a))
        return a

    def _results(self, plan: Plan, res: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        targets = plan.targets
        if len(targets) == 1:
            return self._result(plan, targets[0], res, args, kwargs)
        if not targets:
            return None
        if len(res) != len(targets):
            raise AssertionError(f"the rule of {plan.op} gave {len(res)} results, not {len(targets)}")
        return tuple([self._result(plan, t, r, args, kwargs) for t, r in zip(targets, res)])

    def _result(self, plan: Plan, target: int | str | None, res: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if target is None:
            return self._wrap(res)
        out = args[target] if type(target) is int else kwargs[target]  # type: ignore[index]
        if type(res) is not TensorType or res is out.val:
            return out
        if self.decisions is not None:  # the rule may have had sizes decided
            out.val = self.decisions.resolve_type(out.val)
        old = out.val
        if torch.Tag.inplace_view in plan.op.tags:
            out.data = self._wrap(res)
        elif res.sizes != old.sizes:
            if not plan.reshapes:
                raise RuntimeError(
                    f"output with shape {list(old.sizes)} doesn't match the broadcast shape {list(res.sizes)}"
                )
            strides = contiguous(res.sizes) if plan.executed else res.strides
            out.data = self._wrap(TensorType(res.sizes, strides, old.dtype, old.device))
        if plan.casts and not torch.can_cast(res.dtype, old.dtype):
            raise RuntimeError(f"result type {res.dtype} can't be cast to the desired output type {old.dtype}")
        return out

    def _wrap(self, t: Any) -> Any:
        if type(t) is TensorType:
            return wrap(t, False, self.decide)
        if type(t) in (list, tuple):
            return [self._wrap(u) for u in t]
        return to_symint(t, self.decide) if type(t) is Expr else t


def _value(a: Any) -> Any:
    """What a rule sees for an argument."""
    if type(a) is FakeTensor:
        return a.val
    if type(a) is list:
        return [_value(x) for x in a]
    return a


def _key(v: Any) -> Any:
    if type(v) in (list, tuple):
        return tuple([_key(x) for x in v])
    return v if type(v) is TensorType else (type(v), v)


def _forget_results() -> None:
    for plan in _PLANS.values():
        plan.memo.clear()


FORGETTERS.append(_forget_results)


def forget() -> None:
    """Drop every memoised result: the default dtype changed, or rules were added."""
    _DEFAULT_DTYPE[0] = torch.get_default_dtype()
    _PLANS.clear()
