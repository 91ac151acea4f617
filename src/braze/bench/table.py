"""Results as a terminal table and as plots."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from .runner import Result


def to_table(results: list[Result], title: str) -> Table:
    """One row a contender; ratios are to eager on the same model (higher is faster)."""
    table = Table(title=title)
    numbers = ("batch", "samples/s", "± %", "x eager", "ms/step", "compile s", "peak MiB", "loss")
    for name in ("model", "contender", *numbers):
        table.add_column(name, justify="left" if name in ("model", "contender") else "right", no_wrap=True)
    base = {r.model: r.samples_per_s for r in results if r.contender == "eager" and not r.error}
    for r in results:
        label = r.contender if r.contender == "eager" or r.mode == "default" else f"{r.contender} {r.mode}"
        if r.error:
            table.add_row(r.model, label, "[red]failed[/]")
            continue
        ratio = r.samples_per_s / base[r.model] if base.get(r.model) else 0.0
        table.add_row(
            r.model,
            label,
            str(r.batch),
            f"{r.samples_per_s:.1f}",
            f"{100 * r.spread_s / r.step_s:.0f}",
            f"{ratio:.2f}" if ratio else "-",
            f"{1e3 * r.step_s:.1f}",
            f"{r.compile_s:.2f}" if r.contender != "eager" else "-",
            f"{r.peak_bytes / 2**20:.0f}",
            f"{r.loss:.3f}",
        )
    return table


def save_plot(results: list[Result], path: Path, title: str) -> None:
    """Samples/s relative to eager as grouped bars. The format is the path's suffix (png, svg, pdf)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    good = [r for r in results if not r.error]
    models = list(dict.fromkeys(r.model for r in good))
    contenders = list(dict.fromkeys(r.contender for r in good))
    base = {r.model: r.samples_per_s for r in good if r.contender == "eager"}
    width = 0.8 / max(len(contenders), 1)
    figure, axes = plt.subplots(figsize=(1.5 + 2 * len(models), 3.6), layout="constrained")
    for k, contender in enumerate(contenders):
        rows = [r for r in good if r.contender == contender and r.model in base]
        xs = [models.index(r.model) + (k - (len(contenders) - 1) / 2) * width for r in rows]
        heights = [r.samples_per_s / base[r.model] for r in rows]
        bars = axes.bar(xs, heights, width * 0.95, label=contender)
        axes.bar_label(bars, [f"{h:.2f}" for h in heights], fontsize=8)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("speed relative to eager")
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    axes.set_title(title)
    figure.legend(frameon=False, loc="outside lower center", ncols=max(len(contenders), 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)
