"""CUDA graphs for a compiled pair: forward and backward recorded once, then replayed with hardly any host time.

``graph_pair(forward, backward, signature)`` gives the two callables back, recording.  The first call runs as it is (a
warm-up); the second is recorded; later ones replay.  The warm-up's memory is a pool of its own that can be given back
whole: what is made between it and the recording (an optimizer's state, for good) must not lie in pieces of it.  What
stays true for the user:

* Inputs whose address has not changed (parameters, buffers) are read where they are; others are copied to buffers of
  the recording.  When a fixed address changes, the recording is made anew, with that input copied from then on.
* A result or gradient that is still alive when its memory would be overwritten is not overwritten: that call runs
  without the graph, the recording is given up to whoever holds its memory, and the next one hands out copies of that
  output.  Alive means: something refers to its storage.  Results up to ``SMALL`` bytes (losses) are always copies.
* Two forwards before a backward need two sets of saved tensors: a second recording is made, up to ``MOST_RECORDINGS``.
* A forward and its backward share a memory pool: the backward writes over saved tensors that it has read, and the next
  forward over the gradients. Where gradients are still alive then, that call runs without the graph, and from then on
  each graph has a pool of its own. A backward that keeps its graph (``retain_graph``) runs without one, too.
* A backward in stages (:mod:`braze.runtime.staged`) is a graph a stage, in one memory pool: gradients leave it between
  two replays, and a bucket's all-reduce runs beside the next ones.
* Random numbers: ``philox_seed`` draws from torch's generator inside the recording; a replay draws anew.

Everything else that cannot be recorded (CPU tensors, a synchronising call, an overlapping input) turns recording off
for the pair, with the reason in ``Recordings.notes``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch

from braze.ir import Signature

from .batched import saved_again
from .cuda_memory import apart, drop_workspaces, growing

MOST_RECORDINGS = 4  # simultaneous sets of saved tensors
MOST_ATTEMPTS = 8  # recordings of one pair, also those thrown away
Compiled = Callable[..., Any]
SMALL = 1 << 20
_use_count: Callable[[int], int] = torch._C._storage_Use_Count
_keeps_graph: Callable[[], bool] = torch._C._autograd._get_current_graph_task_keep_graph


class Graph(Protocol):
    """What can be replayed."""

    def replay(self) -> None: ...


class Device(Protocol):
    """Recording on a device; tests put a pretended one in its place."""

    def pool(self) -> Any: ...

    def capture(self, fn: Callable[[], Any], pool: Any) -> tuple[Graph, Any]: ...

    def warm_up(self, fn: Callable[[], Any]) -> Any: ...

    def alias(self, x: torch.Tensor) -> torch.Tensor: ...

    def busy(self) -> bool: ...


class Cuda:
    """Recording by torch.cuda.graph, on a side stream."""

    def __init__(self) -> None:
        self.stream: torch.cuda.Stream | None = None

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def capture(self, fn: Callable[[], Any], pool: Any) -> tuple[Graph, Any]:
        """Run ``fn`` without effect and remember what it launched."""
        if self.stream is None:
            self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        with growing():
            drop_workspaces()
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local"):
                out = fn()
            drop_workspaces()
        return graph, out

    def warm_up(self, fn: Callable[[], Any]) -> Any:
        """Run ``fn`` with memory apart."""
        return apart(fn)

    def alias(self, x: torch.Tensor) -> torch.Tensor:
        """A tensor over the same memory that does not own it (``x`` itself where it lies elsewhere)."""
        own = x.untyped_storage()
        if not x.is_cuda or not own.nbytes():
            return x
        storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), x.device, own.nbytes())
        out = torch.empty(0, dtype=x.dtype, device=x.device)
        return out.set_(storage, x.storage_offset(), x.shape, x.stride())

    def busy(self) -> bool:
        """True while someone else records: then nothing may be recorded inside."""
        return torch.cuda.is_current_stream_capturing()


class Refused(Exception):
    """This call, or this pair, cannot be recorded."""


def addresses(inputs: Sequence[Any]) -> list[int]:
    """Data pointers; 0 for what is no tensor."""
    return [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]


class Recording:
    """One captured run of a function: its input buffers, its graph, its outputs' memory."""

    def __init__(self, inputs: Sequence[Any], fixed: set[int]) -> None:
        self.numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]
        self.copied = [i for i, x in enumerate(inputs) if isinstance(x, torch.Tensor) and i not in fixed]
        self.targets = [_buffer(inputs[i]) for i in self.copied]
        self.fixed = sorted(fixed)
        self.pointers = [inputs[i].data_ptr() for i in self.fixed]
        self.written: list[int] = []  # positions in ``copied`` whose buffers the graph overwrites in place
        self.graph: Graph | None = None
        self.outputs: list[Any] = []
        self.watched: list[int] = []  # indices of outputs whose life matters
        self.storages: list[int] = []
        self.counts: list[int] = []
        self.kept: list[torch.UntypedStorage] = []

    def capture(self, run: Compiled, args: list[Any], device: Device, pool: Any) -> None:
        """Record ``run`` over ``arguments``, a list that may be emptied."""
        self.graph, outputs = device.capture(lambda: _call(run, args), pool)
        self.outputs = list(outputs)

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """The inputs, with the buffers in the places of those that are copied."""
        args = list(inputs)
        for i, buffer in zip(self.copied, self.targets):
            args[i] = buffer
        return args

    def watch(self, indices: Sequence[int]) -> None:
        """From now on ``alive`` tells which of these outputs others still refer to."""
        self.watched = [i for i in indices if isinstance(self.outputs[i], torch.Tensor)]
        self.kept = [self.outputs[i].untyped_storage() for i in self.watched]
        self.storages = [s._cdata for s in self.kept]
        self.counts = [_use_count(s) for s in self.storages]

    def alive(self) -> list[int]:
        """Watched outputs whose memory someone still uses."""
        now = list(map(_use_count, self.storages))
        if now == self.counts:
            return []
        found = [i for i, a, b in zip(self.watched, now, self.counts) if a > b]
        self.counts = list(map(min, now, self.counts))  # a reference of the time of recording has gone
        return found

    def moved(self, where: Sequence[int]) -> list[int]:
        """Fixed inputs that are elsewhere now. ``where``: the addresses of all inputs."""
        now = [where[i] for i in self.fixed]
        return [] if now == self.pointers else [i for i, a, b in zip(self.fixed, now, self.pointers) if a != b]

    def replay(self, inputs: Sequence[Any]) -> None:
        """Fill the buffers and run."""
        self.fill(inputs)
        assert self.graph is not None
        self.graph.replay()
        if self.written:
            torch._foreach_copy_(
                [inputs[self.copied[k]] for k in self.written], [self.targets[k] for k in self.written]
            )

    def fill(self, inputs: Sequence[Any]) -> None:
        """Copy what is read from buffers."""
        if self.copied:
            torch._foreach_copy_(self.targets, [inputs[i] for i in self.copied])


Stages = list[tuple[int, ...]]  # which outputs each stage gives


class Staged(Recording):
    """A backward recorded stage by stage, in one memory pool. All are captured before the first one is replayed."""

    def __init__(self, inputs: Sequence[Any], fixed: set[int], stages: Stages) -> None:
        super().__init__(inputs, fixed)
        self.stages = stages
        self.graphs: list[Graph] = []

    def capture(self, run: Compiled, args: list[Any], device: Device, pool: Any) -> None:
        """Record a generator function of a list of inputs: what it does up to each yield."""
        running: Iterator[list[Any]] = run(args)
        outputs: dict[int, Any] = {}
        for stage in self.stages:
            graph, given = device.capture(partial(next, running), pool)
            self.graphs.append(graph)
            outputs.update(zip(stage, given))
        self.outputs = [outputs[i] for i in range(len(outputs))]


def _buffer(x: torch.Tensor) -> torch.Tensor:
    if any(s == 0 and n > 1 for n, s in zip(x.shape, x.stride())):
        raise Refused("an input overlaps itself (an expanded tensor)")
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device).copy_(x)


class Forward(Recording):
    """A forward's recording, with that of its backward. ``owned``: for each extra output the tensor that owns its
    memory, until a backward is recorded that writes over it (``spent``)."""

    def __init__(self, inputs: Sequence[Any], fixed: set[int], pool: Any) -> None:
        super().__init__(inputs, fixed)
        self.pool = pool
        self.extras_at: list[int] = []  # addresses of the saved extra outputs, in the backward's order
        self.token: weakref.ref[Any] | None = None
        self.backward: Recording | None = None
        self.owned: dict[int, torch.Tensor] = {}
        self.spent = False

    def lend(self, first: int, device: Device) -> None:
        """Hand out the extra outputs, from ``first`` on, as tensors that keep the graph's pool but not their memory."""
        for k, x in enumerate(self.outputs[first:], first):
            lent = device.alias(x) if _is_tensor(x) else x
            if lent is not x:
                self.owned[k - first] = x
                self.outputs[k] = self.keep(lent)

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        """``x``, which keeps the memory of the saved tensors valid for as long as it lives."""
        x.braze_keeps = (self.graph, self.owned)  # type: ignore[attr-defined]
        return x

    def saved(self) -> bool:
        """True while some backward may still come for the saved tensors."""
        return self.token is not None and self.token() is not None


class Recordings:
    """The recordings of one compiled pair. ``notes`` says what was not recorded, and why."""

    def __init__(self, forward: Compiled, backward: Callable[[], Compiled] | None, sig: Signature, device: Device):
        self.run_forward, self.thunk, self.device = forward, backward, device
        self.results = sig.n_results
        self.first_extra = sig.n_results + len(sig.mutated)
        self.mutated = [m.index for m in sig.mutated]
        self.saved = len(sig.saved)
        self.extra_at = [(k, r.index) for k, r in enumerate(sig.saved) if r.kind == "extra"]
        self.lock = threading.RLock()
        self.notes: list[str] = []
        self.off = False
        self.shared = backward is not None  # forwards and their backwards share pools
        self.full = False  # sizes beyond those recorded were noted
        self.attempts = 0
        self.recordings: list[Forward] = []
        self.copied_results: set[int] = set()
        self.copied_gradients: set[int] = set()
        self.seen: list[int] | None = None  # addresses of the last call's inputs
        self.moving: set[int] = set()
        self.moving_backward: set[int] = set()
        self.seen_backward: list[int] | None = None
        self.compiled_backward: Compiled | None = None

    # ---- forward ----

    def forward(self, *inputs: Any) -> Any:
        """The forward, replayed where possible."""
        with self.lock:
            first = self.seen is None
            out = None if self.off or self.device.busy() else self._attempt(inputs)
            first &= self.seen is not None and not self.off
        return self._unrecorded(self.run_forward, list(inputs), first) if out is None else out

    def _unrecorded(self, run: Compiled, args: list[Any], first: bool) -> Any:
        return self.device.warm_up(lambda: _call(run, args)) if first else _call(run, args)

    def _attempt(self, inputs: Sequence[Any]) -> list[Any] | None:
        """The replayed outputs; None: run it without a graph."""
        now = addresses(inputs)
        if self.seen is None:
            self.seen = now
            reason = _unfit(inputs)
            if reason:
                self._stop(reason)
            return None
        recording = self._pick(inputs, now)
        if recording is None:
            fixed = {i for i, (a, b) in enumerate(zip(now, self.seen)) if a == b != 0} - self.moving
            recording = self._record(inputs, fixed)
            if recording is None:
                return None
        else:
            alive = recording.alive()
            if alive:
                self.copied_results.update(alive)
                self.recordings.remove(recording)
                self.notes.append(f"results {alive} outlive a call: copies of them are handed out from now on")
                return None
            if recording.spent and (recording.backward is None or recording.backward.alive()):
                self._share_no_more(recording)
                return None
            recording.replay(inputs)
        return self._hand_out(recording)

    def _share_no_more(self, recording: Forward) -> None:
        self.recordings.remove(recording)
        if recording.backward is not None:
            self.shared = False
            self.notes.append("gradients outlive the next forward: the graphs share no memory from now on")

    def _pick(self, inputs: Sequence[Any], now: list[int]) -> Forward | None:
        """A recording for these inputs whose saved tensors nobody waits for."""
        numbers = [x for x in inputs if not isinstance(x, torch.Tensor)]
        for r in list(self.recordings):
            if r.numbers != numbers or r.saved():
                continue
            moved = r.moved(now)
            if not moved:
                return r
            self.moving.update(moved)
            self.recordings.remove(r)
            self.notes.append(f"inputs {moved} moved: recorded again, and copied from now on")
        return None

    def _record(self, inputs: Sequence[Any], fixed: set[int]) -> Forward | None:
        if len(self.recordings) >= MOST_RECORDINGS:
            if any(type(x) is int for x in inputs) and not self.full:
                self.full = True
                self.notes.append(
                    f"there are recordings for {MOST_RECORDINGS} sets of sizes: other sizes run without one"
                )
            return None
        self.attempts += 1
        if self.attempts > MOST_ATTEMPTS:
            self._stop(f"recorded {MOST_ATTEMPTS} times: inputs or sizes keep changing")
            return None
        try:
            r = Forward(inputs, fixed, self.device.pool())
            r.capture(self.run_forward, r.arguments(inputs), self.device, r.pool)
        except Exception as e:
            self._stop(f"the forward cannot be recorded: {e}")
            return None
        new = zip(self.mutated, r.outputs[self.results : self.first_extra])
        in_place = {i for i, value in new if value is None}
        r.written = [k for k, i in enumerate(r.copied) if i in in_place]
        results = r.outputs[: self.results]
        self.copied_results.update(i for i, x in enumerate(results) if _is_tensor(x) and x.nbytes <= SMALL)
        r.watch([i for i in range(self.results) if i not in self.copied_results])
        where = addresses(r.outputs[self.first_extra :])
        r.extras_at = [where[i] for _, i in self.extra_at]
        if self.shared:
            r.lend(self.first_extra, self.device)
        r.replay(inputs)
        self.recordings.append(r)
        return r

    def _hand_out(self, r: Forward) -> list[Any]:
        """Results as tensors of their own, saved tensors as they are, the first one with an eye on its life."""
        out: list[Any] = list(r.outputs)
        for i in range(self.results):
            x = out[i]
            if isinstance(x, torch.Tensor):
                out[i] = x.clone() if i in self.copied_results else x.detach()
        first = next((k for k in range(self.first_extra, len(out)) if _is_tensor(out[k])), None)
        if first is not None:
            out[first] = token = out[first].detach()
            r.token = weakref.ref(token)
            if self.shared:
                r.keep(token)
        return out

    def _stop(self, reason: str) -> None:
        self.off = True
        self.recordings = []
        self.notes.append(reason)

    # ---- backward ----

    def backward(self) -> Compiled:
        """The thunk of the backward."""
        assert self.thunk is not None
        if self.compiled_backward is None:
            self.compiled_backward = self.thunk()
        run = partial(self._backward)
        if hasattr(self.compiled_backward, "stages"):
            run.stages = self._in_stages  # type: ignore[attr-defined]
        return run

    def _backward(self, *args: Any) -> Any:
        assert self.compiled_backward is not None
        with self.lock:
            first = self.seen_backward is None
            r = self._ready(args, self.compiled_backward, None)
            first &= self.seen_backward is not None
            if r is not None:
                r.replay(args)
                return tuple(self._given(r, range(len(r.outputs))))
        return self._unrecorded(self.compiled_backward, list(args), first)

    def _in_stages(self, first: int, rest: int) -> tuple[Compiled, Stages]:
        """The backward as a generator function of a list of inputs, and which outputs it yields at a time."""
        program, stages = self.compiled_backward.stages(first, rest)  # type: ignore[union-attr]

        def run(args: list[Any]) -> Iterator[list[Any]]:
            with self.lock:
                r = self._ready(args, program, stages)
            if isinstance(r, Staged):
                r.fill(args)  # which keeps the saved tensors, so that no forward overwrites them before the end
                for graph, stage in zip(r.graphs, stages):
                    graph.replay()
                    yield self._given(r, stage)
            else:
                yield from program(args)

        return run, stages

    def _ready(self, args: Sequence[Any], run: Compiled, stages: Stages | None) -> Recording | None:
        """The recording to replay; None: run it without a graph."""
        if self.off or self.device.busy():
            return None
        now = addresses(args)
        seen, self.seen_backward = self.seen_backward, now
        owner = self._owner(now)
        if owner is None or seen is None or (owner.spent and keeps_saved()):
            return None
        r = owner.backward
        if getattr(r, "stages", None) != stages:
            r = owner.backward = None
        if r is not None:
            moved = r.moved(now)
            if moved:
                self.moving_backward.update(moved)
                self.notes.append(f"inputs {moved} of the backward moved: recorded again, and copied from now on")
                r = owner.backward = None
        if r is None and owner.spent:
            self.recordings.remove(owner)  # its saved tensors are free to be written over by what is recorded next
            return None
        if r is None:
            if self.shared and stages is None and keeps_saved():
                return None
            fixed = {i for i, (a, b) in enumerate(zip(now, seen)) if a == b != 0} - self.moving_backward
            fixed -= {k for k in range(self.saved, len(args)) if _is_tensor(args[k]) and args[k].nbytes <= SMALL}
            fixed |= {k for k, _ in self.extra_at if now[k]}
            return self._record_backward(owner, args, fixed, run, stages)
        alive = r.alive()
        if alive:
            self.copied_gradients.update(alive)
            owner.backward = None
            self.notes.append(f"{len(alive)} gradients outlive a backward: copies of them are handed out from now on")
            return None
        return r

    def _owner(self, now: list[int]) -> Forward | None:
        """The forward recording whose saved tensors lie at these addresses."""
        extras = [now[k] for k, _ in self.extra_at]
        return next((r for r in self.recordings if r.extras_at == extras), None)

    def _record_backward(
        self, owner: Forward, args: Sequence[Any], fixed: set[int], run: Compiled, stages: Stages | None
    ) -> Recording | None:
        self.attempts += 1
        if self.attempts > MOST_ATTEMPTS:
            self._stop(f"recorded {MOST_ATTEMPTS} times: inputs or sizes keep changing")
            return None
        share = self.shared and stages is None
        given = list(args)
        for k, i in self.extra_at:  # not the token, whose life is the caller's
            given[k] = owner.owned[i] if share and i in owner.owned else owner.outputs[self.first_extra + i]
        try:
            r = Recording(given, fixed) if stages is None else Staged(given, fixed, stages)
            ready = r.arguments(given)
            if share:
                owner.spent = True
                owner.owned.clear()
                given.clear()
            r.capture(run, ready, self.device, owner.pool if share else self.device.pool())
        except Exception as e:
            self._stop(f"the backward cannot be recorded: {e}")
            return None
        r.watch([i for i in range(len(r.outputs)) if i not in self.copied_gradients])
        owner.backward = r
        return r

    def _given(self, r: Recording, which: Sequence[int]) -> list[Any]:
        """Gradients as tensors of their own, so that autograd may take them for ``.grad`` without a copy."""
        return [
            x if not isinstance(x, torch.Tensor) else x.clone() if i in self.copied_gradients else x.detach()
            for i, x in ((i, r.outputs[i]) for i in which)
        ]


def keeps_saved() -> bool:
    """Whether the running backward may be followed by another one on the same saved tensors."""
    return saved_again() or _keeps_graph()


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _call(f: Compiled, args: list[Any]) -> Any:
    return f(args) if getattr(f, "boxed", False) else f(*args)


def _unfit(inputs: Sequence[Any]) -> str:
    """Why inputs rule recording out; "" where they do not."""
    kinds = {x.device.type for x in inputs if isinstance(x, torch.Tensor)}
    return "an input is on the CPU" if "cpu" in kinds and len(kinds) > 1 or kinds == {"cpu"} else ""


def graph_pair(
    forward: Compiled,
    backward: Callable[[], Compiled] | None,
    signature: Signature,
    device: Device | None = None,
) -> tuple[Compiled, Callable[[], Compiled] | None, Recordings]:
    """(forward, backward thunk, their recordings) in place of a compiled pair, for ``make_autograd_callable``."""
    made = Recordings(forward, backward, signature, device or Cuda())
    return made.forward, made.backward if backward is not None else None, made
