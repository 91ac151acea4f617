"""The user's model by name: ``path.py:make_model`` or ``package.module.attribute``, with its inputs and loss.

What the name leads to may be a module, or a callable that gives one: a module, ``(model, inputs)``,
``(model, inputs, loss)`` or a :class:`~braze.bench.models.Case`.  A callable with a ``batch`` parameter is called with
the batch size.  ``inputs`` is a tensor, a tuple of arguments or a dict of keyword arguments.  Where there are none,
they are made from the model's first layer or from ``shapes`` such as ``"8x3x224x224"`` or ``"8x128:int64"``.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .models import CASES, Case, build

IMAGE, TOKENS = 224, 128  # sizes of guessed inputs
_OURS = (str(Path(__file__).parents[1]), str(Path(torch.__file__).parent), "<frozen")
Loss = Callable[[Any], torch.Tensor]


class TargetError(ValueError):
    """A name, or what it leads to, is not what a model is given by."""


def users_traceback(e: BaseException) -> str:
    """Where the user's code raised, without the frames of braze and torch around it; all of an error in braze."""
    frames = traceback.extract_tb(e.__traceback__)
    if frames and not frames[-1].filename.startswith(_OURS[0]):
        frames = traceback.StackSummary.from_list(
            [f for f in frames if f is frames[-1] or not f.filename.startswith(_OURS)]
        )
    return "".join([*frames.format(), *traceback.format_exception_only(e)]).rstrip()


def load(spec: str, size: str = "small", batch: int | None = None, shapes: Sequence[str] = (), seed: int = 0) -> Case:
    """The case that a name means: a bench model, or the user's. TargetError says what is wrong with a name."""
    if spec in CASES:
        return build(spec, size, batch, seed)
    made = resolve(spec)
    torch.manual_seed(seed)
    if not isinstance(made, (nn.Module, Case, tuple)):
        if not callable(made):
            raise TargetError(f"{spec} is {type(made).__name__}; give a module, or a function that makes one")
        takes_batch = "batch" in inspect.signature(made).parameters
        made = made(batch=batch) if takes_batch and batch else made()
    return to_case(made, spec, batch, shapes)


def resolve(spec: str) -> Any:
    """The object of a name. TargetError when there is no such file, module or attribute."""
    where, colon, name = spec.partition(":")
    if where.endswith(".py"):
        module = _load_file(Path(where))
        if not colon:
            raise TargetError(f"say what to take from {where}: {where}:make_model")
        return _attribute(module, name, spec)
    parts = where.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError as e:
            if e.name is not None and ".".join(parts[:cut]).startswith(e.name):
                continue
            raise
        rest = [*parts[cut:], *([name] if name else [])]
        if not rest:
            break
        return _attribute(module, ".".join(rest), spec)
    known = ", ".join(CASES)
    raise TargetError(f"{spec!r} is no model: give path.py:make_model, package.module.attribute, or one of {known}")


def _load_file(path: Path) -> Any:
    if not path.exists():
        raise TargetError(f"there is no file {path}")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module


def _attribute(module: Any, path: str, spec: str) -> Any:
    out = module
    for name in path.split("."):
        if not hasattr(out, name):
            have = (
                [n for n, v in vars(out).items() if not n.startswith("_") and callable(v)]
                if hasattr(out, "__dict__")
                else []
            )
            raise TargetError(
                f"{spec}: there is no {name!r} there" + (f"; there are {', '.join(have[:12])}" if have else "")
            )
        out = getattr(out, name)
    return out


def to_case(made: Any, name: str = "model", batch: int | None = None, shapes: Sequence[str] = ()) -> Case:
    """A module, (model, inputs) or (model, inputs, loss) as a case. ``loss`` takes the output; by default an output's
    own ``loss``, else the mean square of all floating outputs."""
    if isinstance(made, Case):
        return made
    model, inputs, loss = (*made, None, None)[:3] if isinstance(made, tuple) else (made, None, None)
    if not isinstance(model, nn.Module) and not callable(model):
        raise TargetError(f"{name} gave {type(model).__name__}, not a module")
    if shapes:
        inputs = tuple(tensor(s) for s in shapes)
    elif inputs is None:
        inputs = guess_inputs(model, batch or 4, name)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, dict) else (_tuple(inputs), {})
    args, kwargs = tuple(_resize(a, batch) for a in args), {k: _resize(v, batch) for k, v in kwargs.items()}
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.dim()]
    score = loss or default_loss
    return Case(model, args, None, lambda out, _: score(out), tensors[0].shape[0] if tensors else 1, kwargs)


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


def _resize(x: Any, batch: int | None) -> Any:
    """A tensor repeated or cut to ``batch`` samples along its first dim."""
    if batch is None or not isinstance(x, torch.Tensor) or not x.dim() or x.shape[0] == batch:
        return x
    times = -(-batch // x.shape[0])
    return x.repeat(times, *[1] * (x.dim() - 1))[:batch].contiguous()


def tensor(text: str) -> torch.Tensor:
    """``"8x3x224x224"`` or ``"8x128:int64"`` as a tensor of random numbers. ValueError when it does not parse."""
    shape, _, kind = text.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        sizes = [int(n) for n in shape.split("x")]
    except ValueError:
        sizes = []
    if not sizes or not isinstance(dtype, torch.dtype):
        raise TargetError(f"{text!r} is no input: write sizes and a dtype, such as 8x3x224x224 or 8x128:int64")
    if dtype.is_floating_point:
        return torch.randn(sizes).to(dtype)
    return torch.randint(0, 2, sizes).to(dtype)


def guess_inputs(model: Any, batch: int, name: str) -> tuple[torch.Tensor, ...]:
    """Inputs from the first layer that has a shape. ValueError when there is none such."""
    config = getattr(model, "default_cfg", None) or {}
    if isinstance(config, dict) and isinstance(config.get("input_size"), (tuple, list)):
        return (torch.randn(batch, *config["input_size"]),)
    for layer in model.modules() if isinstance(model, nn.Module) else ():
        for kind, make in _FIRST.items():
            if isinstance(layer, kind):
                return (make(layer, batch),)
    raise TargetError(f"{name} does not say what its inputs are: return (model, inputs), or give --input 8x3x224x224")


_FIRST: dict[type, Callable[[Any, int], torch.Tensor]] = {
    nn.Conv2d: lambda m, batch: torch.randn(batch, m.in_channels, IMAGE, IMAGE),
    nn.Conv1d: lambda m, batch: torch.randn(batch, m.in_channels, TOKENS),
    nn.Embedding: lambda m, batch: torch.randint(0, m.num_embeddings, (batch, TOKENS)),
    nn.Linear: lambda m, batch: torch.randn(batch, m.in_features),
    nn.LSTM: lambda m, batch: torch.randn(TOKENS, batch, m.input_size),
}


def default_loss(out: Any) -> torch.Tensor:
    """An output's own ``loss``, else the sum of the mean squares of all floating tensors in it."""
    if isinstance(getattr(out, "loss", None), torch.Tensor):
        return out.loss  # type: ignore[no-any-return]
    found = [t for t in tensors_of(out) if t.is_floating_point()]
    if not found:
        raise TargetError("the model's output has no floating tensor to train on; give a loss")
    return torch.stack([t.float().square().mean() for t in found]).sum()


def tensors_of(tree: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, (tuple, list)) else ()
    return [t for v in values for t in tensors_of(v)]


def to_device(case: Case, device: str) -> Case:
    """The case's model and tensors on a device."""

    def move(x: Any) -> Any:
        return x.to(device) if isinstance(x, torch.Tensor) else x

    model = case.model.to(device) if isinstance(case.model, nn.Module) else case.model
    kwargs = {k: move(v) for k, v in case.kwargs.items()}
    return replace(case, model=model, inputs=tuple(map(move, case.inputs)), target=move(case.target), kwargs=kwargs)
