"""The state of one capture, with the operations that values and instructions call on it."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import torch.nn.modules.module as nn_module

from braze.capture.guards import GlobalState
from braze.capture.sizes import FrameSizes, SizeInput, SizePolicy
from braze.capture.source import FrameSources, Source
from braze.ir import Expr, Graph, Loc, Node, TensorType

from . import (
    attributes,
    calls,
    exceptions,
    handlers,
    instr_build,
    instr_control,
    instr_load,
    known,
    operators,
    protocols,
)
from . import record as recording
from . import wrap as wrapping
from .decode import decode
from .effects import Effects
from .frame import Frame
from .guarding import Guards
from .handlers import builtin, collection, objects, tensors
from .modes import Modes
from .signals import Break
from .values.base import Value
from .values.functions import CellValue
from .values.generator import GeneratorValue
from .values.mappings import DictValue, InstanceDict, MemberDict
from .values.modules import GLOBAL_HOOKS, HOOKS
from .values.sequences import TupleValue
from .values.tensor import TensorValue


@dataclass
class Plan:
    """What earlier passes over the frame found out."""

    stop_serial: int = -1  # the moment at which to stop: frame, jumps back in it, instruction
    stop_jumps: int = 0
    stop_pc: int = -1
    reason: Break | None = None
    policy: SizePolicy = field(default_factory=SizePolicy)
    capturable: bool = False  # optimizers take the paths that branch on no tensor's value
    prepared: set[int] = field(default_factory=set)  # ids of optimizers whose state was made before the trace
    prepare: list[Callable[[], None]] = field(default_factory=list)  # to do before the next pass
    refused: set[str] = field(default_factory=set)  # functions that Python must call
    real_generators: set[int] = field(default_factory=set)  # frame numbers of generators that Python must make
    whole: bool = False  # fullgraph: what could be in the graph has to be


_LIBRARY = ("torch/", "braze/")


class Tracer:
    """One pass over a frame. Nothing real is written; throw it away to roll back."""

    def __init__(self, code: CodeType, function: FunctionType, plan: Plan, state: GlobalState) -> None:
        self.plan = plan
        self.function = function
        self.scope: dict[str, Any] = function.__globals__
        self.sources = FrameSources(code)
        self.guards = Guards(state)
        self.guards.set.here = self.loc
        self.guards.set.start = _first_line(code)
        self.graph = Graph()
        self.inputs: list[TensorValue | SizeInput] = []
        self.sizes = FrameSizes(plan.policy, self.graph, self.inputs, self.loc)
        self.float_inputs: list[TensorValue] = []  # those of ``inputs`` that are Python floats outside
        self.flagged_inputs: list[Any] = []  # those that are lazily conjugated or negated outside
        self.sharded_inputs: dict[Any, Any] = {}  # those that are DTensors outside, and how they become whole again
        self.sharded: dict[Node, Any] = {}  # calls that give DTensors, and these over tracing tensors
        self.functions_read: set[Any] = set()  # of autograd.Function classes, for what they depend on
        self.retained: list[TensorValue] = []  # made here, with retain_grad()
        self.hooked: list[TensorValue] = []  # made here, with register_hook()
        self.enclosed: set[Node] = set()  # calls of functions that torch.func transforms, not of the graph
        self.effects = Effects()
        self.modes = Modes()
        self.frames: list[Frame] = []
        self.frames_made = 0
        self.generators: list[GeneratorValue] = []
        self.stopped: list[Frame] = []  # the frames, outermost first, when the trace stopped at a planned moment
        self.handled: Value | None = None  # the exception being handled
        self.by_id: dict[int, Value] = {}  # existing objects
        self.by_fake: dict[int, TensorValue] = {}
        self.numbers: dict[Node, Expr] = {}  # integers that are read from tensors before the graph
        self.shared: dict[Any, Value] = {}  # global variables and attributes of modules
        self.static_cache: dict[int, Value] = {}
        self.class_cache: dict[tuple[type, str], Any] = {}
        self.keep: list[Any] = []  # so that ids stay valid
        self.backward_jumps = 0
        self.mode_calls: list[Any] = []  # after a break: calls that set the modes in force there
        self.found: list[Value] = []  # entries and attributes that were looked for and are there
        self._hooks_guarded = False

    # -- protocols, implemented beside their tables ----
    find = attributes.find
    lookup = attributes.lookup
    generic_get = attributes.generic_get
    generic_set = attributes.generic_set
    object_get = attributes.object_get
    object_plain_get = attributes.object_plain_get
    object_set = attributes.object_set
    enum_get = attributes.enum_get
    function_get = attributes.function_get
    class_get = attributes.class_get
    super_get = attributes.super_get
    module_get = attributes.module_get
    call_function = calls.call_function
    inline_function = calls.inline
    call_c = calls.call_c
    call_raw = calls.call_raw
    call_special = calls.call_special
    unsupported_call = calls.unsupported_call
    construct = calls.construct
    fold = calls.fold
    protocol_truth = protocols.protocol_truth
    protocol_len = protocols.protocol_len
    protocol_iter = protocols.protocol_iter
    protocol_next = protocols.protocol_next
    protocol_contains = protocols.protocol_contains
    const_contains = protocols.const_contains
    protocol_getitem = protocols.protocol_getitem
    protocol_key = protocols.protocol_key
    key_value = protocols.key_value
    internal_key = protocols.internal_key
    as_index = protocols.as_index
    unpack = protocols.unpack
    identical = protocols.identical
    is_none = protocols.is_none
    same_or_equal = protocols.same_or_equal
    isinstance_ = protocols.isinstance_
    wrap_iterable = protocols.wrap_iterable
    binary = operators.binary
    unary = operators.unary
    compare = operators.compare
    get_item = operators.get_item
    new_exception = exceptions.new_exception
    raise_value = exceptions.raise_value
    raise_ = exceptions.raise_
    raise_values = exceptions.raise_values
    raise_real = exceptions.raise_real
    exception_matches = exceptions.exception_matches
    wrap = wrapping.wrap
    wrap_static = wrapping.wrap_static
    wrap_frozen = wrapping.wrap_frozen
    wrap_shared = wrapping.wrap_shared
    wrap_default = wrapping.wrap_default
    wrap_cell = wrapping.wrap_cell
    known_value = wrapping.known_value
    remember_value = wrapping.remember_value
    record = recording.record
    known_number = known.known_number
    input_number = known.input_number
    input_truth = known.input_truth
    add_input = recording.add_input
    add_float = recording.add_float
    tensor_get = recording.tensor_get
    tensor_item = recording.tensor_item
    set_tensor_item = recording.set_tensor_item
    tensor_set = recording.tensor_set
    tensor_attribute = tensors.tensor_attribute
    make_super = builtin.make_super
    get_attr_or_none = builtin.get_attr_or_none
    convert_value = builtin.convert_value
    format_value = builtin.format_value
    mapping_items = collection.mapping_items
    update_dict = collection.update_dict
    new_instance = objects.new_instance
    run_generator = instr_control.run_generator

    def decode(self, code: CodeType) -> Any:
        return decode(code)

    def generator_rest(self, generator: Any) -> Any:
        from .split import generator_rest

        return generator_rest(self, generator)

    # -- small constructors ----
    def new_tuple(self, items: list[Value]) -> TupleValue:
        return TupleValue(items)

    def new_dict(self, items: dict[str, Value] | None = None) -> DictValue:
        return DictValue({k: v for k, v in items.items()} if items else {})

    def instance_dict(self, owner: Any, raw: Any) -> DictValue:
        """The ``__dict__`` of an existing function."""
        found = self.by_id.get(id(raw.__dict__))
        if isinstance(found, DictValue):
            return found
        if owner.source is None:
            owner.source = owner.address(self)
        out = InstanceDict(owner, raw.__dict__, owner.source.attr("__dict__"))
        self.remember_value(raw.__dict__, out)
        return out

    def special_method(self, obj: Value, name: str) -> Value:
        """``type(obj).name`` bound to ``obj``."""
        cls = obj.pytype(self)
        found = attributes.find(self, cls, name)
        assert found is not None
        return attributes.bind(self, found, obj, cls, name)

    # -- guards, places ----
    def guard_no_hooks(self, source: Source) -> None:
        """The module has no hooks, nor have all modules."""
        for h in HOOKS:
            self.guards.empty(source.instance_attr(h))
        self.guards.lacks(source, "_compiled_call_impl")
        if not self._hooks_guarded:
            self._hooks_guarded = True
            for h in GLOBAL_HOOKS:
                self.guards.empty(self.sources.global_(h, vars(nn_module)))

    def guard_mutated_inputs(self) -> None:
        """Where an input is written in place, no other input may be the same tensor."""
        tensors = [v for v in self.inputs if isinstance(v, TensorValue) and v not in self.float_inputs]
        for v in tensors:
            if v.fake(self)._version and v.raw is not None and v.source is not None and v.raw.requires_grad:
                if not v.raw.is_leaf:  # a leaf would raise, at a place where the program may catch it
                    self.guards.const(v.source.attr("is_leaf"), False)
        mutated = dict.fromkeys(v.node(self).val for v in tensors if v.fake(self)._version)
        if mutated:
            alike = [v for v in tensors if any(_may_be_one(v.node(self).val, t) for t in mutated)]
            self.guards.distinct([v.source for v in alike if v.source is not None])

    def guard_found(self) -> None:
        """What was looked for must be there again, also where the trace asked nothing else of it."""
        asked = set()
        for g in self.guards.set:
            source = getattr(g, "source", None)
            while source is not None and source not in asked:
                asked.add(source)
                source = source.base
        for v in self.found:
            if v.source is not None and v.source not in asked:
                self.guards.not_none(v.source)

    def logger_changed(self) -> bool:
        """Whether a logger that has a message to write changes in this trace: its message would be written after."""
        return any(self.by_id.get(i) in self.effects.touched for i in self.effects.logged)

    def guard_written_objects(self) -> None:
        """Where an existing object is written, no other one that the trace read may be the same."""
        written: dict[type, None] = {}
        for v in self.effects.touched:
            v = v.owner if isinstance(v, InstanceDict) else v
            if v.source is not None and not isinstance(v, (MemberDict, CellValue)):
                written[v.pytype(self)] = None
        if not written:
            return
        for cls in written:
            alike = [
                v
                for v in self.by_id.values()
                if v.source is not None and not isinstance(v, (InstanceDict, MemberDict)) and v.pytype(self) is cls
            ]
            self.guards.distinct([v.source for v in alike if v.source is not None])

    def loc(self) -> Loc | None:
        """The user's line that runs now: of the innermost frame that is not torch's own."""
        for f in reversed(self.frames):
            if f.code.user is None:
                name = f.code.code.co_filename.replace("\\", "/")
                f.code.user = not any(f"/site-packages/{p}" in name or f"/lib/python3/{p}" in name for p in _LIBRARY)
            if f.code.user:
                return _loc(f)
        return _loc(self.frames[0]) if self.frames else None


def _may_be_one(a: TensorType, b: TensorType) -> bool:
    """Whether one tensor may meet the guards of both."""
    if (a.dtype, a.device, a.rank) != (b.dtype, b.device, b.rank):
        return False
    pairs = zip((*a.sizes, *a.strides), (*b.sizes, *b.strides))
    return all(isinstance(m, Expr) or isinstance(n, Expr) or m == n for m, n in pairs)


def _first_line(code: CodeType) -> Loc:
    file, line = code.co_filename, code.co_firstlineno
    return Loc(file, line, linecache.getline(file, line).strip())


def _loc(f: Frame) -> Loc:
    found: Loc | None = f.code.locs.get(f.line)
    if found is None:
        file, line = f.code.code.co_filename, f.line or 0
        found = f.code.locs[f.line] = Loc(file, line, linecache.getline(file, line).strip())
    return found


__all__ = ["Plan", "Tracer", "handlers", "instr_build", "instr_load"]
