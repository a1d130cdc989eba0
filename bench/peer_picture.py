"""A picture of Quadriga beside its peers: bars of CPU per request and of requests per second for each path, as SVG."""

from html import escape

from peer_table import Figures, Results

BAR, GAP, LABEL, WIDTH, COLUMN = 15, 5, 150, 900, 250
"""Heights and widths in pixels."""
STYLE = """
text { font: 12px sans-serif; fill: #222 } .head { font-weight: bold; font-size: 14px } .page { fill: #fff }
.bar { fill: #9aa5b1 } .own { fill: #2f6fb0 } .bare { fill: #d5d9de }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .page { fill: #16181b } .bare { fill: #4a4f55 } }
"""


def picture(results: Results, connections: int) -> str:
    """Draw the rows of one number of connections that may be quoted; the others are left out."""
    parts: list[str] = []
    top = 24
    for group_connections, path, rows in results.groups():
        quoted = [(row.server, numbers) for row, numbers in rows if numbers.is_ok]
        if group_connections != connections or not quoted:
            continue
        parts.append(_text(10, top, path, "head"))
        parts.append(_text(LABEL, top, "CPU ms a request: less is better"))
        parts.append(_text(LABEL + 375, top, "requests a second: more is better"))
        parts += _bars(quoted, top + 10)
        top += 10 + len(quoted) * (BAR + GAP) + 30
    title = f"Quadriga and its peers with {connections} connections, {results.machine}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect class="page" width="{WIDTH}" height="{top}"/>{"".join(parts)}</svg>\n'
    )


def _bars(quoted: list[tuple[str, Figures]], top: int) -> list[str]:
    parts = []
    highest_ms = max(numbers.cpu_ms for _, numbers in quoted)
    highest_rate = max(numbers.rate for _, numbers in quoted)
    for place, (server, numbers) in enumerate(quoted):
        y = top + place * (BAR + GAP)
        kind = "own" if server.startswith("Quadriga") else "bare" if "bare" in server else "bar"
        parts.append(_text(10, y + BAR - 3, server))
        for left, share, value in (
            (LABEL, numbers.cpu_ms / highest_ms, f"{numbers.cpu_ms:.3g}"),
            (LABEL + 375, numbers.rate / highest_rate, f"{numbers.rate:.0f}"),
        ):
            length = max(1, round(COLUMN * share))
            parts.append(
                f'<rect class="{kind}" x="{left}" y="{y}" width="{length}" height="{BAR}"/>'
            )
            parts.append(_text(left + length + 5, y + BAR - 3, value))
    return parts


def _text(x: int, y: int, text: str, kind: str = "") -> str:
    class_ = f' class="{kind}"' if kind else ""
    return f'<text x="{x}" y="{y}"{class_}>{escape(text)}</text>'
