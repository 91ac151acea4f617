"""Programs as people write them around models: three calls each, eager and compiled side by side.

Most are captured whole; those that are not say where they break (``BREAKS``), and do what eager does all the same.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.api import log_of

FOLDER = Path(__file__).parent / "programs"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


CASES = {
    name: case
    for module in ("programs_models", "programs_python")
    for name, case in vars(load(module)).items()
    if name.startswith("c_")
}
# what Python must do, by a word of each reason
BREAKS = {
    "c_beam": "tolist",
    "c_timer_deco": "perf_counter",
    "c_confusion": "bincount",
    "c_redirect": "StringIO",
    "c_hooks": "hook",
    "c_singledispatch": "weak reference",
    "c_packed": "",
    "c_moe": "depends on the values",
    "c_log_json": "Encoder",
    "c_tensor_sub": "subclass",
    "c_assert_msg": "AssertionError",
    "c_random_py": "Random",
    "c_numpy": "numpy",
    "c_numpy_roundtrip": "numpy",
    "c_nms": "mask",
    "c_deep_copy_mod": "deepcopy",
    "c_state_dict_copied": "deepcopy",
    "c_tensor_attr": "assigning to the attribute",
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        if not isinstance(b, torch.Tensor) or type(a) is not type(b):
            return False
        alike = (a.dtype, a.shape, a.requires_grad, a.is_leaf) == (b.dtype, b.shape, b.requires_grad, b.is_leaf)
        return alike and torch.allclose(a, b, 1e-4, 1e-5, equal_nan=True)
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return same(list(a), list(b)) and all(map(same, a.values(), b.values()))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return abs(a - b) <= 1e-5 * max(1.0, abs(a)) or a != a and b != b
    if isinstance(a, (int, str, bytes, complex, set, frozenset, type(None))):
        return bool(a == b)
    return same(vars(a), vars(b)) if hasattr(a, "__dict__") else True


def outcome(f: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return "gives", f(*args)
        except Exception as e:
            return "raises", type(e).__name__, str(e)


@pytest.mark.parametrize("name", CASES)
def test_program(name: str) -> None:
    f, make = CASES[name]()
    mine = [make() for _ in range(3)]
    want = [outcome(f, args) for args in mine]
    f, make = CASES[name]() if name == "c_global_counter" else (f, make)
    compiled = braze.compile(f, backend="eager")
    for i in range(3):
        args = make()
        got = outcome(compiled, args)
        assert same(want[i], got), f"round {i}: {want[i]} != {got}"
        assert same(list(mine[i]), list(args)), f"round {i}, arguments: {mine[i]} != {args}"
    log = log_of(compiled)
    assert log is not None
    reasons = [b.reason for b in log.breaks]
    assert bool(reasons) == (name in BREAKS), reasons
    assert not reasons or any(BREAKS[name] in r for r in reasons), reasons
    assert all(b.hint and b.loc and b.count and b.seconds >= 0 for b in log.breaks)
