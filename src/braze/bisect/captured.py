"""The stage ``capture``: a function in Python against its captured graphs, called as they were recorded."""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from braze.api import compile as braze_compile
from braze.backends import Request
from braze.ir import Loc, interpret, load_python

from .stages import copies, difference

HEAD = '''"""capture: {title}

Exits with 1 while the captured calls give another result than the function. Written by braze bisect.
"""

import sys
'''


def requests_of(fn: Any, args: Any, kwargs: Any) -> tuple[str, list[Request]]:
    """How the captured graphs' result differs from the function's, and the graphs with their inputs."""
    requests: list[Request] = []
    want = call(copy.deepcopy(fn), args, kwargs)
    twin = braze_compile(copy.deepcopy(fn), backend="eager", dynamic=False)
    twin._braze_session.pipeline._backend = _recorder(requests)
    return difference(flat(call(twin, args, kwargs)), flat(want)), requests


def _recorder(requests: list[Request]) -> Callable[[Request], Any]:
    def record(request: Request) -> Any:
        inputs = [_like(x) if isinstance(x, torch.Tensor) else x for x in request.inputs]
        requests.append(Request(request.graph, request.types, inputs, request.config, request.record))
        return load_python(request.graph)

    return record


def _like(x: torch.Tensor) -> torch.Tensor:
    """A copy that asks for a gradient where the original has one."""
    (out,) = copies([x])
    made: torch.Tensor = out.requires_grad_(x.requires_grad)
    return made


def call(fn: Any, args: Any, kwargs: Any) -> Any:
    """The function's result for copies of the arguments, with fixed random numbers."""
    args, kwargs = copy.deepcopy((args, kwargs))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return fn(*args, **kwargs)


def flat(tree: Any) -> list[torch.Tensor]:
    """The tensors of a result, detached."""
    if isinstance(tree, torch.Tensor):
        return [tree.detach()]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    return [t for v in values for t in flat(v)]


def check_capture(fn: Any, args: Any = (), kwargs: Any = None) -> int:
    """Say whether capture keeps a function's meaning; the exit status of a repro: 1 when it does not."""
    said, requests = requests_of(fn, args, kwargs or {})
    if not said:
        print("capture agrees with what the function means")
        return 0
    where = first_wrong(fn, args, kwargs or {}, requests)
    print(f"capture differs: {said}" + (f"; first at {where}" if where else ""))
    return 1


class _Values(TorchFunctionMode):
    """Keeps every tensor that a torch call gives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.seen += [t.clone() for t in flat(out)]
        return out


def first_wrong(fn: Any, args: Any, kwargs: Any, requests: list[Request]) -> Loc | None:
    """The user's line of the first captured call whose value no call of the function gives."""
    with _Values() as values:
        call(copy.deepcopy(fn), args, kwargs)
    found: list[Loc] = []

    def look(node: Any, value: Any) -> None:
        if node.op == "call" and node.loc is not None and isinstance(value, torch.Tensor) and not found:
            if all(v.shape != value.shape or difference(value, v) for v in values.seen):
                found.append(node.loc)

    for request in requests:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            interpret(request.graph, copies(request.inputs), look)
    return found[0] if found else None


def write(path: Path, fn: Any, args: Any, kwargs: Any, title: str) -> Path | None:
    """A script that checks the same call: the function and its arguments pickled beside it, or where a function of
    a script or of another function cannot be pickled, its source. None where neither works."""
    lines = [HEAD.format(title=title)]
    try:
        pickle.dumps(fn)
        stored: tuple[Any, ...] = (fn, args, kwargs)
        loaded = "fn, args, kwargs"
    except Exception:
        text = _source(fn)
        if text is None:
            return None
        lines += ["import torch\n", f"{text}\nfn = {fn.__name__}"]
        stored, loaded = (args, kwargs), "args, kwargs"
    torch.save(stored, path.with_suffix(".pt"))
    lines += [_importable(fn), "from pathlib import Path\n", "import torch\n"]
    lines += ["from braze.bisect.captured import check_capture\n"]
    lines += [f'{loaded} = torch.load(Path(__file__).with_suffix(".pt"), weights_only=False)']
    lines += ["sys.exit(check_capture(fn, args, kwargs))"]
    path.write_text("\n".join(filter(None, lines)) + "\n")
    return path


def _source(fn: Any) -> str | None:
    """The text of a plain function that reads nothing around it but ``torch``."""
    if not inspect.isfunction(fn) or fn.__closure__ or fn.__name__ == "<lambda>":
        return None
    if set(fn.__code__.co_names) & set(fn.__globals__) - {"torch"}:
        return None
    try:
        return textwrap.dedent(inspect.getsource(fn))
    except OSError:
        return None


def _importable(fn: Any) -> str:
    """What lets another process import a function's or module's definition."""
    owner = fn if inspect.isfunction(fn) else type(fn)
    module = sys.modules.get(owner.__module__)
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    if owner.__module__ == "__main__":
        return f"import runpy\n\nglobals().update(runpy.run_path({str(Path(file).resolve())!r}, run_name='repro'))"
    folder = Path(file).resolve().parents[owner.__module__.count(".")]
    return f"sys.path.insert(0, {str(folder)!r})"
