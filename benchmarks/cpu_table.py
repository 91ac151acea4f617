"""Markdown tables of the CPU benchmarks' JSON files.

python benchmarks/cpu_table.py benchmarks/results/cpu_kernels.json benchmarks/results/cpu_models.json > README.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cpu_measure import geomean, ratio


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
