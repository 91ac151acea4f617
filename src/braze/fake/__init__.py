"""Tracing tensors and the shape rules of ATen: tensors with a type and no data, under the real autograd engine.

Takes ATen calls (from eager code run under :class:`FakeMode`); gives for each the result's exact sizes, strides, dtype
and device, and reports it to a recorder. The running example::

    x, w = fake_from(tensor_type((64, 256))), fake_from(tensor_type((256, 256), requires_grad=True))
    with FakeMode(on_op=lambda op, args, kwargs, out: print(op, type_of(out))):
        torch.softmax(torch.relu(x @ w), -1).sum()
    # aten.mm.default f32[64, 256]; aten.relu.default f32[64, 256]; aten._softmax.default ...; aten.sum.default f32[]

Invariants: no kernel computes on user data and no Meta kernel runs; a result's type is eager's, strides included; an
operator that needs data raises :class:`DataDependent`; a real tensor that meets the trace is lifted by a callback or
raises, never baked in silently. Shape rules are a table (``rules/``) of pure functions over ``TensorType``.
"""

from . import rules as rules
from .mode import FakeMode, forget, rule_for
from .registry import RULES, DataDependent, find_rule, register, rule
from .sharded import is_sharded
from .tensor import FakeTensor, fake_from, fake_like, type_of, with_history

__all__ = [
    "RULES",
    "DataDependent",
    "FakeMode",
    "FakeTensor",
    "fake_from",
    "fake_like",
    "find_rule",
    "forget",
    "is_sharded",
    "register",
    "rule",
    "rule_for",
    "type_of",
    "with_history",
]
