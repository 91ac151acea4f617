"""Markdown tables of the CPU benchmarks' JSON files.

python benchmarks/cpu_table.py benchmarks/results/cpu_kernels.json benchmarks/results/cpu_models.json > README.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cpu_measure import geomean, ratio


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Training and inference apart, and what compiling cost, where both compilers' CPU seconds are known."""
    out = []
    for kind in ("train", "infer"):
        mine = [r for r in rows if r["name"].endswith(f" {kind}")]
        both = [r for r in mine if r.get("peer") and "us" in r["peer"]]
        if len(both) > 1:
            against = {r["name"]: ratio(r) / ratio(r["peer"]) for r in both}
            least = min(against, key=lambda name: against[name])
            text = (
                f"{kind}: {geomean([ratio(r) for r in mine]):.2f}x of eager, {geomean(list(against.values())):.2f}x of"
            )
            out.append(f"{text} torch.compile ({len(both)} models; least {against[least]:.2f}x, {least}).")
    cold = [(r["peer"]["cold_cpu_s"], r["cold_cpu_s"]) for r in rows if "cold_cpu_s" in (r.get("peer") or {})]
    if cold:
        theirs, ours = (sum(x) for x in zip(*cold))
        many = f"{len(cold)} cold compiles with the first call"
        out.append(f"{many}: {theirs:.0f} CPU seconds by torch.compile, {ours:.1f} by braze ({theirs / ours:.0f}x).")
    return out


def table(path: Path) -> str:
    """Speeds relative to eager of one file."""
    data = json.loads(path.read_text())
    about, rows = data["about"], [r for r in data["results"] if "us" in r]
    mine = [ratio(r) for r in rows]
    against = [ratio(r) / ratio(r["peer"]) for r in rows if r.get("peer") and "us" in r["peer"]]
    lines = [
        f"## {path.stem}",
        "",
        f"{about['threads']} threads, {about['machine']}, torch {about['torch']}. `{about['command']}`",
        "",
        f"{len(rows)} measured: geomean {geomean(mine):.2f}x of eager (least {min(mine):.2f}x)"
        + (f"; {len(against)} with torch.compile: {geomean(against):.2f}x of it" if against else "")
        + ".",
        "",
        *[f"* {x}" for x in [*summary(rows), *([about["note"]] if "note" in about else [])]],
        "",
        "| | eager, us | braze, us | braze / eager | torch.compile / eager | error |",
        "|---|---|---|---|---|---|",
    ]
    for r in rows:
        peer = f"{ratio(r['peer']):.2f}x" if r.get("peer") and "us" in r["peer"] else ""
        speed = f"{r['eager_us']:.1f} | {r['us']:.1f} | {ratio(r):.2f}x | {peer}"
        lines.append(f"| {r['name']} | {speed} | {r['error']:.0e} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print("# CPU results\n\nWritten by `benchmarks/cpu_table.py`. Speeds are relative to eager, medians, in turns.\n")
    print("\n\n".join(table(Path(p)) for p in sys.argv[1:]))
