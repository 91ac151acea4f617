"""What guards cost on each call: python benchmarks/guards.py [--json]

Gates: the guards of a BERT-base forward under 5 us a call, of a function of three tensors under 2 us. The models are
captured by braze itself; the sizes of the layers do not matter for guards, so they are small. Times are the best of
several rounds, in microseconds, with everything in the cache; "swept" is after writing 8 MB between calls, as a
training step would.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from braze import _C
from braze.capture import frames
from braze.config import Config
from braze.pipeline import Pipeline, Settings

GATES = {"three tensors": 2.0, "BERT-base": 5.0}


def captured(call: Any, code: Any) -> tuple[Any, Any]:
    """(guard program, the frame that it guards) after capturing one call, the graph run in eager."""
    session = frames.Session(Pipeline(Settings("eager", None, True, None, Config.from_env())))
    seen: list[Any] = []
    inner = session.capture

    def capture(frame_code: Any, function: Any, args: Any, own: Any) -> Any:
        if frame_code is code:
            seen[:] = [function, args]
        return inner(frame_code, function, args, own)

    session.capture = capture
    session.call(call)
    entry = _C.entries(code)[0]
    return entry.guard, (*seen, session)


def per_call(program: Any, frame: Any, n: int = 1000, rounds: int = 60) -> float:
    function, args, _ = frame
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        passed = program.repeat(function, args, n)
        best = min(best, (time.perf_counter() - start) / n)
        assert passed == n
    return best * 1e6


def swept(program: Any, frame: Any, n: int = 100) -> float:
    """Median after the caches were filled with something else."""
    function, args, _ = frame
    other = torch.zeros(2 * 1024 * 1024)
    times = []
    for _ in range(n):
        other.add_(1)
        start = time.perf_counter()
        program.repeat(function, args, 1)
        times.append(time.perf_counter() - start)
    return sorted(times)[n // 2] * 1e6


def three_tensors() -> tuple[Any, Any]:
    def f(a: Any, b: Any, c: Any) -> Any:
        return torch.relu(a @ b + c)

    args = (torch.ones(4, 8), torch.ones(8, 3), torch.ones(3))
    return captured(lambda: f(*args), f.__code__)


def bert() -> tuple[Any, Any]:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(hidden_size=48, intermediate_size=96, vocab_size=100)
    model = BertForSequenceClassification(config)
    tokens = torch.ones(2, 16, dtype=torch.long)
    labels = torch.ones(2, dtype=torch.long)
    forward = type(model).forward
    code = getattr(forward, "__wrapped__", forward).__code__
    print(f"BERT-base: {len(list(model.modules()))} modules, {len(list(model.parameters()))} parameters")
    call = lambda: model(input_ids=tokens, labels=labels)  # noqa: E731
    try:
        return captured(call, code)
    except IndexError:
        return captured(call, forward.__code__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    for name, make in (("three tensors", three_tensors), ("BERT-base", bert)):
        program, frame = make()
        per_call(program, frame, 10, 2)
        us = per_call(program, frame)
        stats = program.stats()
        results[name] = {"us": us, "swept_us": swept(program, frame), "gate_us": GATES[name], **stats}
        verdict = "ok" if us < GATES[name] else "OVER"
        print(
            f"{name:14s} {us:6.2f} us (gate {GATES[name]:.0f}: {verdict}), "
            f"swept {results[name]['swept_us']:.1f} us, "
            f"{stats['instructions']} instructions, {stats['reads']} inputs, {stats['words']} words"
        )
    if options.json:
        print(json.dumps(results))


if __name__ == "__main__":
    main()
