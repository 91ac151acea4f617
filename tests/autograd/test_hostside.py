"""Programs of two devices in two parts. Without a GPU a dtype stands for one: float64 and integers are the host's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cuda_typed
import pytest
import torch

from braze.autograd import partition, trace_joint
from braze.autograd.hostside import HostSplit, on_cpu, split_host
from braze.ir import Graph, TensorType, load_python, type_of, verify
from braze.runtime.cuda_graphs import graph_pair
from braze.runtime.mixed import joined


def scalar_host(t: TensorType) -> bool:
    return t.rank == 0 and t.dtype in (torch.float64, torch.int64)


def forward_of(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[Graph, Any]:
    aot = partition(trace_joint(fn, [type_of(x) for x in inputs]))
    return aot.forward, aot.signature


def split_of(fn: Callable[..., Any], inputs: list[torch.Tensor]) -> tuple[Graph, Any, HostSplit]:
    forward, signature = forward_of(fn, inputs)
    split = split_host(forward, scalar_host)
    assert split is not None
    verify(split.host)
    verify(split.device)
    return forward, signature, split


def update(p: torch.Tensor, g: torch.Tensor, step: torch.Tensor, lr: torch.Tensor) -> torch.Tensor:
    step.add_(1)
    size = lr / (1 - 0.9**step)
    p.sub_(g * size)
    return (g * lr).sum()


def arguments() -> list[torch.Tensor]:
    scalars = [torch.tensor(2.0, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)]
    return [torch.randn(4, 3), torch.randn(4, 3), *scalars]


def test_the_host_part_has_all_scalar_work() -> None:
    forward, signature, split = split_of(update, arguments())
    assert split.host_inputs == (2, 3) and split.device_inputs == (0, 1)
    assert split.packs == ((torch.float64, 2),) and split.moved == 0
    host = {str(n.target) for n in split.host.calls}
    assert "aten.pow.Scalar" in host and not any("pow" in str(n.target) for n in split.device.calls)
    position = {m.index: signature.n_results + k for k, m in enumerate(signature.mutated)}
    assert split.host_outputs == (position[2],)
    assert split.device.overwrites == ((position[0], 0),)
    assert split.host.overwrites == ((len(split.host.outputs) - 1, 0), (0, 2), (1, 3))  # the scalars have places


@pytest.mark.parametrize("steady", [False, True])
def test_the_parts_together_are_the_whole(steady: bool) -> None:
    forward, _, split = split_of(update, arguments())
    run = joined(load_python(split.host), load_python(split.device), split, steady)
    for _ in range(3):
        inputs = arguments()
        torch.testing.assert_close(tuple(run(*inputs)), load_python(forward)(*inputs))


def test_tensors_and_integers_go_over() -> None:
    def f(x: torch.Tensor, n: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return x * (n + 1) + x * k

    inputs = [torch.randn(3), torch.tensor(2), torch.tensor(0.5, dtype=torch.float64)]
    forward, _, split = split_of(f, inputs)
    assert [d for d, _ in split.packs] == [torch.int64, torch.float64]
    run = joined(load_python(split.host), load_python(split.device), split)
    torch.testing.assert_close(tuple(run(*inputs)), load_python(forward)(*inputs))


def test_one_device_stays_one_graph() -> None:
    forward, _ = forward_of(update, arguments())
    assert split_host(forward, lambda t: False) is None and split_host(forward, on_cpu) is None


class Pretended:
    """A device that records by remembering the call, and replays it into the outputs' memory."""

    def pool(self) -> Any:
        return None

    def busy(self) -> bool:
        return False

    def warm_up(self, fn: Callable[[], Any]) -> Any:
        return fn()

    def capture(self, fn: Callable[[], Any], pool: Any) -> Any:
        out = [x.clone() if isinstance(x, torch.Tensor) else x for x in fn()]

        class Replay:
            def replay(self) -> None:
                for a, b in zip(out, fn()):
                    if isinstance(a, torch.Tensor):
                        a.copy_(b)

        return Replay(), out


def test_recorded_device_part_reads_the_pack_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    import braze.runtime.cuda_graphs as cuda_graphs

    monkeypatch.setattr(cuda_graphs, "_unfit", lambda inputs: "")
    forward, signature, split = split_of(update, arguments())
    place = {i: k for k, i in enumerate(split.device_inputs)}
    mutated = tuple(replace(m, index=place.get(m.index, -1)) for m in signature.mutated)
    device, _, recordings = graph_pair(
        load_python(split.device), None, replace(signature, mutated=mutated), Pretended()
    )
    run = joined(load_python(split.host), device, split, steady=True)
    held = arguments()
    for k in range(4):
        held[3].fill_(0.1 * k)
        torch.testing.assert_close(tuple(run(*held)), load_python(forward)(*held))
    assert len(recordings.recordings) == 1 and not recordings.notes


def test_seeds_of_attention_stay_where_they_are() -> None:
    """The backward of attention reads its forward's seed and offset itself: nothing of it is a host part."""
    q = TensorType((2, 2, 8, 16), (256, 128, 16, 1), torch.float32, torch.device("cuda", 0), 0, True)
    attend = torch.ops.aten._scaled_dot_product_efficient_attention
    cuda_typed.enable()
    aot = partition(trace_joint(lambda q: attend(q, q, q, None, True, 0.1)[0].sum(), [q]))
    assert aot.backward is not None
    seeds = [n for n in aot.backward.inputs if on_cpu(n.val)]
    assert len(seeds) == 2
    assert split_host(aot.forward) is None and split_host(aot.backward) is None
