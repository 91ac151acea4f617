"""Axes are simplified, isomorphic kernels share one key, and the canonical kernel computes the same."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
import torch
from prim_graphs import G

from braze.inductor.loops import Kernel, canonical, canonical_all, lower, run_kernel, verify_kernel
from braze.inductor.loops.ir import Buffer
from braze.inductor.loops.ref import as_strided, axes_of, reshape_groups, view, whole
from braze.ir import Graph, tensor_type


def kernels(graph: Graph) -> list[Kernel]:
    return [s for s in lower(graph).steps if isinstance(s, Kernel)]


def sizes(kernel: Kernel) -> tuple[list[int], list[int]]:
    return [a.size for a in kernel.x], [a.size for a in kernel.r]


def one(make: object, **inputs: tuple[int, ...]) -> Kernel:
    g = G()
    nodes = [g.input(k, s) for k, s in inputs.items()]
    return kernels(g.out(make(g, *nodes)))[-1]  # type: ignore[operator]


def test_contiguous_axes_merge() -> None:
    k = canonical(one(lambda g, x: g.neg(x), x=(4, 5, 6))).kernel
    assert sizes(k) == ([120], [])
    assert str(k.body[0].index) == "(x0,)"


def test_broadcast_keeps_two_axes() -> None:
    k = canonical(one(lambda g, x, w: g.add(x, g.expand_to(w, (4, 5, 6))), x=(4, 5, 6), w=(6,))).kernel
    assert sizes(k) == ([20, 6], [])


def test_divisions_split_an_axis() -> None:
    k = canonical(one(lambda g, x: g.neg(g.reshape(g.permute(x, (1, 0, 2)), (10, 6))), x=(5, 2, 6))).kernel
    assert sizes(k) == ([2, 5, 6], [])
    assert not any("//" in str(i.index) for i in k.body if hasattr(i, "index"))


def test_axes_follow_the_memory_of_the_store() -> None:
    g = G()
    x = g.input("x", (2, 3, 4, 5), strides=(60, 1, 15, 3))
    (k,) = kernels(g.out(g.neg(x)))
    assert sizes(canonical(k).kernel) == ([120], [])


def test_reductions_merge_reduced_axes_only() -> None:
    k = canonical(one(lambda g, x: g.sum(x, (0, 2, 3)), x=(2, 3, 4, 5))).kernel
    assert sizes(k) == ([3], [2, 20])


def test_argmax_keeps_the_order_of_reduced_axes() -> None:
    g = G()
    x = g.input("x", (3, 4), strides=(1, 3))
    (arg,) = kernels(g.out(g.argmax(x, (0, 1))))
    g = G()
    x = g.input("x", (3, 4), strides=(1, 3))
    (total,) = kernels(g.out(g.sum(x, (0, 1))))
    assert sizes(canonical(arg).kernel) == ([], [3, 4])
    assert sizes(canonical(total).kernel) == ([], [12])


def test_isomorphic_kernels_share_a_key() -> None:
    g = G()
    x, y = g.input("x", (4, 6)), g.input("y", (4, 6))
    ks = kernels(g.out(g.exp(x), g.exp(y), g.exp(g.reshape(y, (24,))), g.exp(g.permute(x, (1, 0))), g.neg(x)))
    keys = [canonical(k).key for k in ks]
    assert keys[0] == keys[1] == keys[2] == keys[3] and keys[4] != keys[0]
    assert len(canonical_all(ks)) == 2
    assert canonical(ks[1]).buffers[0].name == "y"


def test_constants_dtypes_and_shapes_tell_keys_apart() -> None:
    makes = [
        lambda g: g.add(g.input("x", (4,)), 0.0),
        lambda g: g.add(g.input("x", (4,)), -0.0),
        lambda g: g.add(g.input("x", (4,), torch.float64), 0.0),
        lambda g: g.add(g.input("x", (5,)), 0.0),
        lambda g: g.sub(g.input("x", (4,)), 0.0),
        lambda g: g.add(g.input("x", (4,)), float("nan")),
    ]
    keys = set()
    for make in makes:
        g = G()
        keys.add(canonical(kernels(g.out(make(g)))[0]).key)
    assert len(keys) == len(makes)


def test_random_streams_share_a_kernel() -> None:
    g = G()
    seed = g.input("seed", (2,), torch.int64)
    cpu = torch.device("cpu")
    ks = kernels(g.out(*[g.philox_uniform(seed, n, (4, 6), cpu) for n in (0, 3, 7)]))
    assert len({canonical(k).key for k in ks}) == 1


def test_the_key_does_not_depend_on_the_process() -> None:
    code = (
        "import torch; from braze.ir import *; from braze.prims import PRIMS; from braze.inductor.loops import *\n"
        "g = Graph(); x = g.input('x', tensor_type((4, 6)))\n"
        "g.outputs = (g.call(PRIMS['exp'], (x,), val=x.val),)\n"
        "print(canonical(lower(g).steps[0]).key)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert run.stdout.strip() == canonical(one(lambda g, x: g.exp(x), x=(4, 6))).key


@pytest.mark.parametrize("seed", range(20))
def test_canonical_kernels_compute_the_same(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    g = G()
    order = rng.sample(range(3), 3)
    base = torch.randn([[4, 3, 6][d] for d in order], dtype=torch.float64)
    t = base.permute([order.index(d) for d in range(3)])
    x = g.input("x", (4, 3, 6), torch.float64, t.stride())
    v = g.permute(x, tuple(rng.sample(range(3), 3)))
    v = g.reshape(v, rng.choice([(12, 6), (72,), (8, 9), (2, 36), (3, 24)]))
    out = g.neg(v) if rng.random() < 0.5 else g.sum(v, (rng.randrange(v.val.rank),))
    (k,) = kernels(g.out(out))
    c = canonical(k)
    verify_kernel(c.kernel)
    result = {}
    for kernel, flat in ((k, False), (c.kernel, True)):
        want = torch.empty_strided(k.writes[0].type.sizes, k.writes[0].type.strides, dtype=torch.float64)
        data = {"x": t, k.writes[0].name: want}
        named = zip(c.buffers, c.kernel.reads + c.kernel.writes)
        memory = {}
        for old, new in named:
            d = data[old.name]
            memory[new if flat else old] = d.as_strided((new.type.numel,), (1,)) if flat else d
        run_kernel(kernel, memory)
        result[flat] = want
    torch.testing.assert_close(result[True], result[False])


@pytest.mark.parametrize("seed", range(30))
def test_random_views_index_as_torch_does(seed: int) -> None:
    rng = random.Random(seed)
    t = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    ref = whole(Buffer("t", tensor_type(tuple(t.shape), torch.int64)))
    for _ in range(4):
        kind = rng.choice(["permute", "reshape", "slice", "flip", "expand"])
        if kind == "permute":
            args: tuple[object, ...] = (tuple(rng.sample(range(t.dim()), t.dim())),)
            t = t.permute(args[0])
        elif kind == "reshape":
            n = t.numel()
            k = rng.choice([d for d in range(1, n + 1) if n % d == 0])
            m = rng.choice([d for d in range(1, k + 1) if k % d == 0])
            args = ((n // k, m, k // m),)
            t = t.reshape(args[0])
        elif kind == "slice":
            starts = tuple(rng.randrange(n) for n in t.shape)
            stops = tuple(rng.randint(a + 1, n) for a, n in zip(starts, t.shape))
            steps = tuple(rng.randint(1, 3) for _ in starts)
            args = (starts, stops, steps)
            t = t[tuple(slice(*abc) for abc in zip(*args))]
        elif kind == "flip":
            args = ((rng.randrange(t.dim()),),)
            t = t.flip(args[0])
        else:
            args = ((2, *t.shape),)
            t = t.expand(args[0])
        ref = view(kind, ref, *args)
    assert ref.sizes == tuple(t.shape)
    from braze.inductor.loops.interpret import eval_expr
    from braze.inductor.loops.ref import atom

    env = {}
    for d, a in enumerate(axes_of(ref.sizes)):
        if not isinstance(a, int):
            env[atom(a)] = torch.arange(t.shape[d]).reshape([-1 if k == d else 1 for k in range(t.dim())])
    base = torch.arange(2 * 3 * 4 * 6).reshape(2, 3, 4, 6)
    got = base[tuple(torch.as_tensor(eval_expr(e, env)) for e in ref.index)]
    assert torch.equal(got.expand(t.shape), t)
    seen = as_strided(ref)
    if seen is not None:
        flat = torch.arange(2 * 3 * 4 * 6)
        assert torch.equal(flat.as_strided(seen.sizes, seen.strides, seen.offset), t)


def test_reshape_groups() -> None:
    assert reshape_groups((32, 128, 768), (4096, 12, 64)) == ((range(0, 2), range(0, 1)), (range(2, 3), range(1, 3)))
    assert reshape_groups((6, 4), (4, 6)) == ((range(0, 2), range(0, 2)),)
