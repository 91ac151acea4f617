"""Every opcode of the running CPython is known: interpreted, broken at on purpose, or never in a code object."""

from __future__ import annotations

import dis

import pytest

from braze.capture import capture_frame  # noqa: F401  (fills the table)
from braze.capture.bytecode import CANONICAL, SPLIT
from braze.capture.vm import instr_control, instr_load
from braze.capture.vm.decode import OPS

BREAKS = {  # opcode -> why the graph breaks there
    **dict.fromkeys(
        "GET_AWAITABLE GET_AITER GET_ANEXT BEFORE_ASYNC_WITH END_ASYNC_FOR ASYNC_GEN_WRAP".split(),
        "async code; coroutines run in Python",
    ),
    **dict.fromkeys("CHECK_EG_MATCH PREP_RERAISE_STAR".split(), "except*: exception groups are Python's"),
    **dict.fromkeys(
        "LOAD_NAME STORE_NAME DELETE_NAME SETUP_ANNOTATIONS LOAD_LOCALS LOAD_FROM_DICT_OR_GLOBALS "
        "LOAD_FROM_DICT_OR_DEREF".split(),
        "only in class bodies and modules, which are no frames of functions",
    ),
    "IMPORT_STAR": "only at module level",
    "PRINT_EXPR": "only in the interactive interpreter",
    "CALL_INTRINSIC_2": "type parameters and exception groups",
}
NEVER = {  # pseudo instructions of the compiler, and those of the interpreter's own
    *"INTERPRETER_EXIT RESERVED SETUP_FINALLY SETUP_CLEANUP SETUP_WITH POP_BLOCK LOAD_SUPER_METHOD EXIT_INIT_CHECK "
    "LOAD_ZERO_SUPER_METHOD LOAD_ZERO_SUPER_ATTR STORE_FAST_MAYBE_NULL ENTER_EXECUTOR DO_TRACING".split()
}
HANDLERS_THAT_BREAK = {instr_control.asynchronous, instr_control.rare, instr_load.class_body, instr_load.load_from_dict}
OPCODES = [name for name in dis.opmap if not name.startswith("INSTRUMENTED")]


@pytest.mark.parametrize("name", OPCODES)
def test_opcode(name: str) -> None:
    handler = OPS.get(CANONICAL.get(name, name))
    if name in SPLIT:
        assert all(part in OPS for part in SPLIT[name])
    elif name in NEVER:
        assert handler is None
    elif name in BREAKS:
        assert handler in HANDLERS_THAT_BREAK, "handled by now: take it out of the table"
    else:
        assert handler is not None and handler not in HANDLERS_THAT_BREAK, f"{name} is neither handled nor listed"
