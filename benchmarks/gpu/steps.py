"""Time of every step of a compiled training step on the card: kernels and vendor calls, each beside its bytes.

    python benchmarks/gpu/steps.py resnet50 bert hybrid [--batch 64] [--precision bf16] [--top 30] [--sweep 12]

Each step of the forward and backward host programs runs several times between two events, on the tensors that the
program gives it. ``--sweep K`` also times other launches of the K costliest kernels. ``--rows`` compares how finely
reductions are split. Bytes are those that must move, each buffer once; ``copy`` is the card's rate for a large copy.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from kernels import copy_rate
from traffic import CUDA, build, describe, nbytes, step_of

from braze.autograd import channels_last, partition, trace_joint
from braze.backends.inductor import policy_of
from braze.config import Config
from braze.inductor.codegen import triton_emit
from braze.inductor.codegen.externs import DIRECT
from braze.inductor.codegen.program import CompiledProgram, compile_program
from braze.inductor.codegen.triton_emit import _EMITTED, emit_triton
from braze.inductor.codegen.triton_tiling import choose
from braze.inductor.fuse import CUDA as TRAITS
from braze.inductor.fuse import fuse, plan
from braze.inductor.loops import Kernel, Program, lower
from braze.ir import type_of
from braze.prims.decompose import decompose
from braze.runtime.cuda import load_kernels_cuda, start_kernels_cuda
from braze.runtime.cuda_kernel import Launch

REPEATS = 10


@dataclass
class Row:
    """One step's time in microseconds, its bytes, and what it is."""

    us: float
    bytes: int
    kind: str
    text: str
    step: Any
    args: Sequence[Any]


def microseconds(f: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    f(*args, **kwargs)
    start.record()
    for _ in range(REPEATS):
        f(*args, **kwargs)
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e3 / REPEATS


class Timed:
    """A compiled program whose steps are timed one by one when it is called."""

    def __init__(self, program: Program, compiled: CompiledProgram, keep: int) -> None:
        self.program, self.compiled, self.keep = program, compiled, keep
        self.rows: list[Row] = []
        names = compiled.call.__globals__
        mine = {id(names[n]) for n in compiled.kernels if n in names}
        mine |= {id(s.target) for s in program.steps if not isinstance(s, Kernel)}
        for name in list(names):
            if id(names[name]) in mine:
                names[name] = self.wrap(names[name])
        names["torch"] = _Torch(self)

    def wrap(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            step = self.program.steps[len(self.rows)]
            out = f(*args, **kwargs)  # a kernel's first run: what follows may find its inputs overwritten
            us = microseconds(f, args, kwargs)
            kind = "kernel" if isinstance(step, Kernel) else str(step.target).removesuffix(".default")
            held = args if isinstance(step, Kernel) and nbytes(step) >= self.keep else ()
            self.rows.append(Row(us, nbytes(step), kind, describe(step), step, held))
            return out

        return run


class _Torch:
    """torch with the vendor calls of a host program timed."""

    def __init__(self, timed: Timed) -> None:
        self.timed = timed
        self.ops = self

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch.ops if name == "aten" else torch, name)
        if name == "aten":
            return _Aten(self.timed)
        return self.timed.wrap(value) if callable(value) and name in DIRECT else value


class _Aten:
    def __init__(self, timed: Timed) -> None:
        self.timed = timed

    def __getattr__(self, name: str) -> Any:
        packet = getattr(torch.ops.aten, name)
        timed = self.timed

        class Overloads:
            def __getattr__(self, overload: str) -> Any:
                return timed.wrap(getattr(packet, overload))

        return Overloads()


def programs(name: str, options: argparse.Namespace, rows: int) -> tuple[list[Program], list[torch.Tensor], Any]:
    case = build(name, options.size, options.batch)
    case.model.to(CUDA)
    loss, flat = step_of(case, options.precision)
    flat = [t.to(CUDA) for t in flat]
    aot = partition(channels_last(trace_joint(loss, [type_of(t) for t in flat])))
    assert aot.backward is not None
    traits = replace(TRAITS, parallel_rows=rows)
    made = [plan(fuse(lower(decompose(g, policy_of(g))), traits)) for g in (aot.forward, aot.backward)]
    return made, flat, aot.signature


def time_steps(name: str, options: argparse.Namespace, rows: int, keep: int) -> list[Row]:
    (forward, backward), flat, signature = programs(name, options, rows)
    runs = [Timed(p, compile_program(p, Config()), keep) for p in (forward, backward)]
    with torch.no_grad():
        outs = runs[0].compiled.call([t.detach().clone() for t in flat])
        inputs = {"input": flat, "result": outs, "extra": outs[signature.n_results + len(signature.mutated) :]}
        args = [inputs[r.kind][r.index] for r in signature.saved]
        args += [torch.ones(t.sizes, dtype=t.dtype, device=CUDA) for t in signature.tangents]
        del outs, inputs
        runs[1].compiled.call(args)
    return runs[0].rows + runs[1].rows


def show(name: str, rows: list[Row], copy: float, top: int) -> None:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for r in rows:
        kind = r.kind if r.kind != "kernel" else "kernel, small" if r.bytes < 1 << 20 else "kernel"
        for k, x in enumerate((1, r.us, r.bytes)):
            totals[kind][k] += x
    whole = sum(r.us for r in rows)
    print(f"{name}: {len(rows)} steps, {whole / 1e3:.2f} ms one by one")
    for kind, (count, us, size) in sorted(totals.items(), key=lambda x: -x[1][1]):
        rate = size / us / 1e3
        print(
            f"   {us / 1e3:7.3f} ms {count:5.0f} x {kind:50} {size / 1e9:6.2f} GB {rate:6.0f} GB/s {rate / copy:5.2f}"
        )
    same: dict[str, list[Row]] = defaultdict(list)
    for r in rows:
        key = emit_triton(r.step).code.name + str(r.bytes) if isinstance(r.step, Kernel) else r.text
        same[key].append(r)
    for group in sorted(same.values(), key=lambda g: -sum(r.us for r in g))[:top]:
        us, r = sum(x.us for x in group), group[0]
        rate = r.bytes / (us / len(group)) / 1e3
        print(f"   {us:8.1f} us {len(group):3} x {r.bytes / 1e6:7.1f} MB {rate:6.0f} GB/s {rate / copy:5.2f}  {r.text}")


def launches(step: Kernel) -> list[Launch]:
    """Other launches worth a try, by the kernel's present blocks."""
    now = dict(emit_triton(step).code.launch.blocks)
    if set(now) == {"XBLOCK", "RBLOCK"}:
        sizes = [(x, r, w) for x in (16, 32, 64, 128) for r in (8, 16, 32, 64, 128, 256) for w in (4, 8, 16)]
        fits = [(x, r, w) for x, r, w in sizes if 4 <= x * r / (32 * w) <= 32]
        return [Launch((("XBLOCK", x), ("RBLOCK", r)), w) for x, r, w in fits]
    if set(now) == {"RBLOCK"}:
        return [Launch((("RBLOCK", now["RBLOCK"]),), w) for w in (1, 2, 4, 8, 16)]
    if set(now) == {"XBLOCK"}:
        pairs = ((512, 2), (512, 4), (1024, 2), (1024, 4), (2048, 4), (2048, 8), (4096, 8), (4096, 16))
        return [Launch((("XBLOCK", x),), w) for x, w in pairs]
    pairs3 = [(y, x, w) for y in (16, 32, 64, 128) for x in (32, 64, 128) for w in (4, 8) if 512 <= x * y <= 8192]
    return [Launch((("YBLOCK", y), ("XBLOCK", x)), w) for y, x, w in pairs3]


def sweep(rows: list[Row], copy: float, top: int) -> list[dict[str, Any]]:
    """Times of other launches of the costliest kernels."""
    cost: dict[Any, float] = defaultdict(float)
    first: dict[Any, Row] = {}
    for r in rows:
        if isinstance(r.step, Kernel) and r.args:
            code = emit_triton(r.step).code
            cost[code] += r.us
            first.setdefault(code, r)
    out = []
    for code in sorted(cost, key=lambda c: -cost[c])[:top]:
        r = first[code]
        kind = code.source.split('"""')[1].split(":")[0]
        choices = launches(r.step)
        made = []
        for c in choices:
            _EMITTED.clear()
            triton_emit.choose = lambda k, layout, card, c=c: _with_launch(choose(k, layout, card), c)
            try:
                made.append((c, emit_triton(r.step)))
            except Exception as e:
                print("   cannot", c, type(e).__name__)
            triton_emit.choose = choose
        _EMITTED.clear()
        functions = load_all([m.code for _, m in made])
        base = emit_triton(r.step)
        by_name = dict(zip(base.buffers, r.args))
        times = []
        for (c, m), f in zip(made, functions):
            if f is not None:
                try:
                    times.append((microseconds(f, [by_name[b] for b in m.buffers], {}), c))
                except Exception as e:
                    print("   fails", c, str(e)[:80])
        times.sort(key=lambda x: x[0])
        rate = r.bytes / r.us / 1e3
        best = [f"{us:.1f} {dict(c.blocks)} {c.num_warps}w" for us, c in times[:4]]
        print(f"   {kind:10} {r.us:7.1f} us {rate / copy:.2f} {r.text[:110]}")
        print(f"        best: {'; '.join(best)}", flush=True)
        out.append({"text": r.text, "us": r.us, "bytes": r.bytes, "count": cost[code] / r.us,
                    "times": [(us, dict(c.blocks), c.num_warps) for us, c in times]})  # fmt: skip
    return out


def _with_launch(tiling: Any, launch: Launch) -> Any:
    names = {d.block for d in tiling.blocks}
    if set(dict(launch.blocks)) != names:
        raise ValueError("other blocks")
    r = next((d for d in tiling.blocks if d.name == "r"), None)
    if tiling.kind == "persistent" and r is not None and launch.block("RBLOCK") != tiling.launches[0].block("RBLOCK"):
        if launch.block("RBLOCK") >= int(r.numel):
            raise ValueError("too tall")
        return replace(tiling, kind="looped", launches=(launch,))
    return replace(tiling, launches=(launch,))


def load_all(codes: list[Any]) -> list[Any]:
    waiting = start_kernels_cuda(codes, 0, Config())
    return [load_kernels_cuda([c], 0)[0] if f.exception() is None else None for c, f in zip(codes, waiting)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["resnet50"])
    parser.add_argument("--size", default="full")
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "tf32"))
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--sweep", type=int, default=0)
    parser.add_argument("--rows", type=int, nargs="*", default=[TRAITS.parallel_rows])
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    copy = copy_rate()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {copy:.0f} GB/s")
    found: dict[str, Any] = {}
    for name in options.models:
        for rows in options.rows:
            torch.cuda.empty_cache()
            last = rows == options.rows[-1]
            timed = time_steps(name, options, rows, (1 << 22) if options.sweep and last else 1 << 60)
            show(f"{name}, {rows} rows", timed, copy, options.top if last else 0)
            found[f"{name} {rows}"] = [(r.us, r.bytes, r.kind, r.text) for r in timed]
            if options.sweep and last:
                found[f"{name} sweep"] = sweep(timed, copy, options.sweep)
            del timed
    if options.json:
        with open(options.json, "w") as f:
            json.dump(found, f)


if __name__ == "__main__":
    main()
