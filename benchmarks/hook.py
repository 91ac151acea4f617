"""What the frame hook costs: python benchmarks/hook.py [--json]

Gates, in nanoseconds a call: a Python function that nothing is compiled for, while a session is on, at most 60 more
than without braze; outside of a session, nothing. Each figure is the best of several rounds, the empty loop taken off.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from braze import _C
from braze.capture import frames
from braze.capture.captured import Captured, Skip
from braze.capture.emit import Emitter
from braze.capture.guards import EqualsConst, GuardSet
from braze.capture.source import FrameSources
from braze.config import Config
from braze.events import CompileLog

GATE = 60.0


def f(a: Any, b: Any) -> Any:
    return a


def loop(n: int) -> float:
    call = f
    r = range(n)
    start = time.perf_counter()
    for _ in r:
        call(1, 2)
    return (time.perf_counter() - start) / n * 1e9


def empty(n: int) -> float:
    r = range(n)
    start = time.perf_counter()
    for _ in r:
        pass
    return (time.perf_counter() - start) / n * 1e9


def best(run: Callable[[int], float] = loop, n: int = 200_000, rounds: int = 15) -> float:
    return min(run(n) for _ in range(rounds))


def session(capture: Any) -> frames.Session:
    settings = SimpleNamespace(fullgraph=False, config=Config())
    return frames.Session(SimpleNamespace(settings=settings, log=CompileLog(), compile_graph=None), capture)


def replaced(guards: Callable[[FrameSources], GuardSet], stack: int = 0) -> Any:
    def capture(code: Any, function: Any, args: Any, own: Any) -> Captured | Skip:
        if code is not f.__code__:
            return Skip("")
        e = Emitter.replacing(code)
        e.load("b")
        e.return_value()
        new = e.assemble()
        return Captured(new.replace(co_stacksize=new.co_stacksize + stack), guards(FrameSources(code)))

    return capture


def constants(src: FrameSources) -> GuardSet:
    return GuardSet([EqualsConst(src.local("a"), 1), EqualsConst(src.local("b"), 2)])


def measure() -> dict[str, float]:
    base = best(empty)
    plain = best() - base
    out = {"plain call": plain}

    def under(name: str, capture: Any) -> None:
        frames.reset()
        with session(capture):
            loop(100)
            out[name] = best() - base

    under("untouched, in a session", lambda *a: Skip("not wanted", everywhere=True))
    under("skipped in this session", lambda *a: Skip("not wanted"))
    under("replaced, no guards", replaced(lambda src: GuardSet()))
    under("replaced, two constants", replaced(constants))
    under("replaced, larger frame", replaced(lambda src: GuardSet(), 30))
    under("replaced, frame does not fit", replaced(lambda src: GuardSet(), 30_000))
    frames.reset()
    out["after the session"] = best() - base
    own = session(None)

    def enter(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            with own:
                pass
        return (time.perf_counter() - start) / n * 1e9

    out["enter and leave a session"] = best(enter) - base
    quiet = _C.quiet(len)

    def quietly(n: int) -> float:
        start = time.perf_counter()
        with own:
            for _ in range(n):
                quiet("")
        return (time.perf_counter() - start) / n * 1e9

    out["quiet call of len"] = best(quietly) - base
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    out = measure()
    for name, ns in out.items():
        extra = f" (+{ns - out['plain call']:.0f})" if "call" not in name and "enter" not in name else ""
        print(f"{name:32s} {ns:7.1f} ns{extra}")
    added = out["untouched, in a session"] - out["plain call"]
    print(f"gate {GATE:.0f} ns for an untouched call: {'ok' if added < GATE else 'OVER'}")
    if options.json:
        print(json.dumps(out))


if __name__ == "__main__":
    main()
