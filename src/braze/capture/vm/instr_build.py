"""Instructions that compute: operators, comparisons, containers, unpacking, strings, pattern matching."""

from __future__ import annotations

import dis
import sys

from .decode import Op, op
from .frame import Frame
from .signals import NotConst, unsupported
from .values.base import NONE, Const, Value, boolean
from .values.functions import MadeFunction
from .values.mappings import DictValue, SetValue
from .values.sequences import ListValue, SliceValue, TupleValue
from .values.symbolic import joined

BINARY = "+ & // << @ * % | ** >> - / ^ += &= //= <<= @= *= %= |= **= >>= -= /= ^=".split()
_COMPARE_SHIFT = 5 if sys.version_info >= (3, 13) else 4 if sys.version_info >= (3, 12) else 0


@op("BINARY_OP")
def binary_op(f: Frame, o: Op) -> None:
    b, a = f.stack.pop(), f.stack.pop()
    f.stack.append(f.vm.binary(BINARY[o.arg], a, b))


@op("UNARY_NEGATIVE")
def unary_negative(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.unary("-", f.stack.pop()))


@op("UNARY_POSITIVE")
def unary_positive(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.unary("+", f.stack.pop()))


@op("UNARY_INVERT")
def unary_invert(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.unary("~", f.stack.pop()))


@op("UNARY_NOT")
def unary_not(f: Frame, o: Op) -> None:
    f.stack.append(boolean(not f.stack.pop().truth(f.vm)))


@op("TO_BOOL")
def to_bool(f: Frame, o: Op) -> None:
    f.stack.append(boolean(f.stack.pop().truth(f.vm)))


@op("COMPARE_OP")
def compare_op(f: Frame, o: Op) -> None:
    b, a = f.stack.pop(), f.stack.pop()
    out = f.vm.compare(dis.cmp_op[o.arg >> _COMPARE_SHIFT], a, b)
    if sys.version_info >= (3, 13) and o.arg & 16:
        out = boolean(out.truth(f.vm))
    f.stack.append(out)


@op("IS_OP")
def is_op(f: Frame, o: Op) -> None:
    b, a = f.stack.pop(), f.stack.pop()
    f.stack.append(boolean(f.vm.identical(a, b) != bool(o.arg)))


@op("CONTAINS_OP")
def contains_op(f: Frame, o: Op) -> None:
    container, item = f.stack.pop(), f.stack.pop()
    f.stack.append(boolean(container.contains(f.vm, item) != bool(o.arg)))


# ---- containers


@op("BUILD_TUPLE")
def build_tuple(f: Frame, o: Op) -> None:
    f.stack.append(TupleValue(f.pop_n(o.arg)))


@op("BUILD_LIST")
def build_list(f: Frame, o: Op) -> None:
    f.stack.append(ListValue(f.pop_n(o.arg)))


@op("BUILD_SET")
def build_set(f: Frame, o: Op) -> None:
    f.stack.append(SetValue([x.key(f.vm) for x in f.pop_n(o.arg)], added=True))


@op("BUILD_MAP")
def build_map(f: Frame, o: Op) -> None:
    items = f.pop_n(2 * o.arg)
    out = DictValue()
    for k, v in zip(items[::2], items[1::2]):
        out.set_item(f.vm, k, v)
    f.stack.append(out)


@op("BUILD_CONST_KEY_MAP")
def build_const_key_map(f: Frame, o: Op) -> None:
    keys = f.stack.pop()
    assert isinstance(keys, TupleValue)
    out = DictValue()
    for k, v in zip(keys.items(f.vm), f.pop_n(o.arg)):
        out.set_item(f.vm, k, v)
    f.stack.append(out)


@op("BUILD_STRING")
def build_string(f: Frame, o: Op) -> None:
    f.stack.append(joined(f.vm, f.pop_n(o.arg)))


@op("BUILD_SLICE")
def build_slice(f: Frame, o: Op) -> None:
    parts = f.pop_n(o.arg)
    f.stack.append(SliceValue(parts[0], parts[1], parts[2] if o.arg == 3 else NONE))


@op("LIST_APPEND")
def list_append(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    target = f.stack[-o.arg]
    assert isinstance(target, ListValue)
    target.extend(f.vm, [v])


@op("SET_ADD")
def set_add(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    target = f.stack[-o.arg]
    assert isinstance(target, SetValue)
    target.edit(f.vm)[v.key(f.vm)] = None


@op("MAP_ADD")
def map_add(f: Frame, o: Op) -> None:
    value, key = f.stack.pop(), f.stack.pop()
    f.stack[-o.arg].set_item(f.vm, key, value)


@op("LIST_EXTEND")
def list_extend(f: Frame, o: Op) -> None:
    items = f.vm.unpack(f.stack.pop())
    target = f.stack[-o.arg]
    assert isinstance(target, ListValue)
    target.extend(f.vm, items)


@op("SET_UPDATE")
def set_update(f: Frame, o: Op) -> None:
    items = f.vm.unpack(f.stack.pop())
    target = f.stack[-o.arg]
    assert isinstance(target, SetValue)
    target.edit(f.vm).update((x.key(f.vm), None) for x in items)


@op("DICT_UPDATE")
def dict_update(f: Frame, o: Op) -> None:
    source = f.stack.pop()
    f.vm.update_dict(f.stack[-o.arg], source)


@op("DICT_MERGE")
def dict_merge(f: Frame, o: Op) -> None:
    """``f(**mapping)``: as DICT_UPDATE, but a key that is there already is an error."""
    source = f.stack.pop()
    target = f.stack[-o.arg]
    assert isinstance(target, DictValue)
    extra = f.vm.mapping_items(source)
    for k, v in extra:
        key = k.key(f.vm)
        if key in target.known:
            f.vm.raise_(TypeError, f"got multiple values for keyword argument {key!r}")
        target.known[key] = v


@op("LIST_TO_TUPLE")
def list_to_tuple(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    assert isinstance(v, ListValue)
    f.stack.append(TupleValue(v.items(f.vm)))


# ---- unpacking


@op("UNPACK_SEQUENCE")
def unpack_sequence(f: Frame, o: Op) -> None:
    v = f.stack.pop()
    items = f.vm.unpack(v)
    if len(items) < o.arg:
        f.vm.raise_(ValueError, f"not enough values to unpack (expected {o.arg}, got {len(items)})")
    if len(items) > o.arg:
        got = f", got {len(items)}" if sys.version_info >= (3, 14) else ""
        f.vm.raise_(ValueError, f"too many values to unpack (expected {o.arg}{got})")
    f.stack += reversed(items)


@op("UNPACK_EX")
def unpack_ex(f: Frame, o: Op) -> None:
    before, after = o.arg & 0xFF, o.arg >> 8
    items = f.vm.unpack(f.stack.pop())
    if len(items) < before + after:
        what = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        f.vm.raise_(ValueError, what)
    end = len(items) - after
    f.stack += [*reversed(items[end:]), ListValue(items[before:end]), *reversed(items[:before])]


# ---- strings


@op("FORMAT_VALUE")
def format_value(f: Frame, o: Op) -> None:
    spec = f.stack.pop() if o.arg & 4 else None
    v = f.stack.pop()
    f.stack.append(f.vm.format_value(v, o.arg & 3, spec))


@op("CONVERT_VALUE")
def convert_value(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.convert_value(f.stack.pop(), o.arg))


@op("FORMAT_SIMPLE")
def format_simple(f: Frame, o: Op) -> None:
    f.stack.append(f.vm.format_value(f.stack.pop(), 0, None))


@op("FORMAT_WITH_SPEC")
def format_with_spec(f: Frame, o: Op) -> None:
    spec, v = f.stack.pop(), f.stack.pop()
    f.stack.append(f.vm.format_value(v, 0, spec))


# ---- functions


@op("MAKE_FUNCTION")
def make_function(f: Frame, o: Op) -> None:
    code = f.stack.pop().as_const(f.vm)
    out = MadeFunction(code, f.globals, code.co_qualname)
    flags = o.arg or 0
    for bit in (8, 4, 2, 1):
        if flags & bit:
            _set_part(f, out, bit, f.stack.pop())
    f.stack.append(out)


@op("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(f: Frame, o: Op) -> None:
    out, v = f.stack.pop(), f.stack.pop()
    assert isinstance(out, MadeFunction)
    _set_part(f, out, o.arg, v)
    f.stack.append(out)


def _set_part(f: Frame, out: MadeFunction, bit: int, v: Value) -> None:
    if bit == 8:
        assert isinstance(v, TupleValue)
        out._cells = v.items(f.vm)  # type: ignore[assignment]
    elif bit == 4:
        out.annotations = v
    elif bit == 2:
        assert isinstance(v, DictValue)
        out._kwdefaults = dict(v.items(f.vm))
    else:
        assert isinstance(v, TupleValue)
        out._defaults = v.items(f.vm)


# ---- match


@op("GET_LEN")
def get_len(f: Frame, o: Op) -> None:
    f.stack.append(Const(f.stack[-1].length(f.vm)))


@op("MATCH_SEQUENCE")
def match_sequence(f: Frame, o: Op) -> None:
    cls = f.stack[-1].pytype(f.vm)
    f.stack.append(boolean(cls.__flags__ & (1 << 5)))


@op("MATCH_MAPPING")
def match_mapping(f: Frame, o: Op) -> None:
    cls = f.stack[-1].pytype(f.vm)
    f.stack.append(boolean(cls.__flags__ & (1 << 6)))


@op("MATCH_KEYS")
def match_keys(f: Frame, o: Op) -> None:
    keys, subject = f.stack[-1], f.stack[-2]
    assert isinstance(keys, TupleValue)
    out = []
    for k in keys.items(f.vm):
        if not subject.contains(f.vm, k):
            f.stack.append(NONE)
            return
        out.append(subject.get_item(f.vm, k))
    f.stack.append(TupleValue(out))


@op("MATCH_CLASS")
def match_class(f: Frame, o: Op) -> None:
    names, cls, subject = f.stack.pop(), f.stack.pop(), f.stack.pop()
    vm = f.vm
    try:
        raw = cls.as_const(vm)
    except NotConst:
        unsupported("matching a class that the compiled function made")
    if not vm.isinstance_(subject, raw):
        f.stack.append(NONE)
        return
    self_matching = (bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple)
    fields = list(getattr(raw, "__match_args__", ()))
    out: list[Value] = []
    attributes: list[str] = []
    if o.arg and not fields and raw in self_matching:
        out.append(subject)
    else:
        if o.arg > len(fields):
            vm.raise_(TypeError, f"{raw.__name__}() accepts {len(fields)} positional sub-patterns ({o.arg} given)")
        attributes = fields[: o.arg]
    attributes += names.as_const(vm)
    for n in attributes:
        v = vm.get_attr_or_none(subject, n)
        if v is None:
            f.stack.append(NONE)
            return
        out.append(v)
    f.stack.append(TupleValue(out))
