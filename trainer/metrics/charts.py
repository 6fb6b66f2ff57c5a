"""Lines over a run's steps as SVG, and the style sheet of the page that shows them.

Across, the SVG goes in percent, up and down in pixels, so that letters keep their size on a phone; the lines lie in an
inner SVG that is stretched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

HEIGHT = 200  # pixels above the axis
MOST_POINTS = 400  # of a line; more are drawn as means, over a band from the least to the greatest
DOTTED = 60  # points of a line that has so few are shown as dots too
Points = Sequence[tuple[int, float]]

STYLE = """
:root{--paper:#fcfbf8;--ink:#22211e;--dim:#6f6a61;--rule:#e4dfd5;--a:#40679f;--b:#c9762b;--c:#2b7048;--d:#7c5fc4}
@media(prefers-color-scheme:dark){:root{--paper:#17181b;--ink:#e7e4de;--dim:#9d978c;--rule:#303136;--a:#7fa6de;
--b:#dd9650;--c:#7fc79b;--d:#a48be6}}
*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}
body{font:15px/1.55 system-ui,sans-serif;background:var(--paper);color:var(--ink);max-width:72rem;margin:0 auto;
padding:2.5rem 1.25rem 5rem;overflow-wrap:anywhere}
h1,h2,dd{font-family:"Iowan Old Style",Charter,"Palatino Linotype",Palatino,Georgia,"Noto Serif",serif;font-weight:500}
h1{font-size:clamp(1.7rem,5vw,2.5rem);line-height:1.15;margin:.2rem 0 .6rem}h2{font-size:1.15rem;margin:0}
p,dl,dd,ul,figure{margin:0;padding:0}ul{list-style:none}
header p,dt,th,li,summary,.note{color:var(--dim);font-size:.8rem}
header p.brand{letter-spacing:.09em;text-transform:uppercase;font-size:.7rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.2rem,1fr));gap:1.1rem 1.2rem;margin:1.8rem 0 0}
dl div{border-top:2px solid var(--ink);padding-top:.45rem}
dd{font-size:1.45rem;line-height:1.3;white-space:nowrap;font-variant-numeric:tabular-nums}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(30rem,100%),1fr));gap:0 2.4rem}
section{border-top:1px solid var(--rule);margin-top:2.4rem;padding-top:1.1rem;min-width:0}
figure{padding-left:3.2rem;margin-top:.9rem}figure>svg{display:block;width:100%;height:232px;overflow:visible}
text{fill:var(--dim);font-size:11px}line{stroke:var(--rule)}line.mark{stroke:var(--dim);stroke-dasharray:3 4}
polyline{fill:none;stroke-width:1.6;vector-effect:non-scaling-stroke;stroke-linejoin:round}
polygon{opacity:.18;stroke:none}
.a{stroke:var(--a);fill:var(--a)}.b{stroke:var(--b);fill:var(--b)}.c{stroke:var(--c);fill:var(--c)}
.d{stroke:var(--d);fill:var(--d)}polyline.a,polyline.b,polyline.c,polyline.d{fill:none}
ul{display:flex;flex-wrap:wrap;gap:.2rem 1.4rem;margin-top:.2rem;min-height:1.3rem}
li svg{display:inline-block;width:1.1rem;height:.5rem;margin-right:.4rem}
table{border-collapse:collapse;width:100%;margin-top:.9rem;font-variant-numeric:tabular-nums}th{font-weight:400}
td,th{border-bottom:1px solid var(--rule);padding:.35rem .8rem .35rem 0;text-align:right}
td:first-child,th:first-child{text-align:left}pre{font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow:auto}
""".replace("\n", "")


@dataclass(frozen=True)
class Line:
    """A name, its colour (a, b, c or d), and (step, value) in order of steps."""

    name: str
    colour: str
    points: Points


def chart(lines: Sequence[Line], last_step: int, marks: Sequence[int], told: Callable[[float], str]) -> str:
    """Lines over steps 0 to `last_step`, dashed where the run was resumed; `told` words the values."""
    values = [value for line in lines for _, value in line.points]
    levels = round_levels(min(values), max(values))
    low, high = levels[0], levels[-1]
    places = [(level, HEIGHT * (1 - (level - low) / (high - low))) for level in levels]
    rules = "".join(
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="-8" y="{y + 3.5:.1f}" text-anchor="end">{escape(told(level))}</text>'
        for level, y in places
    )
    drawn = "".join("".join(_line(line, last_step, low, high)) for line in lines)
    inner = f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 1000 {HEIGHT}" preserveAspectRatio="none">{drawn}</svg>'
    dots = "".join(_dots(line, last_step, low, high, told) for line in lines if len(line.points) <= DOTTED)
    names = "".join(
        f'<li><svg viewBox="0 0 18 8"><polyline class="{line.colour}" points="0,4 18,4"/></svg>{escape(line.name)}</li>'
        for line in lines
    )
    return (
        f"<ul>{names}</ul><figure><svg>{rules}{_steps(last_step)}{_marks(marks, last_step)}{inner}{dots}</svg></figure>"
    )


def round_levels(low: float, high: float) -> list[float]:
    """Two to six levels at round numbers, the first at or below `low`, the last at or above `high`."""
    span = max(high - low, abs(high) * 1e-3) or 1.0
    power = 10.0 ** floor(log10(span / 4))
    step = next(n * power for n in (1, 2, 5, 10) if span / (n * power) <= 4)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def thinned(points: Points, most: int) -> list[tuple[float, float, float, float]]:
    """(step, least, mean, greatest) of at most `most` runs of neighbours of equal number."""
    size = ceil(len(points) / most)
    lots = (points[i : i + size] for i in range(0, len(points), size))
    found = []
    for lot in lots:
        steps, values = zip(*lot, strict=True)
        found.append((sum(steps) / len(lot), min(values), sum(values) / len(lot), max(values)))
    return found


def _line(line: Line, last_step: int, low: float, high: float) -> Iterator[str]:
    def at(step: float, value: float) -> str:
        return f"{1000 * step / last_step:.1f},{HEIGHT * (1 - (value - low) / (high - low)):.1f}"

    lots = thinned(line.points, MOST_POINTS)
    if len(lots) < len(line.points):
        edge = [at(lot[0], lot[1]) for lot in lots] + [at(lot[0], lot[3]) for lot in reversed(lots)]
        yield f'<polygon class="{line.colour}" points="{" ".join(edge)}"/>'
    yield f'<polyline class="{line.colour}" points="{" ".join(at(step, mean) for step, _, mean, _ in lots)}"/>'


def _dots(line: Line, last_step: int, low: float, high: float, told: Callable[[float], str]) -> str:
    return "".join(
        f'<circle class="{line.colour}" r="2.4" cx="{100 * step / last_step:.2f}%" '
        f'cy="{HEIGHT * (1 - (value - low) / (high - low)):.1f}">'
        f"<title>step {step:,}: {escape(told(value))}</title></circle>"
        for step, value in line.points
    )


def _steps(last_step: int) -> str:
    anchors = ("start", "middle", "middle", "middle", "end")
    return "".join(
        f'<text x="{25 * i}%" y="{HEIGHT + 19}" text-anchor="{anchor}">{last_step * i // 4:,}</text>'
        for i, anchor in enumerate(anchors)
    )


def _marks(marks: Sequence[int], last_step: int) -> str:
    return "".join(
        f'<line class="mark" x1="{x:.2f}%" x2="{x:.2f}%" y1="0" y2="{HEIGHT}">'
        f"<title>resumed after step {step:,}</title></line>"
        for step, x in ((step, 100 * step / last_step) for step in marks)
    )
