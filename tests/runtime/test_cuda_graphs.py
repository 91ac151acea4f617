"""CUDA graphs' bookkeeping, on a pretended device whose replays overwrite what was recorded; on a card under gpu."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from braze.ir import SavedRef, Signature, tensor_type
from braze.runtime import cuda_memory
from braze.runtime.autograd_node import make_autograd_callable
from braze.runtime.cuda_graphs import Recordings, graph_pair


class _Tape(TorchDispatchMode):
    """Remembers calls, with their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out


class _Replayed:
    def __init__(self, calls: list[tuple[Any, ...]], over: list[torch.Tensor]) -> None:
        self.calls, self.over, self.replays = calls, over, 0

    def replay(self) -> None:
        """Every call again, its result written over the recorded one."""
        self.replays += 1
        with torch.no_grad():
            for func, args, kwargs, out in self.calls:
                again = func(*args, **kwargs)
                if isinstance(out, torch.Tensor) and out.data_ptr() != again.data_ptr():
                    out.detach().copy_(again)
            for x in self.over:  # a graph that shares a pool writes over what the ones before have lent
                x.fill_(float("nan"))


class Pretended:
    """Recording on the CPU."""

    def __init__(self) -> None:
        self.graphs: list[_Replayed] = []
        self.lent: dict[int, list[torch.Tensor]] = {}
        self.pools: list[Any] = []
        self.fail = False
        self.capturing = False
        self.warm_ups = 0

    def warm_up(self, fn: Callable[[], Any]) -> Any:
        self.warm_ups += 1
        return fn()

    def pool(self) -> Any:
        self.pools.append(object())
        return self.pools[-1]

    def alias(self, x: torch.Tensor) -> torch.Tensor:
        self.lent.setdefault(id(self.pools[-1]), []).append(x)
        return x.detach()

    def capture(self, fn: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
        if self.fail:
            raise RuntimeError("operation not permitted when stream is capturing")
        tape = _Tape()
        with tape:
            out = fn()
        self.graphs.append(_Replayed(tape.calls, list(self.lent.get(id(pool), ()))))
        return self.graphs[-1], out

    def busy(self) -> bool:
        return self.capturing

    @property
    def replays(self) -> int:
        return sum(g.replays for g in self.graphs)


@pytest.fixture(autouse=True)
def _cpu_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    import braze.runtime.cuda_graphs as module

    monkeypatch.setattr(module, "_unfit", lambda inputs: "")


class Model:
    """y = tanh(x @ w), with tanh's value and a copy of x saved; the calls that ran for real are counted."""

    def __init__(self) -> None:
        self.device = Pretended()
        self.w = torch.nn.Parameter(torch.randn(4, 4))
        self.ran = {"forward": 0, "backward": 0}
        sig = Signature(
            n_inputs=2,
            n_results=1,
            outputs=(),
            result_grads=(True,),
            saved=(SavedRef("extra", 0), SavedRef("extra", 1), SavedRef("input", 1)),
            tangents=(tensor_type((3, 4)),),
            input_grads=(True, True),
        )
        from dataclasses import replace

        from braze.ir import OutputSpec

        sig = replace(sig, outputs=(OutputSpec("result", 0),))
        self.pair: Recordings
        forward, thunk, self.pair = graph_pair(self.forward, lambda: self.backward, sig, self.device)
        self.call = make_autograd_callable(forward, thunk, sig)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
        self.ran["forward"] += 1
        y = torch.tanh(x @ w)
        return (y, y * 1.0, x * 1.0)

    def backward(self, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> Any:
        self.ran["backward"] += 1
        h = g * (1 - y * y)
        return (h @ w.t(), x.t() @ h)

    def step(self, x: torch.Tensor, retain: bool = False) -> torch.Tensor:
        (y,) = self.call(x, self.w)
        y.sum().backward(retain_graph=retain)
        return y.detach()

    def check(self, x: torch.Tensor) -> None:
        """One step gives eager's value and gradient."""
        self.w.grad = None
        y = self.step(x)
        v = self.w.detach().requires_grad_()
        want = torch.tanh(x @ v)
        want.sum().backward()
        torch.testing.assert_close(y, want.detach())
        torch.testing.assert_close(self.w.grad, v.grad)


def batch() -> torch.Tensor:
    return torch.randn(3, 4)


def test_records_then_replays() -> None:
    m = Model()
    batches = [batch() for _ in range(6)]
    for x in batches:
        m.check(x)
    assert m.ran == {"forward": 2, "backward": 2}  # a warm-up and a recording each
    assert m.device.replays == 10 and len(m.device.graphs) == 2 and m.device.warm_ups == 2
    assert not m.pair.notes


def test_parameters_are_read_in_place_and_batches_copied() -> None:
    m = Model()
    keep = [batch() for _ in range(4)]
    for x in keep:
        m.check(x)
    (r,) = m.pair.recordings
    assert r.fixed == [1] and r.copied == [0]
    with torch.no_grad():
        m.w.add_(1.0)  # in place: the recording sees it
    m.check(keep[0])
    assert len(m.device.graphs) == 2


def test_a_moved_parameter_is_recorded_again_and_then_copied() -> None:
    m = Model()
    keep = [batch() for _ in range(3)]
    for x in keep:
        m.check(x)
    old = m.w.data
    m.w.data = m.w.data.clone() + 1
    m.check(keep[0])
    m.check(keep[1])
    m.w.data = old
    m.check(keep[2])
    m.check(keep[0])
    assert any("moved" in n for n in m.pair.notes)
    assert m.pair.recordings[0].fixed == [] and not m.pair.off


def test_a_result_that_is_still_alive_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braze.runtime.cuda_graphs.SMALL", 0)
    m = Model()
    xs = [batch() for _ in range(6)]
    held = []
    with torch.no_grad():
        for x in xs:
            held.append(m.call(x, m.w)[0])
    for x, y in zip(xs, held):
        torch.testing.assert_close(y, torch.tanh(x @ m.w.detach()))
    # warm-up, recording, the call that finds a result alive, a recording that hands out copies
    assert m.ran["forward"] == 4 and m.device.replays == 4


def test_small_results_are_copies() -> None:
    m = Model()
    held = []
    with torch.no_grad():
        for x in (xs := [batch() for _ in range(5)]):
            held.append(m.call(x, m.w)[0])
    for x, y in zip(xs, held):
        torch.testing.assert_close(y, torch.tanh(x @ m.w.detach()))
    assert m.ran["forward"] == 2 and not m.pair.notes


def test_a_view_of_a_result_keeps_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braze.runtime.cuda_graphs.SMALL", 0)
    m = Model()
    xs = [batch() for _ in range(4)]
    held = []
    with torch.no_grad():
        for x in xs:
            held.append(m.call(x, m.w)[0][1:])
    for x, y in zip(xs, held):
        torch.testing.assert_close(y, torch.tanh(x @ m.w.detach())[1:])


def test_two_forwards_before_their_backwards() -> None:
    m = Model()
    for _ in range(3):
        m.check(batch())
    for _ in range(3):
        m.w.grad = None
        a, b = batch(), batch()
        (ya,), (yb,) = m.call(a, m.w), m.call(b, m.w)
        (ya.sum() + 2 * yb.sum()).backward()
        v = m.w.detach().requires_grad_()
        (torch.tanh(a @ v).sum() + 2 * torch.tanh(b @ v).sum()).backward()
        torch.testing.assert_close(m.w.grad, v.grad)
    assert len(m.pair.recordings) == 2


def test_gradients_accumulate() -> None:
    m = Model()
    for _ in range(3):
        m.check(batch())
    xs = [batch() for _ in range(4)]
    m.w.grad = None
    for x in xs:
        m.step(x)
    v = m.w.detach().requires_grad_()
    sum(torch.tanh(x @ v).sum() for x in xs).backward()
    torch.testing.assert_close(m.w.grad, v.grad)
    assert any("gradients outlive" in n for n in m.pair.notes)


def test_gradients_are_taken_without_a_copy() -> None:
    m = Model()
    for _ in range(3):
        m.check(batch())
    m.w.grad = None
    m.step(batch())
    (r,) = m.pair.recordings
    assert r.backward is not None and m.w.grad is not None
    assert m.w.grad.data_ptr() == r.backward.outputs[1].data_ptr()


def test_retain_graph() -> None:
    m = Model()
    for _ in range(3):
        m.check(batch())
    x = batch()
    m.w.grad = None
    (y,) = m.call(x, m.w)
    for _ in range(3):
        m.w.grad = None
        y.sum().backward(retain_graph=True)
        v = m.w.detach().requires_grad_()
        torch.tanh(x @ v).sum().backward()
        torch.testing.assert_close(m.w.grad, v.grad)
    assert m.ran["backward"] == 5  # recorded, it would write over what is saved
    y.sum().backward()
    assert m.ran["backward"] == 5
    m.check(batch())


def test_a_batched_backward_keeps_what_is_saved() -> None:
    m = Model()
    for _ in range(3):
        m.check(batch())
    x = batch()
    m.w.grad = None
    (y,) = m.call(x, m.w)
    rows = torch.randn(3, *y.shape)
    (found,) = torch.autograd.grad(y, m.w, rows, is_grads_batched=True)
    v = m.w.detach().requires_grad_()
    (want,) = torch.autograd.grad(torch.tanh(x @ v), v, rows, is_grads_batched=True)
    torch.testing.assert_close(found, want)


def test_what_waits_for_a_backward_outlives_its_recording() -> None:
    """The saved tensors of a recording that is given up stay valid until their backward."""
    m = Model()
    for _ in range(3):
        m.check(batch())
    x, other = batch(), batch()
    m.w.grad = None
    (y,) = m.call(x, m.w)
    keep = weakref.ref(m.pair.recordings[0].graph)  # type: ignore[arg-type]
    m.pair.recordings.clear()
    m.device.graphs.clear()
    assert keep() is not None
    m.w.grad = None
    y.sum().backward()
    v = m.w.detach().requires_grad_()
    torch.tanh(x @ v).sum().backward()
    torch.testing.assert_close(m.w.grad, v.grad)
    assert keep() is None
    m.check(other)


def test_gradients_live_through_the_next_forward() -> None:
    """zero_grad after the forward: the forward's replay must not run over the last gradients."""
    m = Model()
    for _ in range(5):
        m.w.grad = None
        m.step(batch())
        want = m.w.grad.clone()  # type: ignore[union-attr]
        with torch.no_grad():
            m.call(batch(), m.w)
        assert torch.equal(m.w.grad, want)  # type: ignore[arg-type]
    assert not m.pair.shared and len(m.pair.notes) == 1


def test_a_failing_recording_turns_recording_off_with_a_reason() -> None:
    m = Model()
    m.check(batch())
    m.device.fail = True
    for _ in range(3):
        m.check(batch())
    assert m.pair.off and "not permitted" in m.pair.notes[0]
    assert m.ran["forward"] == 4


def test_a_failing_backward_recording() -> None:
    m = Model()
    m.check(batch())
    (y,) = m.call(batch(), m.w)
    m.device.fail = True
    y.sum().backward()
    for _ in range(2):
        m.check(batch())
    assert m.pair.off and "backward" in m.pair.notes[-1]


def test_no_recording_inside_another() -> None:
    m = Model()
    m.device.capturing = True
    for _ in range(3):
        m.check(batch())
    assert not m.device.graphs and m.ran["forward"] == 3


def test_changing_sizes_give_up_in_the_end() -> None:
    m = Model()
    m.pair.attempts = 8
    m.check(batch())
    m.check(batch())
    assert m.pair.off and "keep changing" in m.pair.notes[-1]


class InStages(Model):
    """The model with a backward in two stages: the gradient of w, then that of x, from memory that the first keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.backward = partial(self.backward)  # type: ignore[method-assign]
        self.backward.stages = self.stages  # type: ignore[attr-defined]

    def stages(self, first: int, rest: int) -> Any:
        def run(args: list[torch.Tensor]) -> Any:
            self.ran["backward"] += 1
            y, x, w, g = args
            args.clear()
            h = g * (1 - y * y)
            yield [x.t() @ h]
            yield [h @ w.t()]

        return run, [(1,), (0,)]


def test_a_staged_backward_is_one_graph_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braze.runtime.autograd_node.active_ddp", lambda: object())
    m = InStages()
    events: list[tuple[str, int]] = []

    def reduce(p: torch.Tensor) -> None:
        assert p.grad is not None
        events.append(("reduce", m.device.replays))
        p.grad.mul_(2.0)  # in place, as an all-reduce

    m.w.register_post_accumulate_grad_hook(reduce)
    for step in range(6):
        before = m.device.replays
        m.w.grad = None
        x = batch().requires_grad_()
        m.step(x)
        a, v = x.detach().requires_grad_(), m.w.detach().requires_grad_()
        torch.tanh(a @ v).sum().backward()
        torch.testing.assert_close(m.w.grad, v.grad * 2)
        torch.testing.assert_close(x.grad, a.grad)
        if step >= 2:  # the first graph of the backward has run, the second has not
            assert events[-1] == ("reduce", before + 2) and m.device.replays == before + 3
    assert m.ran == {"forward": 2, "backward": 2} and len(m.device.graphs) == 3 and not m.pair.notes


def test_gradients_of_a_staged_backward_that_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braze.runtime.autograd_node.active_ddp", lambda: object())
    m = InStages()
    kept, want = [], []
    for _ in range(6):
        m.w.grad = None
        x = batch()
        m.step(x)
        kept.append(m.w.grad)
        v = m.w.detach().requires_grad_()
        torch.tanh(x @ v).sum().backward()
        want.append(v.grad)
    for a, b in zip(kept, want):
        torch.testing.assert_close(a, b)
    assert any("outlive a backward" in n for n in m.pair.notes) and not m.pair.off


def test_stages_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    m = InStages()
    for step in range(6):
        monkeypatch.setattr("braze.runtime.autograd_node.active_ddp", lambda on=step >= 3: object() if on else None)
        m.check(batch())
    assert not m.pair.off and m.pair.recordings


@pytest.mark.gpu
class TestOnACard:
    """The same properties with torch.cuda.graph."""

    def pair(self, kind: type[Model] = Model) -> tuple[Any, torch.nn.Parameter, Recordings]:
        m = kind()
        sig = _signature("cuda")
        forward, thunk, pair = graph_pair(m.forward, lambda: m.backward, sig, None)
        return make_autograd_callable(forward, thunk, sig), torch.nn.Parameter(m.w.detach().cuda()), pair

    @pytest.mark.parametrize("kind", [Model, InStages])
    def test_training(self, kind: type[Model], monkeypatch: pytest.MonkeyPatch) -> None:
        if kind is InStages:
            monkeypatch.setattr("braze.runtime.autograd_node.active_ddp", lambda: object())
        call, w, pair = self.pair(kind)
        for _ in range(6):
            x = torch.randn(3, 4, device="cuda", requires_grad=True)
            w.grad = None
            (y,) = call(x, w)
            y.sum().backward()
            a, v = x.detach().requires_grad_(), w.detach().requires_grad_()
            want = torch.tanh(a @ v)
            want.sum().backward()
            torch.testing.assert_close(y, want)
            torch.testing.assert_close(w.grad, v.grad)
            torch.testing.assert_close(x.grad, a.grad)
            del y
            with torch.no_grad():
                w.add_(0.1)
        assert not pair.off and pair.recordings and pair.recordings[0].backward is not None, pair.notes

    def test_a_backward_writes_over_what_was_saved(self) -> None:
        """Gradients of a deep network, with the graph kept now and then, and gradients that live on."""
        import braze

        torch.manual_seed(0)
        parts = [m for _ in range(6) for m in (torch.nn.Linear(256, 256), torch.nn.GELU())]
        model = torch.nn.Sequential(*parts).cuda()
        fast = braze.compile(model, mode="reduce-overhead")
        for k in range(14):
            x = torch.randn(512, 256, device="cuda")
            kept, added = k in (5, 6), k >= 10
            if not added:
                model.zero_grad()
            before = [0 if p.grad is None else p.grad.clone() for p in model.parameters()]
            loss = fast(x).square().mean()
            loss.backward(retain_graph=kept)
            if kept:
                loss.backward()
            want = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
            for p, old, g in zip(model.parameters(), before, want):
                torch.testing.assert_close(p.grad, old + (1 + kept) * g, rtol=1e-3, atol=1e-6)
            del loss

    def test_what_is_made_after_the_warm_up_does_not_hold_its_memory(self) -> None:
        import braze

        model = torch.nn.Sequential(*[m for _ in range(8) for m in (torch.nn.Linear(64, 64), torch.nn.GELU())]).cuda()
        fast = braze.compile(model, mode="reduce-overhead")
        x = torch.randn(1 << 17, 64, device="cuda")  # 32 MiB
        before = {s["address"] for s in torch.cuda.memory_snapshot()}
        state: list[torch.Tensor] = []
        for k in range(5):
            fast(x).square().mean().backward()
            if not k:
                state += [torch.zeros(1 << 18, device="cuda") for _ in range(64)]  # 1 MiB each
            model.zero_grad()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        new = [s for s in torch.cuda.memory_snapshot() if s["address"] not in before]
        outside = sum(s["total_size"] for s in new if tuple(s["segment_pool_id"]) == (0, 0))
        assert outside <= sum(t.nbytes for t in state) + (48 << 20)  # of 16 activations of 32 MiB none is held

    def test_results_alive(self) -> None:
        call, w, pair = self.pair()
        xs = [torch.randn(3, 4, device="cuda") for _ in range(5)]
        with torch.no_grad():
            held = [call(x, w)[0] for x in xs]
        for x, y in zip(xs, held):
            torch.testing.assert_close(y, torch.tanh(x @ w.detach()))

    def test_random_numbers_differ_between_replays(self) -> None:
        from braze.prims import PRIMS

        draw = PRIMS["philox_seed"]
        from braze.ir import OutputSpec

        sig = Signature(1, 1, (OutputSpec("result", 0),), (False,))
        forward, _, pair = graph_pair(lambda x: (draw(x.device) + 0,), None, sig, None)
        x = torch.zeros(1, device="cuda")
        seen = {tuple(forward(x)[0].tolist()) for _ in range(5)}
        assert len(seen) == 5 and not pair.off, pair.notes


class Allocator:
    """The caching allocator's settings, as torch keeps them."""

    def __init__(self, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.text, self.grows = text, "expandable_segments:True" in text
        monkeypatch.setattr(cuda_memory, "settings", lambda: (self.text, self.grows))
        monkeypatch.setattr(cuda_memory, "choose", self.choose)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")
        monkeypatch.setattr(cuda_memory, "works", lambda: True)

    def choose(self, text: str) -> None:
        self.text = text
        found = text.rfind("expandable_segments:")
        self.grows = self.grows if found < 0 else text[found:].startswith("expandable_segments:True")


@pytest.mark.parametrize("text", ["", "max_split_size_mb:64"])
def test_segments_grow_inside_of_a_recording(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(text, monkeypatch)
    for _ in range(3):
        with cuda_memory.growing():
            assert allocator.grows and allocator.text.startswith(text)
        assert not allocator.grows and allocator.text.startswith(text)
        assert len(allocator.text) < len(text) + 30
    with pytest.raises(KeyError), cuda_memory.growing():
        raise KeyError
    assert not allocator.grows


def test_a_driver_without_such_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator("", monkeypatch)
    monkeypatch.setattr(cuda_memory, "works", lambda: False)
    for _ in range(2):
        with cuda_memory.growing():
            assert not allocator.grows


@pytest.mark.parametrize("text", ["expandable_segments:True", "expandable_segments:False,max_split_size_mb:64"])
def test_what_the_user_said_of_segments_stays(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = Allocator(text, monkeypatch)
    before = allocator.grows
    with cuda_memory.growing():
        assert allocator.grows == before and allocator.text == text
    with pytest.raises(RuntimeError, match="mine"), cuda_memory.growing():
        raise RuntimeError("mine")


def test_without_settings_to_read_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(cuda_memory, "choose", said.append)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": []})
    with cuda_memory.growing():
        pass
    assert not said


def _signature(device: str) -> Signature:
    from braze.ir import OutputSpec

    return Signature(
        n_inputs=2,
        n_results=1,
        outputs=(OutputSpec("result", 0),),
        result_grads=(True,),
        saved=(SavedRef("extra", 0), SavedRef("extra", 1), SavedRef("input", 1)),
        tangents=(tensor_type((3, 4), device=device),),
        input_grads=(True, True),
    )
