"""A report as one HTML page that loads nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from .data import Report
from .steps import Side
from .text import plural, rate, size

SECTIONS = (
    ("verdict", "Verdict"),
    ("time", "Compile time"),
    ("source", "Source"),
    ("graphs", "Graphs"),
    ("kernels", "Kernels"),
    ("memory", "Memory"),
    ("guards", "Guards"),
    ("recompiles", "Breaks"),
    ("cache", "Cache"),
)


def to_html(report: Report) -> str:
    """The page's text."""
    page = files("braze.report") / "page"
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string((page / "page.html.j2").read_text())
    data = report.as_dict()
    number = {g.name: k % 4 for k, g in enumerate(report.log.graphs)}
    for k, block in enumerate(data["source"]):
        block["id"] = k
        block["marked"] = any(line["notes"] for line in block["lines"])
        for line in block["lines"]:
            line["graph"] = number.get(next(iter(line["calls"]), ""), 0)
            line["total"] = sum(line["calls"].values())
    return template.render(
        title=report.title,
        data=data,
        mood=_mood(report),
        sections=SECTIONS,
        timeline=_timeline(data["timeline"], data["stages"]),
        ticks=_ticks(data["timeline"]),
        levels=_levels(report),
        held=_held(report),
        charts=sorted(_charts(report.sides), key=lambda c: -c["nbytes"]),
        rates={k: rate(v) for k, v in data["machine"]["flops"].items()} if data["machine"] else {},
        rows=_script(json.dumps(_rows(report))),
        css=Markup((page / "page.css").read_text()),
        js=Markup((page / "page.js").read_text()),
    )


def _script(text: str) -> Any:
    """Text for a script element: nothing in it may end the element."""
    return Markup(text.replace("</", "<\\/").replace("<!--", "<\\!--"))


def _mood(report: Report) -> str:
    log = report.log
    if not log.graphs or log.gave_up or any(g.fallback for g in log.graphs):
        return "bad"
    return "warn" if log.breaks or log.recompiles else "good"


def _levels(report: Report) -> list[dict[str, Any]]:
    out = []
    for g in report.log.graphs:
        for name, level in g.levels.items():
            text = str(level)
            safe = text.replace("</script", "<\\/script").replace("<!--", "<\\!--")
            markup = Markup(safe)
            out.append({"name": f"{g.name}, {name}", "lines": text.count("\n") + 1, "text": markup})
    return out


def _timeline(rows: list[dict[str, Any]], own: dict[str, float]) -> list[dict[str, Any]]:
    """A lane a stage. ``own``: seconds by stage without the stages inside of it."""
    total = max((r["end"] for r in rows), default=0.0) or 1.0
    lanes: dict[str, dict[str, Any]] = {}
    for r in rows:
        lane = lanes.setdefault(r["stage"], {"label": r["stage"], "bars": []})
        spent = r["end"] - r["start"]
        lane["bars"].append(
            {
                "kind": r["stage"].split()[0],
                "left": round(100 * r["start"] / total, 3),
                "width": round(100 * spent / total, 3),
                "title": f"{r['graph']} {r['stage']}: {1e3 * spent:.1f} ms",
            }
        )
    for lane in lanes.values():
        lane["total"] = f"{1e3 * own[lane['label']]:.1f} ms" if lane["label"] in own else "all below"
    return list(lanes.values())


def _ticks(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    total = max((r["end"] for r in rows), default=0.0)
    return [{"left": 25 * k, "text": f"{1e3 * total * k / 4:.0f} ms"} for k in range(5)]


def _held(report: Report) -> dict[str, Any] | None:
    """The measured curve, as the most that was held in each of 400 parts of the call."""
    if not report.peak:
        return None
    end = report.memory[-1][0] or 1.0
    most = [0] * 400
    for (at, nbytes), (until, _) in zip(report.memory, [*report.memory[1:], (end, 0)]):
        for k in range(int(399 * at / end), int(399 * until / end) + 1):
            most[k] = max(most[k], nbytes)
    points = [f"{2 * k:.0f},{158 - 150 * nbytes / report.peak:.1f}" for k, nbytes in enumerate(most)]
    peak = next(at for at, nbytes in report.memory if nbytes == report.peak)
    return {
        "peak": size(report.peak),
        "points": " ".join(["0,160", *points, "800,160"]),
        "x": f"{800 * peak / end:.1f}",
        "at": f"{1e3 * peak:.1f} ms",
        "end": f"{1e3 * end:.1f} ms",
    }


def _charts(sides: Iterable[Side]) -> Iterable[dict[str, Any]]:
    for side in sides:
        if not side.memory:
            continue
        peak = max(side.memory, key=lambda m: m.nbytes)
        if not peak.nbytes:
            continue
        width, points = 800 / len(side.memory), []
        for k, m in enumerate(side.memory):
            y = 158 - 150 * m.nbytes / peak.nbytes
            points += [f"{k * width:.1f},{y:.1f}", f"{(k + 1) * width:.1f},{y:.1f}"]
        yield {
            "title": f"{side.graph}, {side.side}",
            "nbytes": peak.nbytes,
            "peak": size(peak.nbytes),
            "at": f"step {peak.step}, {peak.name}",
            "points": " ".join(["0,160", *points, "800,160"]),
            "x": f"{(side.memory.index(peak) + 0.5) * width:.1f}",
            "steps": plural(len(side.memory), "step"),
        }


def _rows(report: Report) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for side in report.sides:
        for s in side.steps:
            out.append(
                {
                    "order": len(out),
                    "graph": s.graph,
                    "side": s.side,
                    "name": s.name,
                    "kind": s.kind,
                    "ops": ", ".join(s.ops),
                    "copies": s.copies,
                    "lines": [f"{f}:{n}" for f, n in s.lines],
                    "ms": 1e3 * s.seconds,
                    "mb": s.nbytes / 1e6,
                    "gflop": s.flops / 1e9,
                    "share": s.share,
                }
            )
    return out
