"""Results as figures for print: grouped bars relative to eager, or lines over the batch size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .result import Result

# Okabe and Ito's colours: told apart in print and by the colour-blind; hatches tell them apart in grey.
_COLORS = ("#8c8c8c", "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
_HATCHES = ("", "", "//", "\\\\", "xx", "..", "--")
_MARKS = "osD^vP*"
_STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "svg.fonttype": "none",
}


def save_plot(results: list[Result], path: Path, title: str) -> None:
    """Draw to a file whose suffix is the format (png, svg, pdf). Lines where there are several batch sizes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    good = [r for r in results if not r.error and r.samples_per_s]
    if not good:
        raise ValueError("there is nothing to draw: no contender finished a round")
    with plt.rc_context(_STYLE):
        sweep = len({r.batch for r in good}) > 1 and len({r.model for r in good}) == 1
        figure = (_lines if sweep else _bars)(plt, good, title)
        figure.savefig(path, dpi=200)
        plt.close(figure)


def _name(r: Result, results: list[Result]) -> str:
    several = len({x.precision for x in results}) > 1
    return f"{r.model}\n{r.precision}" if several else r.model


def _bars(plt: Any, results: list[Result], title: str) -> Any:
    groups = list(dict.fromkeys(r.case for r in results))
    names = [_name(next(r for r in results if r.case == g), results) for g in groups]
    labels = list(dict.fromkeys(r.label for r in results))
    base = {r.case: r.samples_per_s for r in results if r.contender == "eager"}
    relative = all(g in base for g in groups)
    width = 0.82 / len(labels)
    figure, axes = plt.subplots(figsize=(max(3.6, 1.4 + 0.62 * len(groups) * len(labels)), 3.4), layout="constrained")
    for k, label in enumerate(labels):
        rows = [r for r in results if r.label == label]
        xs = [groups.index(r.case) + (k - (len(labels) - 1) / 2) * width for r in rows]
        heights = [r.samples_per_s / base[r.case] if relative else r.samples_per_s for r in rows]
        errors = [h * r.spread_s / r.step_s / 2 for h, r in zip(heights, rows)]
        color, hatch = _COLORS[k % len(_COLORS)], _HATCHES[k % len(_HATCHES)]
        axes.bar(xs, heights, width * 0.92, label=label, color=color, hatch=hatch, edgecolor="white", linewidth=0)
        axes.errorbar(xs, heights, yerr=errors, fmt="none", ecolor="#333333", elinewidth=0.8, capsize=2)
        for x, h, e in zip(xs, heights, errors):
            text = f"{h:.2f}" if relative else f"{h:.0f}"
            above = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(text, (x, h + e), **above)
    axes.set_xticks(range(len(groups)), names)
    axes.set_ylabel("speed relative to eager" if relative else "samples/s")
    axes.margins(y=0.12)
    if relative:
        axes.axhline(1.0, color="0.4", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    axes.set_title(title, fontsize=10)
    figure.legend(frameon=False, loc="outside lower center", ncols=min(len(labels), 4))
    return figure


def _lines(plt: Any, results: list[Result], title: str) -> Any:
    figure, axes = plt.subplots(figsize=(4.6, 3.4), layout="constrained")
    keys = list(dict.fromkeys((r.label, r.precision) for r in results))
    several = len({p for _, p in keys}) > 1
    for k, key in enumerate(keys):
        rows = sorted((r for r in results if (r.label, r.precision) == key), key=lambda r: r.batch)
        xs, ys = [r.batch for r in rows], [r.samples_per_s for r in rows]
        errors = [y * r.spread_s / r.step_s / 2 for y, r in zip(ys, rows)]
        label = f"{key[0]}, {key[1]}" if several else key[0]
        axes.errorbar(
            xs, ys, yerr=errors, label=label, color=_COLORS[k % 7], marker=_MARKS[k % 7], ms=4, lw=1.4, capsize=2
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({r.batch for r in results}), [str(b) for b in sorted({r.batch for r in results})])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("batch")
    axes.set_ylabel("samples/s")
    axes.set_title(f"{results[0].model}: {title}", fontsize=10)
    axes.grid(axis="y", linewidth=0.4, color="0.85")
    axes.legend(frameon=False)
    return figure
