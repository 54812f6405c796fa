"""Draws the morning that `benchmarks.spike` has measured.

    python -m benchmarks.spike_plot FILE

FILE is what `benchmarks.spike --save FILE` has written. Makes docs/pictures/spike.png with the
browser that the tests use.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.migration_plot import PICTURES, take_picture

WIDTH, HEIGHT = 1100, 620
BLUE, ORANGE, GREEN, RED, GREY = "#0072b2", "#e69f00", "#009e73", "#cc3311", "#777777"
ENGINES: Final = (
    ("serving", "engines that serve", BLUE, None),
    ("starting", "engines that start", GREEN, "dot"),
    ("leaving", "engines that are drained", RED, "dash"),
)
REQUESTS: Final = (
    ("clients", "clients", GREY, "dot"),
    ("running", "requests that run", BLUE, None),
    ("waiting", "requests that wait in engines", ORANGE, None),
)


def figure_of(result: dict[str, Any]) -> go.Figure:
    """Returns engines, requests and times to first token over the seconds."""
    series = result["series"]
    figure = make_subplots(rows=3, shared_xaxes=True, vertical_spacing=0.05)
    for row, lines in ((1, ENGINES), (2, REQUESTS)):
        for name, title, colour, dash in lines:
            line = {"color": colour, "dash": dash, "shape": "hv"}
            figure.add_trace(
                go.Scatter(x=series["at_s"], y=series[name], name=title, line=line),
                row=row,
                col=1,
            )
    began, ttft_ms = zip(*result["requests"], strict=True)
    figure.add_trace(
        go.Scatter(
            x=began,
            y=[ms / 1000 for ms in ttft_ms],
            name="time to first token",
            mode="markers",
            marker={"color": BLUE, "size": 4, "opacity": 0.5},
        ),
        row=3,
        col=1,
    )
    for change in result["decisions"]:
        colour = GREEN if change["kind"] == "grow" else RED
        figure.add_vline(x=change["at_s"], line={"color": colour, "dash": "dot", "width": 1})
    figure.update_yaxes(title="engines", dtick=1, row=1, col=1)
    figure.update_yaxes(title="requests", row=2, col=1)
    figure.update_yaxes(title="TTFT, s", type="log", row=3, col=1)
    figure.update_xaxes(title="seconds; dotted: decisions of the scaling loop", row=3, col=1)
    figure.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        legend={"orientation": "h", "y": -0.12},
        margin={"t": 20, "r": 20},
    )
    return figure


def draw(result: dict[str, Any]) -> None:
    """Makes the picture."""
    take_picture(figure_of(result), PICTURES / "spike.png")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    draw(json.loads(parser.parse_args().file.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
