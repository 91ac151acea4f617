"""What happened while compiling: the data behind ``explain`` and the debug log.

A :class:`CompileLog` belongs to one ``braze.compile`` call. Stages write into it, reports read it; nothing else does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from .ir import Loc

logger = logging.getLogger("braze")
# The BRAZE_DEBUG from which a level is printed: 2 graphs, 3 kernels and the host program, 5 the stages between.
DETAIL = {"capture": 2, "forward": 2, "backward": 2, "kernels": 3, "host": 3}


def stage_logger(stage: str) -> logging.Logger:
    """The logger of a stage: ``braze.capture``, ``braze.joint_trace``, ``braze.codegen``, … with a level of its own."""
    return logger.getChild(stage.replace(" ", "_"))


def print_log() -> None:
    """Show the log on stderr, unless the program has set up handlers for it."""
    if not logger.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("braze: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class Deferred:
    """Text that is made when somebody prints it."""

    def __init__(self, text: Callable[[], str]) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text()


class Watch(Protocol):
    """Told of stages as they start and end, nested: what shows progress."""

    def enter(self, stage: str) -> None: ...

    def leave(self) -> None: ...


@dataclass(frozen=True)
class Span:
    """When a stage ran, on the clock of ``time.perf_counter`` (seconds)."""

    stage: str
    start: float
    end: float


@dataclass
class Break:
    """A place where capture had to leave the graph."""

    reason: str
    loc: Loc | None
    hint: str = ""
    count: int = 1  # frames that were split, or left to Python, here
    seconds: float = 0.0  # spent on capturing and compiling those frames


@dataclass
class Recompile:
    """A frame was captured again because a guard failed. ``reason`` is in the user's terms.

    ``loc`` is the user's line that made the compiled code depend on the value, ``hint`` what avoids the recompile.
    """

    frame: str
    reason: str
    seconds: float = 0.0
    loc: Loc | None = None
    hint: str = ""


@dataclass
class GuardFailure:
    """One guard that did not hold when a frame started, however often: all such calls together.

    ``what`` is the guard ("x: size(0)"), ``reason`` the latest failure with both values, ``count`` the calls,
    ``seconds`` what they cost beyond the call itself: the search for a version that fits, and compiling another.
    """

    frame: str
    what: str
    reason: str
    loc: Loc | None = None
    hint: str = ""
    count: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class SizeNote:
    """What became of a size or Python int of a frame: ``what`` is where it is read ("x.shape[0]"), ``value`` its symbol
    or number, ``reason`` the symbol's range, or why it is fixed."""

    what: str
    value: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.what} = {self.value}" + (f": {self.reason}" if self.reason else "")


class Programs(dict[str, Any]):
    """Programs by side. One that came compiled from the disk cache is made again when somebody looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self._make: dict[str, Callable[[], Any]] = {}

    def later(self, side: str, make: Callable[[], Any]) -> None:
        """Have the program made on demand."""
        self[side] = None
        self._make[side] = make

    def __getitem__(self, side: str) -> Any:
        if side in self._make:
            self[side] = self._make.pop(side)()
        return super().__getitem__(side)

    def items(self) -> Any:
        return [(side, self[side]) for side in self]


@dataclass
class GraphRecord:
    """One captured graph on its way down: what each stage made of it, and how long it took (seconds by stage)."""

    name: str
    graph: Any
    levels: dict[str, Any] = field(default_factory=dict)  # stage -> printable IR or source
    seconds: dict[str, float] = field(default_factory=dict)
    kernels: list[Any] = field(default_factory=list)
    fallback: str = ""  # why this graph runs in eager, "" if it does not
    notes: list[str] = field(default_factory=list)  # what CUDA graphs skipped, and why
    spans: list[Span] = field(default_factory=list)
    programs: Programs = field(default_factory=Programs)  # "forward" | "backward" -> the loop program that runs
    compiled: dict[str, Any] = field(default_factory=dict)  # the same, compiled
    cache: dict[str, str] = field(default_factory=dict)  # side -> "hit", "miss" or "bypass: reason"
    choice: str = ""  # which of eager and compiled was faster, where that was measured
    watch: Watch | None = None
    debug: int = 0

    def add_level(self, name: str, level: Any) -> None:
        """Keep what a stage made; ``BRAZE_DEBUG`` prints it as it comes."""
        self.levels[name] = level
        if self.debug >= DETAIL.get(name.rsplit(": ")[-1], 5):
            logger.info("%s, %s:\n%s", self.name, name, level)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; nested or repeated stages of one name add up."""
        start = time.perf_counter()
        if self.watch is not None:
            self.watch.enter(f"{self.name}: {name}")
        try:
            yield
        finally:
            if self.watch is not None:
                self.watch.leave()
            took = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + took
            self.spans.append(Span(name, start, start + took))
            stage_logger(name).debug("%s: %.1f ms", self.name, took * 1e3)
            if self.debug >= 4:
                logger.info("%s: %s took %.1f ms", self.name, name, took * 1e3)


@dataclass
class CompileLog:
    """Everything one compiled function did: graphs, breaks, recompiles."""

    graphs: list[GraphRecord] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    guard_failures: list[GuardFailure] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    gave_up: list[str] = field(default_factory=list)  # frames that run in eager from then on, and why
    sizes: dict[str, dict[str, SizeNote]] = field(default_factory=dict)  # frame -> where a size is read -> the note
    seconds: dict[str, float] = field(default_factory=dict)  # whole-frame stages (capture)
    spans: list[Span] = field(default_factory=list)  # of whole frames: capture, with what it compiled inside
    watch: Watch | None = None
    debug: int = 0
    name: str = ""  # what the user calls it

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage of a whole frame: its span, and whoever watches."""
        start = time.perf_counter()
        if self.watch is not None:
            self.watch.enter(name)
        try:
            yield
        finally:
            if self.watch is not None:
                self.watch.leave()
            self.spans.append(Span(name, start, time.perf_counter()))

    def new_graph(self, graph: Any) -> GraphRecord:
        record = GraphRecord(f"graph_{len(self.graphs)}", graph, watch=self.watch, debug=self.debug)
        self.graphs.append(record)
        return record

    def note_sizes(self, frame: str, notes: list[SizeNote]) -> None:
        """Keep what became of a frame's sizes; a later capture replaces what an earlier one said."""
        self.sizes.setdefault(frame, {}).update({n.what: n for n in notes})

    def add_break(self, reason: str, loc: Loc | None, hint: str = "") -> Break:
        """Note a break; the same one at the same place is counted."""
        for b in self.breaks:
            if (b.reason, b.loc) == (reason, loc):
                b.count += 1
                return b
        self.breaks.append(Break(reason, loc, hint))
        logger.info("graph break at %s: %s", loc, reason)
        return self.breaks[-1]

    def add_failure(self, new: GuardFailure) -> None:
        """Note a call whose guards failed; the same guard of the same frame is counted."""
        for f in self.guard_failures:
            if (f.frame, f.what, f.loc) == (new.frame, new.what, new.loc):
                f.count += new.count
                f.seconds += new.seconds
                f.reason = new.reason
                return
        self.guard_failures.append(new)
