"""Checks of a script's run: each reads an observation and yields what it finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from braze.report.text import plural

from .finding import Finding, estimated, measured
from .script import INTERRUPTED
from .watch import Event, Observation, Where, in_library

Check = Callable[[Observation], Iterator[Finding]]
SYNC_S = 20e-6  # a device-to-host round trip on an idle GPU
LAUNCH_S = 5e-6  # one kernel launch from eager
OPS_A_MODULE = 4  # kernels that a module's call launches in a training step, about
SMALL_BATCH = 8

_SPELLED = {
    "item": ".item()",
    "tolist": ".tolist()",
    "__bool__": "a Python condition on a tensor",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__repr__": "printing a tensor",
    "__format__": "formatting a tensor",
    "numpy": ".numpy()",
}
_DATA = re.compile(
    r"data[- ]dependent|depends on (the )?(data|values?)|boolean mask|nonzero|unique|masked_select|read from a tensor",
    re.I,
)
_SIZE = re.compile(r"\bsize\(|\bsizes?\b|\bshape\b|\blength\b", re.I)


def _at(where: Where | None) -> dict[str, Any]:
    return {"file": where[0], "line": where[1]} if where else {}


def failed(o: Observation) -> Iterator[Finding]:
    """The script itself."""
    if o.error and o.error != INTERRUPTED:
        yield Finding(
            "script", f"the script stopped: {o.error}", "the run is judged up to there", "run the script alone"
        )


def not_compiled(o: Observation) -> Iterator[Finding]:
    """Nothing is compiled."""
    if o.module_calls and not o.compiled and not o.error:
        yield Finding(
            "not-compiled",
            "no model or function is compiled",
            estimated("`braze bench` measures it"),
            "model = braze.compile(model)",
        )


def compiled_in_a_loop(o: Observation) -> Iterator[Finding]:
    """``compile`` is called once a model, not once a step."""
    for where, count in o.compiled.items():
        if count > 3:
            spent = sum(sum(log.seconds.values()) for log in o.logs)
            cost = measured(spent, o.compiled_seconds)
            yield Finding(
                "compile-in-loop",
                f"compile is called {count} times at one line",
                cost,
                "compile once, before the loop",
                **_at(where),
            )


def unfused(o: Observation) -> Iterator[Finding]:
    """A compile call that asks for no code."""
    for where, how in o.plain.items():
        yield Finding(
            "unfused", f"{how} generates no code", estimated("no speed-up"), f"compile without {how}", **_at(where)
        )


def fallbacks(o: Observation) -> Iterator[Finding]:
    """Graphs that could not be compiled."""
    for log in o.logs:
        for g in log.graphs:
            if g.fallback:
                calls = [n for n in g.graph.nodes if n.op == "call"]
                locs = [n.loc for n in calls if n.loc is not None and not in_library(n.loc.file)]
                yield Finding(
                    "fallback",
                    f"a graph of {len(calls)} calls runs in eager: {g.fallback.splitlines()[0]}",
                    estimated("no speed-up for these calls"),
                    "BRAZE_STRICT=1 shows where it fails",
                    **_at((locs[0].file, locs[0].line) if locs else None),
                )


def recompile_limit(o: Observation) -> Iterator[Finding]:
    """Frames that were compiled so often that they are not any more."""
    for log in o.logs:
        for text in log.gave_up:
            yield Finding(
                "recompile-limit",
                f"compiled too often, now in eager when no version fits: {text}",
                estimated("no speed-up for these calls"),
                "see the recompiles; braze.compile(model, recompile_limit=64) allows more versions",
            )


def breaks(o: Observation) -> Iterator[Finding]:
    """Graph breaks, apart from data-dependent shapes; those of one line together."""
    for log in o.logs:
        lines: dict[Any, list[Any]] = {}
        for b in log.breaks:
            lines.setdefault((b.loc.file, b.loc.line) if b.loc else None, []).append(b)
        for where, found in lines.items():
            text = "; ".join(dict.fromkeys(b.reason for b in found))
            dependent = any(_DATA.search(f"{b.reason} {b.hint}") for b in found)
            what = "a shape or branch depends on data" if dependent else "the graph breaks"
            count, seconds = sum(b.count for b in found), sum(b.seconds for b in found)
            cost = estimated("memory traffic between the parts is not fused, and Python runs in between")
            if seconds:
                cost = measured(seconds, o.compiled_seconds) + " to compile it in parts, and Python runs between them"
            hints = [b.hint for b in found if b.hint]
            yield Finding(
                "data-dependent" if dependent else "graph-break",
                f"{what} (x{count}): {text}",
                cost,
                hints[0] if hints else "move it out of the compiled function",
                **_at(where),
            )


def recompiles(o: Observation) -> Iterator[Finding]:
    """A frame compiled again and again by one guard. A second version (training and evaluation, say) is as it should
    be; sizes that change want to be dynamic from the start."""
    for log in o.logs:
        guards: dict[tuple[str, str], list[Any]] = {}
        for r in log.recompiles:
            guards.setdefault((r.frame, r.reason.split(": expected")[0]), []).append(r)
        for (frame, _), found in guards.items():
            r, sized = found[-1], bool(_SIZE.search(found[-1].reason))
            if len(found) < 2 and not sized:
                continue
            hint = "braze.compile(model, dynamic=True)" if sized else "keep the value constant, or pass a tensor"
            where = (r.loc.file, r.loc.line) if r.loc else None
            if where is None or in_library(where[0]):
                where = next(iter(o.compiled), where)
            times = "again" if len(found) == 1 else f"{len(found)} more times"
            yield Finding(
                "dynamic-sizes" if sized else "recompile",
                f"{frame} was compiled {times}, last because of {r.reason}",
                measured(sum(r.seconds for r in found), o.compiled_seconds),
                r.hint or hint,
                **_at(where),
            )


def _spent(o: Observation, e: Event, least: float) -> str:
    """What events cost a step: timed, or where the device is assumed ``least`` seconds each."""
    if o.assumed:
        return estimated(f"at least {1e6 * e.count * least / max(o.steps, 1):.0f} us a step, and the device runs dry")
    return measured(e.seconds, o.seconds) + " waiting"


def syncs(o: Observation) -> Iterator[Finding]:
    """The host waits for the device in every step."""
    if o.device == "cpu":
        return
    for (kind, where), e in o.syncs.items():
        if e.count > 2 and e.count >= 0.5 * o.steps:
            yield Finding(
                "host-sync",
                f"{_SPELLED[kind]} makes the host wait for the device, {e.count} times in {o.steps} steps",
                _spent(o, e, SYNC_S),
                "keep it on the device (loss.detach()) and read it every 50 steps",
                *where,
            )


def copies(o: Observation) -> Iterator[Finding]:
    """Tensors cross the bus in every step: to the host, or the same one to the device."""
    if o.device == "cpu":
        return
    for (kind, where), e in o.copies.items():
        if e.count > 2 and e.count >= 0.5 * o.steps:
            yield Finding(
                "copies",
                f".{kind}() moves a tensor between devices {e.count} times in {o.steps} steps",
                _spent(o, e, SYNC_S),
                "move it once, before the loop; register_buffer() moves it with its module",
                *where,
            )


def devices(o: Observation) -> Iterator[Finding]:
    """One model, one device, and the fastest."""
    for name, found in o.root_devices.items():
        if len(found) > 1:
            yield Finding(
                "devices",
                f"the parameters of {name} are on {' and '.join(sorted(found))}",
                estimated("graph breaks, and copies in every step"),
                "model.to(device) after the last module is added",
            )
    if o.gpu and o.device == "cpu" and not o.assumed and o.root_devices:
        yield Finding(
            "devices",
            "the model runs on the CPU, though there is a GPU",
            estimated("10 to 100 times the time"),
            'model.to("cuda"), and its inputs',
        )


def cudnn_benchmark(o: Observation) -> Iterator[Finding]:
    """Convolutions of fixed shapes choose their algorithm by measuring."""
    layers = [x for x in o.layers.values() if x.kind == "convolution"]
    if o.device == "cuda" and layers and not o.benchmark and max(len(x.shapes) for x in layers) <= 64:
        yield Finding(
            "cudnn-benchmark",
            "convolutions use cuDNN's heuristic choice",
            estimated("5 to 20% of the convolutions' time"),
            "torch.backends.cudnn.benchmark = True",
        )


def tf32(o: Observation) -> Iterator[Finding]:
    """float32 products on tensor cores."""
    full = [x for x in o.layers.values() if x.dtype == torch.float32 and not x.autocast]
    if o.device == "cuda" and full and not o.tf32:
        yield Finding(
            "tf32",
            "float32 matrix products run without tensor cores",
            estimated("products take 2 to 8 times as long"),
            'torch.set_float32_matmul_precision("high")',
        )


def channels_last(o: Observation) -> Iterator[Finding]:
    """Convolutions on a GPU want channels_last."""
    layers = [x for x in o.layers.values() if x.kind == "convolution"]
    if o.device == "cuda" and layers and not any(x.channels_last for x in layers):
        yield Finding(
            "channels-last",
            "convolutions get channels-first images",
            estimated("a layout conversion around each convolution, 10 to 30% of its time"),
            "model, x = (t.to(memory_format=torch.channels_last) for t in (model, x))",
            **_at(layers[0].where),
        )


def autocast(o: Observation) -> Iterator[Finding]:
    """bfloat16 where it is safe."""
    full = [x for x in o.layers.values() if x.dtype == torch.float32 and not x.autocast]
    if o.device == "cuda" and full and not any(x.autocast for x in o.layers.values()):
        yield Finding(
            "autocast",
            f"{sum(x.calls for x in full)} calls of linear and convolution layers compute in float32",
            estimated("1.5 to 3 times the time and twice the activation memory"),
            'with torch.autocast("cuda", torch.bfloat16): …',
        )


def small_batch(o: Observation) -> Iterator[Finding]:
    """Steps so small that launching them is the work."""
    if o.device != "cuda" or not o.batches or not o.steps:
        return
    batch, launches = o.batches.most_common(1)[0][0], OPS_A_MODULE * o.module_calls / o.steps
    if batch < SMALL_BATCH and launches > 20:
        yield Finding(
            "small-batch",
            f"{plural(batch, 'sample')} a step: launching about {launches:.0f} kernels takes longer than running them",
            estimated(f"{1e6 * launches * LAUNCH_S:.0f} us of launches a step"),
            'a larger batch, or braze.compile(model, mode="reduce-overhead")',
        )


def optimizer(o: Observation) -> Iterator[Finding]:
    """One kernel for all parameters."""
    for note in o.optimizers.values():
        if note.foreach is False and not note.fused and note.tensors > 1:
            cost = measured(note.steps.seconds / max(note.steps.count, 1), o.step_seconds, "of a step")
            yield Finding(
                "optimizer",
                f"{note.name} updates {note.tensors} parameters one by one",
                cost,
                f"torch.optim.{note.name}(…, fused=True)",
                **_at(note.where),
            )


def loading(o: Observation) -> Iterator[Finding]:
    """The step waits for its data."""
    for where, e in o.loaders.items():
        options = o.loader_options[where]
        if e.count > 2 and e.seconds > max(0.1, 0.2 * o.seconds):
            fix = (
                "DataLoader(…, num_workers=4, persistent_workers=True)"
                if not options["num_workers"]
                else "more num_workers"
            )
            yield Finding("data-loading", "the loop waits for its batches", measured(e.seconds, o.seconds), fix, *where)


def pinned(o: Observation) -> Iterator[Finding]:
    """Batches for a GPU come from pinned memory."""
    for where, options in o.loader_options.items():
        if o.device == "cuda" and not options["pin_memory"]:
            cost = estimated("copies to the device take twice as long and do not overlap")
            yield Finding(
                "pin-memory", "batches are in pageable memory", cost, "DataLoader(…, pin_memory=True)", *where
            )


def eval_grad(o: Observation) -> Iterator[Finding]:
    """Inference without autograd."""
    if o.eval_with_grad.count > 1 and not o.backwards:
        yield Finding(
            "no-grad",
            "the model runs in eval mode with autograd on",
            estimated("all activations are kept until the output is dropped"),
            "with torch.inference_mode(): …",
        )


def anomaly(o: Observation) -> Iterator[Finding]:
    """Debugging left on."""
    if o.anomaly:
        yield Finding(
            "anomaly",
            "anomaly detection is on",
            estimated("2 to 10 times the backward's time"),
            "torch.autograd.set_detect_anomaly(False)",
        )


def zero_grad(o: Observation) -> Iterator[Finding]:
    """Gradients dropped, not zeroed."""
    if o.zeroed.count > 1:
        cost = measured(o.zeroed.seconds, o.seconds)
        yield Finding(
            "zero-grad",
            "gradients are filled with zeros",
            cost,
            "optimizer.zero_grad()  # set_to_none=True",
            **_at(o.zeroed_where),
        )


CHECKS: tuple[Check, ...] = (
    failed,
    not_compiled,
    compiled_in_a_loop,
    unfused,
    fallbacks,
    recompile_limit,
    breaks,
    recompiles,
    devices,
    syncs,
    copies,
    loading,
    pinned,
    optimizer,
    zero_grad,
    autocast,
    tf32,
    channels_last,
    cudnn_benchmark,
    small_batch,
    eval_grad,
    anomaly,
)


def check_run(seen: Observation) -> list[Finding]:
    """All findings about a run."""
    return [f for check in CHECKS for f in check(seen)]
