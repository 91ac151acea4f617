"""The bench in one process, for a model that only this process has."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from .about import about
from .models import Case
from .result import Result, Results
from .runner import Plan, new_result
from .target import tensors_of, to_case
from .worker import Contender, Job


def bench(
    model: Any,
    inputs: Any,
    loss: Callable[[Any], Any] | None,
    train: bool,
    modes: Sequence[str],
    precision: str,
    peer: str | None,
    plan: Plan,
    quiet: bool,
) -> Results:
    """See :func:`braze.bench.bench`."""
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "function")
    case = to_case((model, inputs, loss), name)
    device = next((t.device.type for t in tensors_of([*case.inputs, *case.kwargs.values()])), "cpu")
    jobs = [Job(name, "eager", device, precision, train=train)]
    for contender in ["braze", *([peer] if peer else [])]:
        jobs += [Job(name, contender, device, precision, mode, train=train) for mode in modes]
    what = "training step" if train else "forward pass"
    out = Results(_measure(jobs, case, plan), f"{what}, {device}, {precision}", about())
    if not quiet:
        print(out)
    return out


def _measure(jobs: list[Job], case: Case, plan: Plan) -> list[Result]:
    pairs: list[tuple[Contender | None, Result]] = []
    try:
        for job in jobs:
            result = new_result(job)
            pairs.append((None, result))
            contender = _attempt(result, partial(_load, job, case))
            pairs[-1] = (contender, result)
            if contender is not None:
                _attempt(result, partial(_take, result, contender.start))
                _attempt(result, partial(_take, result, partial(contender.run, plan.warmup)))
            result.rounds.clear()
        for _ in range(plan.rounds):
            for contender, result in pairs:
                if contender is not None and not result.error:
                    _attempt(result, partial(_take, result, partial(contender.run, plan.steps)))
    except KeyboardInterrupt:
        pass
    return [result.finish(plan.rounds) for _, result in pairs]


def _load(job: Job, case: Case) -> Contender:
    return Contender(job, replace(case, model=copy.deepcopy(case.model)))


def _take(result: Result, ask: Callable[[], dict[str, Any]]) -> None:
    result.take(ask())


def _attempt(result: Result, action: Callable[[], Any]) -> Any:
    """The action's value; an exception becomes the result's error."""
    if result.error:
        return None
    try:
        return action()
    except Exception as e:
        result.error = f"{type(e).__name__}: {e}"
        return None
