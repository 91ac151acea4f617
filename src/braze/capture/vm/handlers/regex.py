"""Regular expressions on known strings: evaluated while tracing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ..registry import PURE_TYPES, add_static, handles
from ..signals import NotConst, unsupported
from ..values.base import Const, Value
from ..wrap import WRAPPERS

if TYPE_CHECKING:
    from ..tracer import Tracer


def _known(function: Any) -> None:
    @handles(function)
    def call(vm: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            return vm.fold(function, args, kwargs)
        except NotConst:
            unsupported(f"re.{function.__name__}() of a value that is not known while compiling")


for _f in (re.compile, re.match, re.search, re.fullmatch, re.sub, re.subn, re.split, re.findall, re.escape):
    _known(_f)
PURE_TYPES.update({re.Pattern, re.Match})
add_static(re.Pattern)
for _t in (re.Pattern, re.Match):
    WRAPPERS[_t] = lambda vm, raw, source: Const(raw, source)
