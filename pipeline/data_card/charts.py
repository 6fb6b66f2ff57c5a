"""How the data card looks: its style sheet, and counts drawn as SVG, as HTML and, for a terminal, as text.

The SVG has no viewBox: across it goes in percent, up and down in pixels, so that letters keep their size on a phone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import accumulate

BINS, TEXT_BINS = 64, 8
_HEIGHT = 168  # pixels of a histogram above its axis
_TEXT_WIDTH = 32  # characters of the longest bar in a terminal
Counts = Sequence[tuple[str, int]]

STYLE = """
:root{--paper:#fcfbf8;--ink:#22211e;--dim:#6f6a61;--rule:#e4dfd5;--bar:#40679f;--soft:#e3ddd1;--bad:#b3261e;
--good:#2b7048;--a:#dce7f6;--b:#fae3cb;--a-bar:#5b86c4;--b-bar:#dd9650;--masked:#dfd4f7;--random:#f6cfd3;
--m-bar:#7c5fc4;--k-bar:#4d9a6c;--r-bar:#c9505c}
@media(prefers-color-scheme:dark){:root{--paper:#17181b;--ink:#e7e4de;--dim:#9d978c;--rule:#303136;--bar:#7fa6de;
--soft:#34353b;--bad:#ff8a80;--good:#7fc79b;--a:#1e3352;--b:#4d321a;--a-bar:#6f9bd8;--b-bar:#cf8a47;--masked:#463572;
--random:#662b35;--m-bar:#a48be6;--k-bar:#69b889;--r-bar:#e0737e}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{font:15px/1.55 system-ui,sans-serif;background:var(--paper);color:var(--ink);max-width:66rem;margin:0 auto;
padding:2.5rem 1.25rem 5rem;overflow-wrap:anywhere}
h1,h2,.figures dd{font-family:"Iowan Old Style",Charter,"Palatino Linotype",Palatino,Georgia,"Noto Serif",serif;
font-weight:500;letter-spacing:-.01em}
h1{font-size:clamp(1.7rem,5vw,2.5rem);line-height:1.15;margin:.2rem 0 .6rem}
h2{font-size:1.25rem;line-height:1.3;margin:0}
h3{font-size:.8rem;font-weight:400;color:var(--dim);margin:1.6rem 0 .5rem}
p,ul,ol,dl,dd,figure{margin:0;padding:0}ul,ol{list-style:none}
p+p,svg+p,ul+p{margin-top:.7rem}
header p,section>div>h2+p,small,dt,th,.axis,figcaption,.row,.legend{color:var(--dim);font-size:.8rem}
header p.brand{letter-spacing:.09em;text-transform:uppercase;font-size:.7rem}
code{font:.92em/1.4 ui-monospace,"SF Mono",Menlo,Consolas,monospace}
small,b,dd,td,.count{font-variant-numeric:tabular-nums}b{font-weight:600}.bad{color:var(--bad)}.good{color:var(--good)}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(7.6rem,1fr));gap:1.1rem 1.4rem;margin:1.8rem 0 0}
.figures div{border-top:2px solid var(--ink);padding-top:.45rem}
.figures dd{font-size:1.45rem;line-height:1.3;overflow-wrap:normal;white-space:nowrap}
section{border-top:1px solid var(--rule);margin-top:2.4rem;padding-top:1.3rem}
section>div+div{margin-top:1rem}
svg{display:block;width:100%;overflow:visible}
svg text{fill:var(--dim);font-size:11px}svg line{stroke:var(--rule)}svg rect{fill:var(--bar)}
figure{padding-left:2.6rem}figure>.axis{display:block;margin:0 0 .5rem -2.6rem}
.histogram{height:190px}.histogram .gap{fill:var(--paper)}.histogram .told{fill:var(--ink)}
.histogram .mean{stroke:var(--ink);stroke-dasharray:2 3}
figcaption{display:flex;flex-wrap:wrap-reverse;justify-content:space-between;gap:.2rem 1.5rem;margin-top:.3rem}
figcaption .axis{margin-left:auto}
figcaption b{color:var(--ink)}
.coin{height:50px}.coin .band{fill:var(--soft)}.coin line{stroke:var(--dim)}.coin circle{fill:var(--a-bar)}
.split{display:flex;height:14px;gap:2px}.split i{min-width:1px}.split+.key{margin-top:.6rem}
.key,.legend{display:flex;flex-wrap:wrap;gap:.35rem 1.6rem}
.key li{padding-left:1.05rem;text-indent:-1.05rem}
.key li>i{display:inline-block;width:.65rem;height:.65rem;margin-right:.4rem}.key b{margin:0 .15rem 0 .3rem}
.full{background:var(--bar)}.empty{background:var(--soft)}i.a{background:var(--a-bar)}i.b{background:var(--b-bar)}
i.masked{background:var(--m-bar)}i.kept{background:var(--k-bar)}i.random{background:var(--r-bar)}
.bars li{display:grid;grid-template-columns:1fr auto;gap:.15rem .6rem;padding:.32rem 0;
break-inside:avoid;align-items:baseline}
.bars .track{grid-column:1/-1;height:5px;background:var(--rule)}
.bars .track i{display:block;height:100%;background:var(--bar)}.columns{columns:3 8.5rem;column-gap:1.6rem}
.columns .name,.options dd{font-family:ui-monospace,"SF Mono",Menlo,Consolas,monospace;font-size:.88em}
.columns .count{font-size:.88em}
table{border-collapse:collapse;width:100%}th{font-weight:400;overflow-wrap:normal}
td,th{border-bottom:1px solid var(--rule);padding:.35rem .8rem .35rem 0;text-align:left;vertical-align:top}
td:last-child,th:last-child{padding-right:0;text-align:right;white-space:nowrap}
.options{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.5rem,1fr));gap:.8rem 1.4rem}
.legend{margin:.9rem 0 1.2rem;line-height:2.2;align-items:baseline}.legend>li>*{margin-right:.35rem}
article{border-top:1px solid var(--rule);padding:.8rem 0 1rem}
.row{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 1.5rem;margin-bottom:.4rem}.row b{color:var(--ink)}
article p{line-height:1.95}article p:has(rt){line-height:2.6}
span.a,span.b{padding:.14em .3em;border-radius:3px;-webkit-box-decoration-break:clone;box-decoration-break:clone}
span.a{background:var(--a)}span.b{background:var(--b)}.special{color:var(--dim);font-size:.75em}
span.a,span.b,ruby{color:var(--ink)}
.piece{font-style:normal;border-left:1px dotted var(--dim);margin-left:1px;padding-left:1px}
mark{color:var(--bad);background:none;border-bottom:2px solid var(--bad)}
b.masked,b.kept,b.random{font-weight:500;padding:0 .2em;border-radius:2px}
b.masked{background:var(--masked);font-size:.85em;white-space:nowrap}b.random{background:var(--random)}
b.kept{box-shadow:inset 0 0 0 1.5px var(--k-bar);color:var(--ink)}
rt{font-size:.7em;line-height:1.2;padding-bottom:.3em;color:var(--dim)}
@media(min-width:760px){.figures{display:flex}.figures div{flex:1 1 auto}
section:not(.wide){display:grid;grid-template-columns:12rem minmax(0,1fr);gap:0 2.5rem}
section>div+div{margin-top:.2rem}section>div>h2+p{margin-top:.4rem}}
"""


def bins(counts: list[int], most: int) -> list[tuple[int, int, int]]:
    """(first, last, count) of at most `most` ranges of equal width, from 1 on: nothing that is counted has length 0."""
    width = max(1, -(-(len(counts) - 1) // most))
    ranges = [(i, min(i + width, len(counts)) - 1) for i in range(1, len(counts), width)]
    return [(first, last, sum(counts[first : last + 1])) for first, last in ranges]


def mean(counts: list[int]) -> float:
    """The mean of a histogram, 0 of an empty one."""
    return sum(i * n for i, n in enumerate(counts)) / max(sum(counts), 1)


def quantile(counts: list[int], share: float) -> int:
    """The smallest value that this share of a histogram does not exceed."""
    return next((i for i, below in enumerate(accumulate(counts)) if below >= share * sum(counts)), 0)


def figure(counts: list[int], of: str) -> str:
    """A histogram of lengths, its axes named and its mean, median and share of full lengths in words."""
    full = counts[-1] / max(sum(counts), 1)
    facts = f"<b>{mean(counts):.1f}</b> mean (dashed), <b>{quantile(counts, 0.5)}</b> median"
    facts += f", <b>{full:.1%}</b> at the full {len(counts) - 1}" if full else ""
    return (
        f'<figure><span class="axis">rows</span>{histogram(counts, of)}<figcaption>'
        f'<span>{facts}</span><span class="axis">length in tokens</span></figcaption></figure>'
    )


def histogram(counts: list[int], of: str) -> str:
    """A histogram by length in tokens. One bar that dwarfs all others is drawn broken and says its count."""
    bars = bins(counts, BINS)
    ceiling = _ceiling([n for *_, n in bars])
    span = bars[-1][1]
    middle = 100 * mean(counts) / span
    drawn = _axes(ceiling, span) + "".join(_bar(*bar, ceiling, span) for bar in bars if bar[2])
    drawn += f'<line class="mean" x1="{middle:.2f}%" x2="{middle:.2f}%" y1="16" y2="{_HEIGHT}"/>'
    label = f"{of} by length in tokens, mean {mean(counts):.1f}"
    return f'<svg class="histogram" role="img" aria-label="{escape(label)}">{drawn}</svg>'


def _ceiling(heights: list[int]) -> float:
    """Where the axis ends: at the highest bar or, when that is more than three times the next, a little above those."""
    next_highest, highest = sorted([0, *heights])[-2:]
    return next_highest * 1.4 if 0 < 3 * next_highest < highest else max(highest, 1)


def _bar(first: int, last: int, count: int, ceiling: float, span: int) -> str:
    left, width = 100 * (first - 1) / span, 100 * (last - first + 1) / span
    height = max(1.0, _HEIGHT * min(1.0, count / ceiling))
    title = f"{first} tokens" if first == last else f"{first} to {last} tokens"
    box = f'x="{left + width * 0.1:.2f}%" width="{width * 0.8:.2f}%"'
    bar = f'<rect {box} y="{_HEIGHT - height:.1f}" height="{height:.1f}"><title>{title}: {count:,} rows</title></rect>'
    return bar if count <= ceiling else bar + _break(left, width, count)


def _break(left: float, width: float, count: int) -> str:
    """The gap in a bar that goes on above the axis, and its count beside it, on the side that has room."""
    anchor, x, shift = ("end", left, -5) if left > 50 else ("start", left + width, 5)
    gaps = "".join(f'<rect class="gap" x="{left:.2f}%" width="{width:.2f}%" y="{y}" height="2.5"/>' for y in (18, 24))
    return f'{gaps}<text class="told" x="{x:.2f}%" dx="{shift}" y="9" text-anchor="{anchor}">{count:,} rows</text>'


def _axes(ceiling: float, span: int) -> str:
    """Lines at two to four round counts, the lengths at each quarter, and what both axes count."""
    step = next(s for k in range(20) for s in (10**k, 2 * 10**k, 5 * 10**k) if ceiling / s <= 4)
    levels = [(n, _HEIGHT * (1 - n / ceiling)) for n in range(0, int(ceiling) + 1, step)]
    lines = "".join(
        f'<line x1="0" x2="100%" y1="{y:.1f}" y2="{y:.1f}"/><text x="-8" y="{y + 3.5:.1f}" text-anchor="end">'
        f"{_short(n)}</text>"
        for n, y in levels
    )
    anchors = ("start", "middle", "middle", "middle", "end")
    places = [(i * 25, span * i // 4, anchor) for i, anchor in enumerate(anchors)]
    return lines + "".join(
        f'<text x="{x}%" y="{_HEIGHT + 17}" text-anchor="{anchor}">{value:,}</text>' for x, value, anchor in places
    )


def _short(n: int) -> str:
    return next(
        (f"{n / unit:g}{name}" for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")) if n >= unit), str(n)
    )


def bars(counts: Counts, whole: int, kind: str = "") -> str:
    """A list of names, each over a thin bar, with its count and its share of `whole`."""
    top = max((n for _, n in counts), default=1)
    items = "".join(
        f'<li><span class="name">{escape(name)}</span><span class="count">{n:,} <small>{n / max(whole, 1):.1%}</small>'
        f'</span><span class="track"><i style="width:{100 * n / max(top, 1):.2f}%"></i></span></li>'
        for name, n in counts
    )
    return f'<ol class="bars {kind}">{items}</ol>'


def split(parts: Sequence[tuple[str, int, str]]) -> str:
    """One bar cut into (name, count, CSS class) and its key with counts and shares."""
    whole = max(sum(n for _, n, _ in parts), 1)
    drawn = "".join(f'<i class="{kind}" style="width:{100 * n / whole:.3f}%"></i>' for _, n, kind in parts)
    items = "".join(
        f'<li><i class="{kind}"></i>{escape(name)} <b>{n / whole:.2%}</b> <small>{n:,}</small></li>'
        for name, n, kind in parts
    )
    return f'<div class="split">{drawn}</div><ul class="key">{items}</ul>'


def coin(share: float, error: float) -> str:
    """A share on a scale around one half, over the band of `error` to both sides; beyond three errors it stays put."""
    place = 50 + max(-3.0, min(3.0, (share - 0.5) / error)) * 100 / 6
    ticks = ((100 / 3, 0.5 - error), (50, 0.5), (200 / 3, 0.5 + error))
    texts = "".join(f'<text x="{x:.2f}%" y="44" text-anchor="middle">{value:.2%}</text>' for x, value in ticks)
    return (
        f'<svg class="coin" role="img" aria-label="{share:.2%}, a fair coin: 50% &plusmn; {error:.2%}">'
        '<rect class="band" x="33.33%" width="33.33%" y="6" height="20"/><line x1="0" x2="100%" y1="16" y2="16"/>'
        f'<line x1="50%" x2="50%" y1="6" y2="26"/><circle cx="{place:.2f}%" cy="16" r="5.5"/>{texts}</svg>'
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows of words under their heads, the last column to the right."""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = ("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def terms(values: Mapping[str, str], kind: str) -> str:
    """Names over their values, side by side as far as there is room."""
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="{kind}">{"".join(items)}</dl>'


def text_bars(counts: Counts, whole: int) -> Iterator[str]:
    """The same bars as lines of text."""
    top = max((n for _, n in counts), default=1)
    for name, n in counts:
        bar = "█" * round(_TEXT_WIDTH * n / max(top, 1)) or ("▏" if n else "")
        yield f"    {name:<26} {n:>15,} {n / max(whole, 1):>7.2%}  {bar}".rstrip()


def text_histogram(counts: list[int]) -> Iterator[str]:
    """A histogram in eight lines."""
    ranges = bins(counts, TEXT_BINS)
    yield from text_bars([(f"{first}-{last} tokens", n) for first, last, n in ranges], sum(counts))
