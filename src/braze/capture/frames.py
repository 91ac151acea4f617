"""Sessions: the Python side of the frame hook.

``with Session(pipeline):`` turns the hook on for the thread.  A frame that is about to start and has no compiled
version whose guards hold comes to :meth:`Session.callback`, which captures it, compiles its guards and leaves an entry
on the code object.  The hook then looks again.  Frames below the first one are treated alike: those that capture has
inlined never start, those that follow a graph break do, and library machinery is marked to be left alone.

A code object gets at most ``config.recompile_limit`` versions for one root object (one ``self``, say); after that its
original code runs for that object whenever no version fits.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from braze import _C  # type: ignore[attr-defined]
from braze.errors import CompileWarning, SizeFixed, SymbolicFailure, Unsupported, UnsupportedDevice
from braze.events import CompileLog, GuardFailure, Recompile, stage_logger
from braze.ir.pause import no_saved_tensors_hooks, paused_gc

from . import directives, vm
from .captured import Captured, CaptureFunction, Skip
from .guards import MISSING, GuardSet, IdIs, Length, TypeIs, failure
from .native import bind
from .program import compile_guards
from .remedies import remedy, what
from .sizes import SizePolicy
from .skip import skip_reason
from .source import FrameSources, FrameValues, LocalSource
from .vm.handlers.markers import runs_quietly

logger = logging.getLogger("braze")
OBJECTS_PER_CODE = 16  # root objects for which one code object may have a full set of versions
BREAKS_PER_CAUSE = 32  # versions of one function, continuations included, that may end in the same graph break

_ANY_BREAK = "do it before or after the compiled function, or in a function that is marked with braze.disable"

_lock = threading.RLock()  # one capture at a time: the stages below are not made for more
_codes: dict[int, weakref.ref[CodeType]] = {}  # code objects that have entries or marks


class Pipeline(Protocol):
    """What capture needs of the pipeline above it."""

    settings: Any  # fullgraph, dynamic, config
    log: CompileLog

    def compile_graph(self, graph: Any, types: Any, inputs: Any) -> Any: ...


@dataclass(eq=False)
class Version:
    """What Python keeps with an entry: why it holds, and what it cost."""

    guards: GuardSet
    seconds: float = 0.0
    reason: str = ""  # why an earlier version did not do
    gave_up: bool = False
    passed: bool = False  # nothing to compile under these guards
    free: bool = False  # which cost no trace: does not count against the limit
    roots: list[IdIs] = field(default_factory=list)

    def alive(self) -> bool:
        """False once an object that a guard names is gone: the guards can never hold again."""
        return not any(isinstance(g, IdIs) and g.ref() is MISSING for g in self.guards)

    def same_roots(self, frame: FrameValues) -> bool:
        """Whether the frame's arguments are the objects that this version was made for."""
        return all(failure(g, frame) is None for g in self.roots)


class Session(_C.Session):  # type: ignore[misc]
    """One ``braze.compile`` call: what it captures, and how. A context manager; may be entered by several threads."""

    def __init__(self, pipeline: Pipeline, capture: CaptureFunction | None = None) -> None:
        bind()
        self.pipeline = pipeline
        self.capture = capture or capture_with_vm
        self.root: CodeType | None = None  # the code of the function that the user compiled: never skipped
        self._own: dict[int, weakref.ref[CodeType]] = {}
        self._raised: Counter[tuple[str, int]] = Counter()  # calls of a code that raised while captured
        self._policies: dict[tuple[CodeType, tuple[int, ...]], SizePolicy] = {}
        self._broke: Counter[tuple[int, str, str]] = Counter()  # versions that end in a break, by function and cause
        self._warned = False
        weakref.finalize(self, _drop, self.id, self._own)

    @property
    def log(self) -> CompileLog:
        return self.pipeline.log

    def policy(self, code: CodeType, args: tuple[Any, ...]) -> SizePolicy:
        """What is known of the sizes of a code's frames, for one set of modules among its arguments."""
        modules = tuple(id(a) for a in args if isinstance(a, torch.nn.Module))
        return self._policies.setdefault((code, modules), SizePolicy(self.pipeline.settings.dynamic))

    # ---- the hook's question

    def callback(self, code: CodeType, function: FunctionType, args: tuple[Any, ...]) -> bool:
        """A frame without a version that fits. True: look again, there is one now. False: run the original."""
        if code is not self.root and skip_reason(code) is not None:
            _remember(code, _codes)
            _C.skip(code, directives.QUIET if runs_quietly(code) else directives.SKIP)
            return False
        if torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack() or _transformed():
            return False  # under a mode the user's code runs as it is, this time
        frame = FrameValues(function, args)
        waited = not _lock.acquire(blocking=False)
        if waited:
            _lock.acquire()
        try:
            if waited and self._fits(code, frame):
                return True
            return self._miss(code, frame)
        finally:
            _lock.release()

    def _entries(self, code: CodeType) -> list[Any]:
        return [e for e in _C.entries(code) if e.session == self.id]

    def _fits(self, code: CodeType, frame: FrameValues) -> bool:
        """Whether another thread has made a version that fits while this one waited."""
        return any(
            e.guard is None or e.guard.check(frame.function, tuple(frame.args)) is not None for e in self._entries(code)
        )

    def _miss(self, code: CodeType, frame: FrameValues) -> bool:
        entries = []
        for e in self._entries(code):
            if e.info.alive():
                entries.append(e)
            else:
                _C.remove_entries(code, self.id, e)
        start = time.perf_counter()
        failed = self._failure(code, entries[0].info, frame) if entries else None
        try:
            return self._recompile(code, frame, entries, failed)
        finally:
            if failed is not None:
                failed.seconds = time.perf_counter() - start
                self.log.add_failure(failed)

    def _failure(self, code: CodeType, version: Version, frame: FrameValues) -> GuardFailure:
        """Why the latest version does not fit."""
        found = version.guards.first_failure(frame)
        if found is None:
            text = "the native guards disagree with their meaning"
            return GuardFailure(frame_name(code), text, text)
        guard, reason = found
        logger.info("guard of %s: %s", frame_name(code), reason)
        return GuardFailure(
            frame_name(code), what(guard, reason), reason, version.guards.loc(guard), remedy(guard, reason)
        )

    def _recompile(self, code: CodeType, frame: FrameValues, entries: list[Any], failed: GuardFailure | None) -> bool:
        reason = failed.reason if failed is not None else ""
        same = [e for e in entries if not (e.info.gave_up or e.info.free) and e.info.same_roots(frame)]
        limit: int = self.pipeline.settings.config.recompile_limit
        if len(same) >= limit:
            self._give_up(code, same[0].info, f"it was compiled {limit} times; the last guard that failed: {reason}")
            return False
        if len(entries) >= limit * OBJECTS_PER_CODE:
            self._give_up(
                code, None, f"it was compiled for {OBJECTS_PER_CODE} objects; the last guard that failed: {reason}"
            )
            return False
        start = time.perf_counter()
        with paused_gc():
            done = self._capture(code, frame)
        if done is None:
            return False
        version, compiled = done
        version.seconds, version.reason = time.perf_counter() - start, reason
        if reason and not entries[0].info.passed:
            assert failed is not None
            self.log.recompiles.append(Recompile(frame_name(code), reason, version.seconds, failed.loc, failed.hint))
        return compiled

    # ---- capture

    def _capture(self, code: CodeType, frame: FrameValues) -> tuple[Version, bool] | None:
        compiling = sum(r.seconds.get("backend", 0.0) for r in self.log.graphs)
        start = time.perf_counter()
        try:
            with no_saved_tensors_hooks(), self.log.stage("capture"):
                got = self.capture(code, frame.function, tuple(frame.args), self)
        except Exception as e:
            settings = self.pipeline.settings
            if settings.fullgraph or settings.config.strict or isinstance(e, (UnsupportedDevice, SizeFixed)):
                raise
            if isinstance(e, Unsupported):
                self.log.add_break(e.what, None, e.hint)
            self._fall_back(code, f"{type(e).__name__}: {e}", quiet=isinstance(e, Unsupported))
            return None
        finally:
            compiled = sum(r.seconds.get("backend", 0.0) for r in self.log.graphs) - compiling
            spent = time.perf_counter() - start - compiled
            self.log.seconds["capture"] = self.log.seconds.get("capture", 0.0) + spent
            stage_logger("capture").debug("%s: %.1f ms", frame_name(code), spent * 1e3)
        if isinstance(got, Skip):
            self._skip(code, frame, got)
            return None
        return self._install(code, frame, got)

    def _install(self, code: CodeType, frame: FrameValues, got: Captured) -> tuple[Version, bool] | None:
        program = compile_guards(got.guards, got.reads)
        if program.check(frame.function, tuple(frame.args)) is None:
            why = got.guards.explain_failure(frame)
            text = f"the guards of {frame_name(code)} do not hold for the frame that they were made from: {why}"
            if self.pipeline.settings.config.strict:
                raise AssertionError(text)
            self._fall_back(code, text)
            return None
        roots = [g for g in got.guards if isinstance(g, IdIs) and isinstance(g.source, LocalSource)]
        version = Version(got.guards, roots=roots)
        if self.pipeline.settings.config.debug >= 4:
            logger.info("%s, guards:\n  %s", frame_name(code), "\n  ".join(got.guards.describe()))
        self._add(code, program, got.code, version, _owners(got.guards, frame))
        return version, True

    def _add(
        self, code: CodeType, program: Any, replacement: CodeType | None, version: Version, owners: Sequence[Any] = ()
    ) -> None:
        """Keep a version; it goes when an object that it was made for goes."""
        _remember(code, _codes)
        _remember(code, self._own)
        _C.add_entry(code, self, program, replacement, version)
        held = [r.ref() for r in version.roots if r.ref.weak is not None]
        for obj in [*held, *owners]:
            if obj is not MISSING:
                weakref.finalize(obj, _forget, weakref.ref(code), self.id, weakref.ref(version)).atexit = False

    def over_budget(self, code: CodeType, reason: str, loc: Any) -> str:
        """Count a version that ends in a graph break; a message where one function has too many for one cause."""
        origin = vm.origin(code)
        self._broke[id(origin), reason, str(loc)] += 1
        n = self._broke[id(origin), reason, str(loc)]
        if n <= BREAKS_PER_CAUSE:
            return ""
        text = f"{n} versions of it ended in the same graph break at {loc}: {reason}"
        logger.warning("braze stops compiling %s there: %s", frame_name(origin), text)
        return text

    # ---- not compiling

    def _skip(self, code: CodeType, frame: FrameValues, skip: Skip) -> None:
        logger.debug("not captured: %s: %s", frame_name(code), skip.reason)
        if skip.once:
            self._raised[code.co_name, id(code)] += 1
            if self._raised[code.co_name, id(code)] < self.pipeline.settings.config.recompile_limit:
                return
        if skip.everywhere:
            _remember(code, _codes)
            _C.skip(code)
            return
        guards = skip.guards if skip.guards is not None else GuardSet()
        program = compile_guards(guards) if skip.guards is not None else None
        if program is not None and program.check(frame.function, tuple(frame.args)) is None:
            guards, program = GuardSet(), None  # guards on what the frame itself changes: they would never hold
        self._add(code, program, None, Version(guards, reason=skip.reason, passed=True, free=_free(guards)))

    def _give_up(self, code: CodeType, like: Version | None, reason: str) -> None:
        """Run the original when no version fits, for the root objects of ``like`` (None: for all)."""
        logger.warning("braze stops compiling %s: %s", frame_name(code), reason)
        self.log.gave_up.append(f"{frame_name(code)}: {reason}")
        roots = like.roots if like is not None else []
        guards = GuardSet(roots)
        program = compile_guards(guards) if roots else None
        self._add(code, program, None, Version(guards, reason=reason, gave_up=True, roots=roots))

    def _fall_back(self, code: CodeType, reason: str, quiet: bool = False) -> None:
        logger.info("%s runs in eager: %s", frame_name(code), reason)
        if not quiet and not self._warned:
            self._warned = True
            warnings.warn(
                f"braze could not capture {frame_name(code)} and runs it in eager: {reason}\n"
                "  (BRAZE_STRICT=1 raises this instead)",
                CompileWarning,
                stacklevel=2,
            )
        self._add(code, None, None, Version(GuardSet(), reason=reason))

    # ---- for reports

    def versions(self) -> Iterator[tuple[str, Version, int]]:
        """(frame, version, how often it ran) of everything that this session has compiled or given up."""
        for ref in list(self._own.values()):
            code = ref()
            if code is not None:
                for e in self._entries(code):
                    yield frame_name(code), e.info, e.hits

    def describe_guards(self) -> list[str]:
        """The guards of every version, in the user's terms, a heading before each."""
        out: list[str] = []
        for name, version, hits in self.versions():
            runs = f"{hits} run" + ("" if hits == 1 else "s")
            out.append(f"{name} ({runs}, {version.seconds:.2f} s to compile)")
            out += [f"  {line}" for line in version.guards.describe()]
        return out


def _transformed() -> bool:
    """Whether a transform of ``torch.func`` (vmap, grad, jvp) is running: its tensors look like plain ones."""
    return torch._C._functorch.maybe_current_level() is not None


def _computes(value: Any) -> bool:
    """Whether an argument is worth capturing a frame for: a tensor, a module, or a container that starts with one."""
    if isinstance(value, (torch.Tensor, torch.nn.Module)):
        return True
    if isinstance(value, (list, tuple)):
        return any(isinstance(v, (torch.Tensor, torch.nn.Module)) for v in value[:4])
    if isinstance(value, dict):
        return any(isinstance(v, (torch.Tensor, torch.nn.Module)) for v in list(value.values())[:8])
    return False


def _kinds(code: CodeType, args: tuple[Any, ...]) -> GuardSet:
    """Guards that arguments are again such as :func:`_computes` passes over."""
    sources = FrameSources(code)
    out = GuardSet()
    for i, v in enumerate(args):
        where = sources.local(i)
        out.add(TypeIs(where, type(v)))
        if isinstance(v, (list, tuple)):
            out.add(Length(where, len(v)))
            for j, x in enumerate(v[:4]):
                out.add(TypeIs(where.raw_item(j), type(x)))
        elif isinstance(v, dict):
            out.add(Length(where, len(v)))
    return out


def _free(guards: GuardSet) -> bool:
    return len(guards) > 0 and all(isinstance(g, (TypeIs, Length)) for g in guards)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, run with the hook off: for compiled graphs."""
    out: Callable[..., Any] = _C.quiet(function)
    return out


def capture_with_vm(code: CodeType, function: FunctionType, args: tuple[Any, ...], session: Session) -> Captured | Skip:
    """Capture a frame with the bytecode interpreter, and note its breaks in the session's log."""
    if not (code is session.root or vm.is_continuation(code) or any(map(_computes, args))):
        return Skip("no tensor and no module among its arguments", guards=_kinds(code, args))
    pipeline = session.pipeline
    start = time.perf_counter()
    policy = session.policy(code, args)

    def capture() -> vm.Captured | vm.Skip:
        return vm.capture_frame(
            code,
            function,
            args,
            compile_graph=lambda *request: quiet(pipeline.compile_graph(*request)),
            config=pipeline.settings.config,
            fullgraph=pipeline.settings.fullgraph,
            policy=policy,
            root=code is session.root,
        )

    try:
        got = capture()
    except SymbolicFailure as e:
        logger.info("%s: symbolic sizes do not compile, they are fixed from now on: %s", frame_name(code), e)
        policy.fix(str(e))
        got = capture()
    seconds = time.perf_counter() - start
    if isinstance(got, vm.Skip):
        if got.loc is not None:
            session.log.add_break(got.reason, got.loc, got.hint or _ANY_BREAK).seconds += seconds
        return Skip(got.reason, got.always, got.once, got.guards)
    for reason, loc in got.breaks:
        session.log.add_break(reason, loc, got.hint or _ANY_BREAK).seconds += seconds
        over = session.over_budget(code, reason, loc)
        if over:
            return Skip(over)
    session.log.note_sizes(frame_name(code), got.sizes)
    return Captured(got.code, got.guards, got.sources)


def frame_name(code: CodeType) -> str:
    """``Model.forward (model.py:12)``."""
    return f"{code.co_qualname} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


def reset() -> None:
    """Forget everything compiled, in all sessions: the next call captures again."""
    with _lock:
        for ref in list(_codes.values()):
            code = ref()
            if code is not None:
                _C.remove_entries(code)
                _C.skip(code, False)
        _codes.clear()


def counters() -> dict[str, int]:
    """Process-wide counts: hits, misses, frames that were grown in place, frames that ran as functions of their own."""
    out: dict[str, int] = _C.counters()
    return out


def _remember(code: CodeType, where: dict[int, weakref.ref[CodeType]]) -> None:
    key = id(code)
    if key not in where:
        where[key] = weakref.ref(code, lambda _: where.pop(key, None))


def _owners(guards: GuardSet, frame: FrameValues) -> list[Any]:
    """The arguments whose end ends the version: where its guards look up tensors as keys (an optimizer's state), they
    hold those tensors, which would live as long as the version."""
    for g in guards:
        source = getattr(g, "source", None)
        while source is not None:
            if isinstance(source.key, torch.Tensor):
                return [a for a in frame.args if isinstance(a, (torch.nn.Module, torch.optim.Optimizer))]
            source = source.base
    return []


def _forget(code: weakref.ref[CodeType], session: int, version: weakref.ref[Version]) -> None:
    """An object that a version was made for is gone: so is the version, and what its guards name (parameters)."""
    c, v = code(), version()
    if c is not None and v is not None:
        for e in _C.entries(c):
            if e.session == session and e.info is v:
                _C.remove_entries(c, session, e)


def _drop(session: int, codes: dict[int, weakref.ref[CodeType]]) -> None:
    """A session is gone: so are its versions."""
    for ref in list(codes.values()):
        code = ref()
        if code is not None:
            _C.remove_entries(code, session)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    _C.after_fork()


os.register_at_fork(after_in_child=_after_fork)
