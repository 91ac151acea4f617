"""torch's databases of modules and of optimizers through ``braze.compile``, compared with eager.

A module runs forward and backward in train and in eval mode: outputs, gradients of inputs and parameters, and buffers
afterwards. An optimizer takes five steps, compiled alone ("step") and with the model and its backward ("train step"):
losses, parameters and the optimizer's state. Both with ``strict_random``, so that the numbers drawn are eager's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import samples as s
import torch
from torch.testing._comparison import default_tolerances
from torch.testing._internal import common_modules, common_optimizers
from torch.utils._pytree import tree_flatten, tree_map

import braze

MODES = ("train", "eval")
STEPS = ("step", "train step")
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_OPTIONS = {"strict_random": True}
# Muon orthogonalises in bfloat16. LBFGS searches lines: a rounding error takes another way, so it has doubles alone.
_LOOSE = {"optim.Muon": (2e-2, 1e-3), "optim.LBFGS": (1e-3, 1e-5)}
_OPTIMIZED = (torch.float32, torch.float64, torch.bfloat16)  # float16 overflows


def modules() -> dict[str, Any]:
    """Every entry of ``module_db`` by name ("nn.Linear")."""
    return {info.name: info for info in common_modules.module_db}


def optimizers() -> dict[str, Any]:
    """Every entry of ``optim_db`` by name ("optim.Adam")."""
    return {f"optim.{info.optim_cls.__name__}": info for info in common_optimizers.optim_db}


def dtypes_of(name: str) -> tuple[torch.dtype, ...]:
    """The dtypes of a module's or an optimizer's samples."""
    if name == "optim.LBFGS":
        return (torch.float64,)
    return _OPTIMIZED if name.startswith("optim.") else DTYPES


def applies(name: str, dtype: torch.dtype, variant: str) -> bool:
    """Whether there are such samples."""
    return variant in (STEPS if name.startswith("optim.") else MODES) and dtype in dtypes_of(name)


def check(name: str, dtype: torch.dtype, variant: str, limit: int | None = None) -> s.Tally:
    """``limit`` samples of a module or an optimizer, spread over all of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name.startswith("optim."):
            return _check_optimizer(name, optimizers()[name], dtype, variant, limit)
        return _check_module(name, modules()[name], dtype, variant, limit)


def _spread(found: list[Any], limit: int | None) -> list[Any]:
    return found[:: 1 if limit is None else -(-len(found) // limit) or 1]


def _tols(x: Any) -> tuple[float, float]:
    return default_tolerances(x.dtype) if isinstance(x, torch.Tensor) else (0.0, 0.0)


def _compared(
    tally: s.Tally,
    title: str,
    program: Callable[[Callable[[Any], Any]], s.Result],
    exact: Callable[[], s.Result],
) -> None:
    """``program(compile)`` runs a fresh copy of the sample through ``compile``; the outcome is tallied."""
    try:
        want = program(lambda f: f)
    except Exception:  # noqa: BLE001  (eager's refusal says nothing)
        tally.outcomes["rejected"] += 1
        return
    kept: list[Any] = []

    def compiled(f: Any) -> Any:
        kept.append(braze.compile(f, options=_OPTIONS))
        return kept[-1]

    try:
        got = program(compiled)
    except Exception as e:  # noqa: BLE001
        tally.add("wrong", f"{type(e).__name__}: {e}"[:300], title)
        return
    kind, reason = s._how(tally, kept[0], tensors=True)
    bad = s.compare(got, want, exact, lambda x: tuple(map(max, _tols(x), _LOOSE.get(tally.name, (0.0, 0.0)))))
    tally.add("wrong" if bad else kind, bad or reason, title)


# ---- modules


def _module_of(info: Any, given: Any, dtype: torch.dtype, training: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    m: torch.nn.Module = info.module_cls(*given.constructor_input.args, **given.constructor_input.kwargs)
    m = copy.deepcopy(m).to(dtype)  # a constructor may have been given a module
    if info.is_lazy:
        args, kwargs = s._copied((given.forward_input.args, given.forward_input.kwargs))
        with torch.no_grad():
            m(*args, **kwargs)
    return m.train(training)


def _run_module(m: torch.nn.Module, given: Any, wide: bool, wrap: Callable[[Any], Any]) -> s.Result:
    m = copy.deepcopy(m)
    tree = (given.forward_input.args, given.forward_input.kwargs)
    if wide:
        m, (args, kwargs) = m.double(), tree_map(s._double, tree)
    else:
        args, kwargs = s._copied(tree)
    inputs = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    f = wrap(m)
    torch.manual_seed(1)
    outs, spec = tree_flatten(f(*args, **kwargs))
    heads = [x for x in outs if isinstance(x, torch.Tensor) and x.requires_grad]
    wanted = [x for x in (*inputs, *m.parameters()) if x.requires_grad and x.is_leaf]
    grads: list[Any] = []
    if heads and wanted:
        generator = torch.Generator().manual_seed(7)
        tangents = [torch.randn(h.shape, generator=generator).to(h.dtype) for h in heads]
        grads = list(torch.autograd.grad(heads, wanted, tangents, allow_unused=True))
    return s.Result(outs, spec, grads, [*inputs, *m.buffers()])


def _check_module(name: str, info: Any, dtype: torch.dtype, variant: str, limit: int | None) -> s.Tally:
    tally = s.Tally(name, str(dtype).removeprefix("torch."), variant)
    training = variant == "train"
    torch.manual_seed(0)
    found = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    for given in _spread([g for g in found if g.forward_input is not None], limit):
        try:
            m = _module_of(info, given, dtype, training)
        except Exception:  # noqa: BLE001  (no such module for this dtype)
            tally.outcomes["rejected"] += 1
            continue
        title = f"{given.desc} {given.constructor_input.args} {given.constructor_input.kwargs}"[:200]
        _compared(
            tally,
            title,
            lambda wrap: _run_module(m, given, False, wrap),  # noqa: B023
            lambda: _run_module(m, given, True, lambda f: f),  # noqa: B023
        )
    return tally


# ---- optimizers


class _Model(torch.nn.Module):
    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(6, 4, sparse=sparse)
        self.lin = torch.nn.Linear(4, 3)
        self.sparse = sparse

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        x = self.table(i)
        return x.sum(-1) if self.sparse else self.lin(x.sin())


def _run_optimizer(info: Any, kwargs: Any, dtype: torch.dtype, variant: str, wrap: Callable[[Any], Any]) -> s.Result:
    torch.manual_seed(0)
    model = _Model(info.only_supports_sparse_grads).to(dtype)
    params = [p for n, p in model.named_parameters() if not model.sparse or n.startswith("table")]
    kwargs = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
    if info.optim_cls.__name__ == "Muon":
        params = [p for p in params if p.ndim == 2]
    opt = info.optim_cls(params, **kwargs)
    i = torch.tensor([0, 3, 5, 3])

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = (model(i) - 1).square().mean()
        loss.backward()
        return loss

    def alone() -> Any:
        return opt.step(closure) if info.step_requires_closure else opt.step()

    def whole() -> Any:
        if info.step_requires_closure:
            return opt.step(closure)
        loss = closure()
        opt.step()
        return loss.detach()

    step = wrap(alone if variant == "step" else whole)
    losses = []
    for _ in range(5):
        if variant == "step" and not info.step_requires_closure:
            losses.append(closure().detach())
        out = step()
        losses += [out.detach()] if isinstance(out, torch.Tensor) else []
    state, spec = tree_flatten(opt.state_dict()["state"])
    state = [torch.tensor(x, dtype=torch.float64) if isinstance(x, float) else x for x in state]
    return s.Result([*losses, *state], (len(losses), spec), [p.grad for p in params], [*params])


def _check_optimizer(name: str, info: Any, dtype: torch.dtype, variant: str, limit: int | None) -> s.Tally:
    tally = s.Tally(name, str(dtype).removeprefix("torch."), variant)
    every = common_optimizers._get_optim_inputs_including_global_cliquey_kwargs
    found = every("cpu", dtype, info, skip=("differentiable",))
    if name == "optim.LBFGS":  # searches for the maximum of a sum of squares: it runs away, by what rounding says
        found = [given for given in found if not given.kwargs.get("maximize")]
    for given in _spread(found, limit):
        _compared(
            tally,
            f"{given.desc} {given.kwargs}",
            lambda wrap: _run_optimizer(info, given.kwargs, dtype, variant, wrap),  # noqa: B023
            lambda: _run_optimizer(info, given.kwargs, torch.float64, variant, lambda f: f),  # noqa: B023
        )
    return tally
