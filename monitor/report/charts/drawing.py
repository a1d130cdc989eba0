"""Conversion of matplotlib figures to SVG inside a page, in the page's colours and font.

Figures are drawn in placeholder colours, which are then replaced by CSS variables; so the same picture
is readable on light, dark and printed paper. The page defines the variables: see `CSS_VARIABLES`.
"""

import io
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree as ET

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from quadriga.monitor.report.charts import MAX_LETTERS, Chart
from quadriga.monitor.report.schema import Metric
from quadriga.quoting import one_line

INK, FAINT, PAPER = "#010203", "#010204", "#010205"
TRUTH, WRONG = "#010206", "#010207"
SERIES = ("#010211", "#010212", "#010213", "#010214", "#010215", "#010216")

_NAMES = ("ink", "faint", "paper", "truth", "wrong", *(f"series-{at}" for at in range(len(SERIES))))
CSS_VARIABLES = {
    color: f"--{name}"
    for color, name in zip((INK, FAINT, PAPER, TRUTH, WRONG, *SERIES), _NAMES, strict=True)
}
"""CSS variables that the page must define, by their placeholder colours."""

_DASHES = ("solid", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)), (0, (9, 2)), (0, (3, 1)))

LINE_STYLES: list[dict[str, Any]] = [
    {"color": color, "linestyle": dash, "linewidth": 1.4}
    for color, dash in zip(SERIES, _DASHES, strict=True)
]
"""Styles of consecutive lines, which differ in dashes as well as in colour."""

WIDE, NARROW = 7.4, 4.2
"""Widths in inches: of a picture across the page, and of one of two in a row."""

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "quadriga",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same measures on every machine
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 8.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.linewidth": 0.6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "hatch.linewidth": 0.6,
    "hatch.color": PAPER,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), FAINT),
}
_LOCK = threading.Lock()
_UNNAMED = dict.fromkeys(("Date", "Creator", "Format", "Type"))


@contextmanager
def drawing_style() -> Iterator[None]:
    """Set matplotlib's style within the context; its settings are global, so one thread at a time has them."""
    with _LOCK, warnings.catch_warnings(), mpl.rc_context(_STYLE):
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def new_figure(height: float, width: float = WIDE) -> Figure:
    """Return an empty figure; sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def single_axes(height: float, width: float = NARROW) -> tuple[Figure, Axes]:
    """Return a figure with one pair of axes; sizes in inches."""
    figure = new_figure(height, width)
    return figure, figure.subplots()


def set_row_names(axes: Axes, names: Sequence[str]) -> None:
    """Label the rows of a chart, the first at the top."""
    axes.set_yticks(np.arange(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)


def to_chart(figure: Figure, name: str, title: str, caption: str) -> Chart:
    """Convert a figure to an SVG that can be embedded in a page beside others."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata=_UNNAMED)
    root = ET.fromstring(buffer.getvalue())  # noqa: S314 - matplotlib wrote it just now
    _, _, width, height = root.get("viewBox", "").split()
    for parent in root.iter():
        for child in list(parent):
            if child.tag.endswith(("}style", "}metadata")):
                parent.remove(child)
    for element in root.iter():
        _adopt(element, name)
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {width} {height}",
        "width": f"{float(width) * 4 / 3:.0f}",
        "height": f"{float(height) * 4 / 3:.0f}",
        "class": "chart",
        "role": "img",
        "aria-label": f"{title}. {caption}",
    }
    return Chart(name, title, caption, Markup(ET.tostring(root, "unicode")))  # noqa: S704 - ours


def _adopt(element: ET.Element, name: str) -> None:
    """Make the ids of an element unique, and give it the colours and font of the page."""
    element.tag = element.tag.rpartition("}")[2]
    element.text = element.text if element.text and element.text.strip() else None
    element.tail = None
    attributes = {key.rpartition("}")[2]: value for key, value in element.attrib.items()}
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if "id" in attributes:
        attributes["id"] = f"{name}-{attributes['id']}"
    if "href" in attributes:
        attributes["href"] = f"#{name}-{attributes['href'][1:]}"
    if attributes.get("fill", "").startswith("#"):  # of a hatch; variables stand in styles alone
        attributes["style"] = f"fill: {attributes.pop('fill')}"
    if "style" in attributes:
        attributes["style"] = _restyle(attributes["style"])
    if "d" in attributes:
        attributes["d"] = " ".join(attributes["d"].split())
    element.attrib = {
        key: value.replace("url(#", f"url(#{name}-") for key, value in attributes.items()
    }


def _restyle(style: str) -> str:
    style = re.sub(r"font-family: [^;]*(; )?", "", style)
    return re.sub(r"#0102\w\w", lambda match: f"var({CSS_VARIABLES[match[0]]})", style)


def shorten_text(text: str | None, max_letters: int = MAX_LETTERS) -> str:
    """Return a user's text, safe for matplotlib and XML; the middle of long texts is cut out."""
    return one_line(text, max_letters).replace("$", r"\$")  # or matplotlib would read mathematics


def set_unit_square(axes: Axes, x: str, y: str) -> None:
    """Limit both axes to 0 to 1, and label them."""
    axes.set(xlim=(0, 1.005), ylim=(0, 1.02), xlabel=x, ylabel=y)
    axes.grid(visible=True)


def draw_interval(axes: Axes, metric: Metric, y: float, **style: Any) -> None:
    """Draw the value of a metric as a dot at height `y`, with its interval."""
    if metric.value is None:
        axes.annotate(
            "undefined",
            xy=(0, y),
            xycoords=("axes fraction", "data"),
            xytext=(3, 0),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
        return
    low, high = metric.ci95 or (None, None)
    if low is not None and high is not None:
        axes.plot((low, high), (y, y), linewidth=2.5, alpha=0.45, solid_capstyle="butt", **style)
    axes.plot(metric.value, y, "o", markersize=5, **style)
