"""``docs/coverage.md``: how every operator of torch's table fares, from the results of ``scripts/coverage``."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from braze.prims import coverage

RIGHT = ("compiled", "opaque", "drawn")
COLUMNS = (*RIGHT, "reads data", "fell back", "wrong", "out of time")


def tally(results: list[dict[str, Any]], key: str) -> dict[str, Counter[str]]:
    """Outcomes by operator, dtype or variant."""
    out: dict[str, Counter[str]] = {}
    for r in results:
        out.setdefault(r[key], Counter()).update(r["outcomes"])
    return out


def summary(results: list[dict[str, Any]]) -> str:
    """The totals, in a few lines."""
    c = sum((Counter(r["outcomes"]) for r in results), Counter())
    n = sum(c[k] for k in COLUMNS)
    inside = sum(c[k] for k in RIGHT)
    parts = ", ".join(f"{c[k]} {k}" for k in COLUMNS)
    share = 100 * inside / max(n - c["reads data"], 1)
    return (
        f"{n} samples: {parts}; and {c['rejected']} that eager itself rejects. "
        f"{share:.2f}% right without falling back, of those that read no data."
    )


def _rows(found: dict[str, Counter[str]]) -> list[str]:
    lines = ["| | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    lines += [f"| {k} | " + " | ".join(str(c[x] or "") for x in COLUMNS) + " |" for k, c in found.items()]
    return lines


def _reasons(results: list[dict[str, Any]]) -> list[str]:
    """Each reason for an outcome short of compiled, with its operators."""
    found: dict[str, Counter[str]] = {}
    for r in results:
        for reason in r.get("reasons", ()):
            found.setdefault(reason.split("\n")[0][:160], Counter())[r["name"]] += 1
    order = sorted(found.items(), key=lambda kv: (not kv[0].startswith("wrong"), kv[0]))
    return [f"* {reason.replace('|', '/')}: {', '.join(f'`{n}`' for n in names)}" for reason, names in order]


def page(results: list[dict[str, Any]], limit: int = 0) -> str:
    """The whole page. ``limit``: how many samples of each operator, dtype and variant were run, 0 for all."""
    which = f"at most {limit} sample inputs of each, spread over all" if limit else "all sample inputs"
    classes = coverage.counts()
    lines = [
        "# Operators",
        "",
        f"Written by `scripts/coverage`; do not edit. Every entry of torch's operator table (`op_db`), {which},",
        f"in {', '.join(dict.fromkeys(r['dtype'] for r in results))},",
        f"on the CPU, torch {torch.__version__}, compiled with `braze.compile` and compared with eager:",
        "outputs, gradients, inputs after the call, types, layouts, and which outputs share memory with what.",
        "[Modules and optimizers](coverage_modules.md) have a page of their own.",
        "",
        summary(results),
        "",
        "*compiled*: primitives only. *opaque*: one graph that calls ATen kernels too. *drawn*: random or unset",
        "values, so only types are compared. *reads data*: right, with a graph break where Python, or the size of a",
        "result, needs a tensor's values (`item`, `nonzero`, `unique`). *fell back*: right, a part as plain Python.",
        "*wrong*: anything else.",
        "",
        "## ATen overloads by class",
        "",
        ", ".join(f"{classes[c]} {c}" for c in coverage.CLASSES) + f"; {sum(classes.values())} in all.",
        "",
        "## By dtype",
        "",
        *_rows(tally(results, "dtype")),
        "",
        "## By variant",
        "",
        *_rows(tally(results, "variant")),
        "",
        "## What falls short, and why",
        "",
        *_reasons(results),
        "",
        "## By operator",
        "",
        *_rows(tally(results, "name")),
        "",
    ]
    return "\n".join(lines)


def modules_page(results: list[dict[str, Any]], limit: int = 0) -> str:
    """The page of torch's modules and optimizers."""
    which = f"at most {limit} samples of each, spread over all" if limit else "all samples"
    lines = [
        "# Modules and optimizers",
        "",
        "Written by `scripts/coverage --modules`; do not edit. Every entry of torch's `module_db` (forward, gradients",
        "and buffers, in train and eval mode) and `optim_db` (five steps),",
        f"{which}, on the CPU, torch {torch.__version__}, against eager. The words are those of",
        "[the operators' page](coverage.md).",
        "",
        summary(results),
        "",
        "## What falls short, and why",
        "",
        *_reasons(results),
        "",
        "## By entry",
        "",
        *_rows(tally(results, "name")),
        "",
    ]
    return "\n".join(lines)
