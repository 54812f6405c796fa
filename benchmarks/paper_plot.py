"""Draws the runs of `benchmarks.paper` as the paper's figures 11 to 15 do.

    python -m benchmarks.paper_plot FILE

FILE is what `benchmarks.paper --save FILE` has written. Makes docs/pictures/paper-11.png to
paper-15.png with the browser that the tests use. Medians over the seeds, bars from the least to the
greatest.
"""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.migration_plot import PICTURES, take_picture
from benchmarks.paper_cases import MIXES, Run

LINES: Final = {
    "baseline": ("least loaded, no migration", "#e69f00", "square"),
    "ours": ("Ferry", "#0072b2", "circle"),
    "paper": ("the paper's settings", "#009e73", "triangle-up"),
    "no classes": ("no classes", "#e69f00", "square"),
}
"""Legend, colour that colour-blind readers can tell apart, symbol for those who see none."""
SERVING_METRICS: Final = (
    ("prefill_p99_ms", "prefill P99, s", 1000.0),
    ("prefill_mean_ms", "prefill mean, s", 1000.0),
    ("request_mean_ms", "request mean, s", 1000.0),
    ("decode_p99_ms", "decode P99, ms a token", 1.0),
    ("preemption_loss_mean_ms", "lost to preemption, s", 1000.0),
)
"""Field, axis, divisor from milliseconds."""
CLASS_METRICS: Final = (
    ("prefill_mean_ms", "prefill mean, s", 1000.0),
    ("request_mean_ms", "request mean, s", 1000.0),
    ("decode_mean_ms", "decode mean, ms a token", 1.0),
)
LOG: Final = {"type": "log", "dtick": 1, "minor": {"dtick": "D1", "showgrid": True}}
"""An axis with a label at each power of ten."""
PANEL_WIDTH, PANEL_HEIGHT = 260, 210
"""Pixels of one panel of a figure."""

Point = tuple[float, list[float]]


def points(runs: Sequence[Run], x: str, metric: str, divisor: float) -> list[Point]:
    """Returns a metric's values of all seeds by x, in order."""
    by_x: dict[float, list[float]] = defaultdict(list)
    for run in runs:
        by_x[getattr(run, x)].append(run.summary[metric] / divisor)
    return sorted(by_x.items())


def add_line(
    figure: go.Figure, found: Sequence[Point], policy: str, row: int, col: int, *, legend: bool
) -> None:
    """Draws one policy's medians with the range of its seeds."""
    if not found:
        return
    title, colour, symbol = LINES[policy]
    middle = [median(values) for _, values in found]
    figure.add_trace(
        go.Scatter(
            x=[x for x, _ in found],
            y=middle,
            error_y={
                "array": [max(v) - m for (_, v), m in zip(found, middle, strict=True)],
                "arrayminus": [m - min(v) for (_, v), m in zip(found, middle, strict=True)],
                "thickness": 1,
            },
            name=title,
            legendgroup=policy,
            showlegend=legend,
            line={"color": colour},
            marker={"symbol": symbol, "size": 7},
        ),
        row=row,
        col=col,
    )


def finish(figure: go.Figure, rows: int, cols: int) -> go.Figure:
    """Gives a figure its size and legend."""
    figure.update_layout(
        template="plotly_white",
        width=max(700, PANEL_WIDTH * cols),
        height=PANEL_HEIGHT * rows + 100,
        legend={"orientation": "h", "y": 1 + 60 / (PANEL_HEIGHT * rows)},
        margin={"t": 80, "r": 20, "l": 60},
        font={"size": 11},
    )
    return figure


def serving(runs: Sequence[Run]) -> go.Figure:
    """Figure 11: latencies against the request rate, a column a mix of lengths."""
    mixes = list(MIXES)
    figure = make_subplots(len(SERVING_METRICS), len(mixes), column_titles=mixes)
    for col, mix in enumerate(mixes, start=1):
        for row, (metric, axis, divisor) in enumerate(SERVING_METRICS, start=1):
            for policy in ("baseline", "ours", "paper"):
                mine = [
                    r for r in runs if (r.experiment, r.mix, r.policy) == ("serving", mix, policy)
                ]
                found = points(mine, "rate", metric, divisor)
                add_line(figure, found, policy, row, col, legend=row == col == 1)
            if col == 1:
                figure.update_yaxes(title=axis, row=row, col=col)
            is_log = metric.startswith(("prefill", "preemption"))
            figure.update_yaxes(**(LOG if is_log else {}), row=row, col=col)
        figure.update_xaxes(title="requests/s", row=len(SERVING_METRICS), col=col)
    return finish(figure, len(SERVING_METRICS), len(mixes))


def fragmentation(runs: Sequence[Run]) -> go.Figure:
    """Figure 12: free memory that cannot serve the queued demand."""
    figure = make_subplots(1, len(MIXES), column_titles=list(MIXES), shared_yaxes=True)
    for col, mix in enumerate(MIXES, start=1):
        for policy in ("baseline", "ours", "paper"):
            mine = [r for r in runs if (r.experiment, r.mix, r.policy) == ("serving", mix, policy)]
            found = points(mine, "rate", "fragmentation", 0.01)
            add_line(figure, found, policy, 1, col, legend=col == 1)
        figure.update_xaxes(title="requests/s", row=1, col=col)
    figure.update_yaxes(title="fragmented, % of memory", row=1, col=1)
    return finish(figure, 1, len(MIXES))


def priorities(runs: Sequence[Run]) -> go.Figure:
    """Figure 13: both classes against the burstiness of the arrivals."""
    classes = ("high", "normal")
    figure = make_subplots(len(CLASS_METRICS), 2, column_titles=[f"{c} class" for c in classes])
    for col, name in enumerate(classes, start=1):
        for row, (metric, axis, divisor) in enumerate(CLASS_METRICS, start=1):
            for policy in ("no classes", "ours"):
                mine = [r for r in runs if (r.experiment, r.policy) == ("priorities", policy)]
                found = points(mine, "cv", f"{name}_{metric}", divisor)
                add_line(figure, found, policy, row, col, legend=row == col == 1)
            if col == 1:
                figure.update_yaxes(title=axis, row=row, col=col)
    figure.update_xaxes(title="CV of the arrivals", row=len(CLASS_METRICS))
    return finish(figure, len(CLASS_METRICS), 2)


def scaling(runs: Sequence[Run]) -> go.Figure:
    """Figure 14: latency and instances while the number of instances follows the load."""
    figure = make_subplots(2, 2, column_titles=["Poisson", "Gamma, 2.0 requests/s"])
    rows = (("prefill_p99_ms", "prefill P99, s", 1000.0), ("instances_mean", "instances", 1.0))
    for col, (experiment, x) in enumerate((("scaling rate", "rate"), ("scaling cv", "cv")), 1):
        for row, (metric, axis, divisor) in enumerate(rows, start=1):
            for policy in ("baseline", "ours"):
                mine = [r for r in runs if (r.experiment, r.policy) == (experiment, policy)]
                found = points(mine, x, metric, divisor)
                add_line(figure, found, policy, row, col, legend=row == col == 1)
            if col == 1:
                figure.update_yaxes(title=axis, row=row, col=col)
        figure.update_xaxes(title="requests/s" if x == "rate" else "CV", row=2, col=col)
    return finish(figure, 2, 2)


def cost(runs: Sequence[Run]) -> go.Figure:
    """Figure 15: what a P99 costs in instances, a point a scaling band."""
    figure = make_subplots(1, 1)
    for policy in ("baseline", "ours"):
        by_band: dict[tuple[float, float], list[Run]] = defaultdict(list)
        for r in runs:
            if (r.experiment, r.policy) == ("cost", policy):
                by_band[r.band_low, r.band_high].append(r)
        found = sorted(
            (
                median(r.summary["instances_mean"] for r in some),
                [r.summary["prefill_p99_ms"] / 1000 for r in some],
            )
            for some in by_band.values()
        )
        add_line(figure, found, policy, 1, 1, legend=True)
    figure.update_xaxes(title="instances, mean")
    figure.update_yaxes(title="prefill P99, s", **LOG)
    return finish(figure, 2, 2)


FIGURES: Final = {11: serving, 12: fragmentation, 13: priorities, 14: scaling, 15: cost}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    runs = [Run(**r) for r in json.loads(parser.parse_args().file.read_text())["runs"]]
    for number, draw in FIGURES.items():
        take_picture(draw(runs), PICTURES / f"paper-{number}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
