"""Draws downtime against sequence length, as the paper's figure does.

    python -m benchmarks.migration_plot FILE

FILE is what `benchmarks.migration --save FILE` has written. Makes docs/pictures/migration.html,
which fetches Plotly's script, and docs/pictures/migration.png with the browser that the tests use
(chromium, or what FERRY_CHROMIUM names).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import plotly.graph_objects as go
from playwright.sync_api import sync_playwright
from plotly.subplots import make_subplots

from benchmarks.servers import ROOT

PICTURES: Final = ROOT / "docs" / "pictures"
WIDTH, HEIGHT = 1100, 460
METHODS: Final = (
    ("downtime_ms", "live", "#0072b2", "circle"),
    ("stop_copy_ms", "stop-and-copy", "#e69f00", "square"),
    ("recompute_ms", "recompute", "#cc3311", "diamond"),
)
"""Field, name, colour that colour-blind readers can tell apart, symbol for those who see none."""
PANELS: Final = (("lengths", "idle"), ("loaded", "4 more requests on each engine"))


def draw(figures: dict[str, Any]) -> go.Figure:
    """Returns the figure: medians, with the middle half of the moves as bars."""
    titles = [title for _, title in PANELS]
    figure = make_subplots(
        cols=2, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.04
    )
    for column, (name, _) in enumerate(PANELS, start=1):
        rows = figures[name]
        lengths = [int(length) for length in rows]
        for key, method, colour, symbol in METHODS:
            spreads = [row[key] for row in rows.values()]
            figure.add_trace(
                go.Scatter(
                    x=lengths,
                    y=[s["median"] for s in spreads],
                    error_y={
                        "array": [s["p75"] - s["median"] for s in spreads],
                        "arrayminus": [s["median"] - s["p25"] for s in spreads],
                    },
                    name=method,
                    legendgroup=method,
                    showlegend=column == 1,
                    line={"color": colour},
                    marker={"symbol": symbol, "size": 9},
                ),
                row=1,
                col=column,
            )
        figure.add_trace(
            go.Scatter(
                x=lengths,
                y=[row["median_gap_ms"] for row in rows.values()],
                name="time from token to token",
                legendgroup="gap",
                showlegend=column == 1,
                mode="lines",
                line={"color": "#777777", "dash": "dot"},
            ),
            row=1,
            col=column,
        )
        figure.update_xaxes(
            type="log", tickvals=lengths, title="tokens of the request", row=1, col=column
        )
    figure.update_yaxes(type="log", dtick=1, minor={"dtick": "D1", "showgrid": True})
    figure.update_yaxes(title="pause that the reader sees, ms", row=1, col=1)
    figure.update_layout(
        template="plotly_white",
        width=WIDTH,
        height=HEIGHT,
        legend={"orientation": "h", "y": -0.22},
        margin={"t": 40, "r": 20},
    )
    return figure


def take_picture(figure: go.Figure, file: Path) -> None:
    """Draws a figure in a browser. Raises: playwright's errors."""
    browser_path = os.environ.get("FERRY_CHROMIUM") or shutil.which("chromium") or "chromium"
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "page.html"
        figure.write_html(page_file, include_plotlyjs=True)
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox"], timeout=30_000
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(page_file.as_uri())
        page.locator(".plotly-graph-div .legend").wait_for()
        page.locator(".plotly-graph-div").screenshot(path=str(file))
        browser.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("file", type=Path)
    figure = draw(json.loads(parser.parse_args().file.read_text()))
    figure.write_html(PICTURES / "migration.html", include_plotlyjs="cdn", div_id="migration")
    take_picture(figure, PICTURES / "migration.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
