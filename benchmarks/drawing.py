"""Writes a chart of schemas/charts.py as an SVG file for pages of Markdown, readable on light and dark ones."""

from __future__ import annotations

from html import escape
from pathlib import Path

from schemas.charts import Chart

WIDTH, LEFT, TOP = 640, 56, 14
"""Pixels: of the chart without its labels, of those on its left, and above it."""

STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #6f6a61 }
.paper { fill: #fcfbf8 } .level { stroke: #e4dfd5 }
polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; vector-effect: non-scaling-stroke }
.blue { stroke: #40679f } .orange { stroke: #c9762b } .green { stroke: #2b7048 }
.purple { stroke: #7c5fc4 } .gray { stroke: #8a857c } .red { stroke: #b0413e }
@media (prefers-color-scheme: dark) {
  text { fill: #9d978c } .paper { fill: #17181b } .level { stroke: #303136 }
  .blue { stroke: #7fa6de } .orange { stroke: #dd9650 } .green { stroke: #7fc79b }
  .purple { stroke: #a48be6 } .gray { stroke: #98938a } .red { stroke: #e08782 }
}"""
"""The colors of schemas/pages/style.css."""


def write_svg(chart: Chart, path: Path) -> None:
    """Write a chart with its axes and the names of its lines."""
    bottom = TOP + chart.height
    height = bottom + 30 + 20 * -(-len(chart.lines) // 2)
    drawing = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 16} {height}" role="img" '
        f'aria-label="{escape(chart.title)}">',
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        *_axes(chart, bottom),
    ]

    inner = f'viewBox="0 0 {chart.inner_width} {chart.height}" preserveAspectRatio="none"'
    drawing.append(f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{chart.height}" {inner} overflow="visible">')
    drawing += [f'<polyline class="{line.color}" points="{line.points}"/>' for line in chart.lines]
    drawing.append("</svg>")

    for number, line in enumerate(chart.lines):
        x, y = LEFT + number % 2 * WIDTH // 2, bottom + 42 + 20 * (number // 2)
        drawing.append(f'<polyline class="{line.color}" points="{x},{y - 4} {x + 24},{y - 4}"/>')
        drawing.append(f'<text x="{x + 32}" y="{y}">{escape(line.name)}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*drawing, "</svg>"]) + "\n", encoding="utf-8")


def _axes(chart: Chart, bottom: int) -> list[str]:
    elements = []
    for level in chart.levels:
        y = TOP + level.y
        elements.append(f'<path class="level" d="M{LEFT} {y:.1f}h{WIDTH}"/>')
        elements.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level.label}</text>')

    for tick in chart.ticks:
        text = f"{tick.label} {chart.unit}s" if tick is chart.ticks[-1] else tick.label
        x = LEFT + WIDTH * tick.x / 100
        elements.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="{tick.anchor}">{text}</text>')
    return elements
