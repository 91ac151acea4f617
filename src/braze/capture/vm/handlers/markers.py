"""Markers that PyTorch's own compiler puts on functions, recognised by name: the one place that knows them."""

from __future__ import annotations

from types import CodeType, FunctionType
from typing import Any

import torch

from braze import _C  # type: ignore[attr-defined]
from braze.capture import directives

_DISABLED = "_torch" + "dynamo_disable"
_SCRIPTED = "_torch" + "dynamo_inline"
_ORIGINAL = "_torch" + "dynamo_orig_callable"


# The code of the wrapper that torch puts around functions of its own which its compiler must not trace.
DISABLED_BY_TORCH = getattr(torch, "_disable_" + "dynamo")(lambda: None).__code__


_PEER = "torch._" + "dynamo"


def is_disabled(function: FunctionType) -> bool:
    """Whether ``braze.disable`` or ``torch.compiler.disable`` was applied to the function. The latter's mark on a
    function itself (without a wrapper) is told to the frame hook."""
    if directives.DISABLED in function.__dict__:
        return True
    if not function.__dict__.get(_DISABLED, False):
        return False
    if not runs_quietly(function.__code__):
        _C.skip(function.__code__, directives.SKIP)
    return True


def original(function: FunctionType) -> Any:
    """What torch's own compiler has wrapped: once it has run in a process, optimizers' methods and fused steps are
    wrappers of it, which say what it can do, not what the user wants. Else None."""
    return function.__dict__.get(_ORIGINAL)


def runs_quietly(code: CodeType) -> bool:
    """Whether a code object is a wrapper of torch's own compiler: what runs under it is not braze's to capture."""
    name = code.co_filename.replace("\\", "/")
    return name.endswith(_PEER.replace(".", "/") + "/eval_frame.py")


def is_graph_break(function: FunctionType) -> bool:
    """Whether the function is a ``graph_break()``."""
    if function is directives.graph_break:
        return True
    return function.__name__ == "graph_break" and function.__module__.startswith(_PEER)


def is_bookkeeping(function: FunctionType) -> bool:
    """Whether the function is one of the peer's that notes when a module was made, for itself alone: its first use in a
    process patches ``nn.Module.__init__`` and ``__setstate__`` to call it. It has nothing to note of modules that
    braze's compiled code makes."""
    return function.__name__ == "tag" and function.__module__ == _PEER + ".mutation_guard"


def scripted(obj: Any) -> Any:
    """The Python function behind a function or object made by ``torch.jit.script``, or None."""
    return getattr(obj, _SCRIPTED, None)
