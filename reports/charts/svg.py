"""From a figure of matplotlib to an SVG element of the page.

matplotlib writes a ``style`` attribute on every element, which the page's content security policy forbids, and fixed
colours, which fit one theme only. This module turns styles into presentation attributes, and stand-in colours into the
page's CSS variables. Named artists get ``data-`` attributes and titles, by which the page's script and style sheet find
them, and no ``id``, because a page has many drawings.
"""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from xml.etree import ElementTree

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_STATUSES = ("primary", "selected", "rejected", "ensemble")
_SURFACES = ("ink", "muted", "rule", "paper", "bar", "band", "band-edge", "accent")
# matplotlib knows no CSS variables, so each has a colour that nothing else uses until the SVG is written.
COLOURS = {name: f"#0000{index:02x}" for index, name in enumerate((*_STATUSES, *_SURFACES), start=1)}
_VARIABLES = {stand_in: f"var(--{name})" for name, stand_in in COLOURS.items()}
_PRESENTATION = frozenset(
    {"fill", "fill-opacity", "font-weight", "opacity", "text-anchor"}
    | {"stroke", "stroke-dasharray", "stroke-linecap", "stroke-opacity", "stroke-width"}
)
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_LOOK: dict[Any, Any] = {
    # With 72 dots an inch, matplotlib's points are CSS pixels.
    "figure.dpi": 72,
    "savefig.dpi": 72,
    "figure.frameon": False,
    "font.size": 12,
    "text.color": COLOURS["ink"],
    # A model may be called "$x$", which matplotlib would read as mathematics.
    "text.parse_math": False,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.edgecolor": COLOURS["muted"],
    "axes.linewidth": 1,
    "axes.labelcolor": COLOURS["muted"],
    "axes.labelsize": 11.5,
    "axes.labelpad": 5,
    "axes.titlecolor": COLOURS["muted"],
    "axes.titlesize": 11.5,
    "axes.titlelocation": "left",
    "axes.titley": 1,  # otherwise each drawing is measured twice, to keep the title away from ticks above the axes
    "grid.color": COLOURS["rule"],
    "xtick.color": COLOURS["muted"],
    "xtick.labelsize": 11.5,
    "xtick.major.size": 0,
    "xtick.major.pad": 6,
    "ytick.color": COLOURS["muted"],
    "ytick.labelsize": 11.5,
    "ytick.major.size": 0,
    "ytick.major.pad": 7,
    "lines.solid_capstyle": "butt",
    "lines.markeredgewidth": 1.6,
    "path.simplify": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "unite-advisor",
}


@contextmanager
def plain_style() -> Iterator[None]:
    """Draw in the page's look, whatever the user's matplotlibrc says: the same data gives the same bytes."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_LOOK)
        # The browser draws the text, so a character that matplotlib's font lacks does not matter.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; its size is in CSS pixels."""
    figure = Figure(figsize=(width / 72, height / 72))
    FigureCanvasAgg(figure)  # measures texts; that of SVG would draw the whole figure to do so
    return figure


def named(**data: str | int) -> str:
    """Return the ``gid`` of an artist: ``title`` becomes its title, each other name a ``data-`` attribute."""
    return json.dumps(data)


def figure_of(axes: Axes) -> Figure:
    """Return the figure of axes, which is no part of another figure."""
    return cast(Figure, axes.figure)


def markup(axes: Axes, label: str) -> str:
    """Return the figure of axes as an ``svg`` element; screen readers read the ``label``."""
    buffer, figure = io.StringIO(), figure_of(axes)
    figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    root = ElementTree.fromstring(buffer.getvalue())
    markers = {path.get("id"): path for path in root.iter(f"{_SVG}path") if path.get("id")}
    # A list, because restyling adds title elements to the tree.
    for element in list(root.iter()):
        _restyle(element, markers)
    _simplify(root)
    width, height = (f"{72 * inches:g}" for inches in figure.get_size_inches())
    root.attrib.clear()
    root.attrib |= {"viewBox": f"0 0 {width} {height}", "width": width, "height": height}
    root.attrib |= {"role": "img", "aria-label": label}
    return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _restyle(element: ElementTree.Element, markers: Mapping[str | None, ElementTree.Element]) -> None:
    # An HTML parser knows svg elements without a namespace, and would not know them with a prefix.
    element.tag = element.tag.removeprefix(_SVG)
    if element.tag == "use":
        _place(element, markers[element.attrib.pop(_LINK).removeprefix("#")])
    style = dict(rule.strip().split(": ", 1) for rule in element.attrib.pop("style", "").split(";") if rule.strip())
    for name, value in style.items():
        if name in _PRESENTATION:
            element.set(name, _VARIABLES.get(value, value))
    if element.tag == "text":
        size = re.search(r"([\d.]+)px", style.get("font-size") or style.get("font") or "")
        element.attrib |= {"font-size": size[1]} if size else {}
        element.attrib.pop("transform", None)  # always "rotate(-0)", because no text is turned
    for name in {"x", "y", "d"} & element.attrib.keys():
        # Hundredths of a pixel are invisible, and more digits would only make the page larger.
        element.set(name, " ".join(_NUMBER.sub(lambda number: _short(float(number[0])), element.attrib[name]).split()))
    element.attrib.pop("clip-path", None)
    name = element.attrib.pop("id", "")
    if name.startswith("{"):
        _name(element, json.loads(name))


def _place(use: ElementTree.Element, marker: ElementTree.Element) -> None:
    """Turn a reference to a marker into its path at this place: references need ids that are unique in a page."""
    at = [float(use.attrib.pop(name)) for name in ("x", "y")]
    ends = iter(at * len(_NUMBER.findall(marker.attrib["d"])))
    use.tag = "path"
    use.set("d", _NUMBER.sub(lambda number: repr(float(number[0]) + next(ends)), marker.attrib["d"]))


def _name(element: ElementTree.Element, data: dict[str, str | int]) -> None:
    title = data.pop("title", "")
    element.attrib |= {f"data-{key}": str(value) for key, value in data.items()}
    if title:
        child = ElementTree.Element("title")
        child.text = str(title)
        element.insert(0, child)


def _simplify(element: ElementTree.Element) -> None:
    """Replace groups without attributes by their children, and drop definitions, which nothing refers to any more."""
    children: list[ElementTree.Element] = []
    for child in element:
        if child.tag in ("metadata", "defs"):
            continue
        _simplify(child)
        is_plain = child.tag == "g" and not child.attrib and child.find("title") is None
        children.extend(child if is_plain else [child])
    element[:] = children


def _short(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
