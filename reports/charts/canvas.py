"""A canvas that draws with matplotlib and returns SVG for the page, in the colours of the page's theme.

matplotlib writes a ``style`` attribute on every element, which the page's content security policy forbids, and fixed
colours, which fit one theme only. This module turns styles into presentation attributes, and stand-in colours into the
page's CSS variables. Named parts get ``data-`` attributes, by which the page's script and style sheet find them.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from xml.etree import ElementTree

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Outline
from matplotlib.text import Text
from matplotlib.transforms import Affine2D, IdentityTransform

Point = tuple[float, float]

_STATUSES = ("primary", "selected", "rejected", "ensemble")
_SURFACES = ("ink", "muted", "rule", "paper", "bar", "band", "band-edge", "accent")
_HEAT = (*(f"heat-{level}" for level in range(9)), "heat-low", "heat-high")
# matplotlib knows no CSS variables, so each has a colour that nothing else uses until the SVG is written.
_STAND_INS = {name: f"#0000{index:02x}" for index, name in enumerate((*_STATUSES, *_SURFACES, *_HEAT), start=1)}
_VARIABLES = {stand_in: f"var(--{name})" for name, stand_in in _STAND_INS.items()}
_PRESENTATION = frozenset(
    {"fill", "fill-opacity", "font-weight", "opacity", "text-anchor"}
    | {"stroke", "stroke-dasharray", "stroke-linecap", "stroke-opacity", "stroke-width"}
)
_SHAPES = {"primary": ("*", 9.5), "selected": ("o", 5.2), "rejected": ("D", 4.4), "ensemble": ("s", 5.2)}
_SVG = "{http://www.w3.org/2000/svg}"
_PART = "part:"


class Canvas:
    """A drawing, x to the right and y upwards. Colours are names of the page's CSS variables.

    Args:
        width: In CSS pixels.
        height: In CSS pixels.
    """

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._figure = Figure(figsize=(width / 72, height / 72), dpi=72, frameon=False)
        self._titles: dict[str, str] = {}
        self._drawn = 0
        FigureCanvasSVG(self._figure)

    def line(
        self,
        start: Point,
        end: Point,
        colour: str,
        *,
        width: float = 1.0,
        dash: tuple[float, float] | None = None,
        name: str = "",
    ) -> None:
        """Draw a straight line."""
        line = Line2D([start[0], end[0]], [start[1], end[1]], color=_STAND_INS[colour], linewidth=width)
        line.set(transform=IdentityTransform(), gid=name or None, solid_capstyle="butt", dash_capstyle="butt")
        if dash:
            line.set_linestyle((0, (dash[0] / width, dash[1] / width)))
        self._add(line)

    def area(
        self,
        corners: Sequence[Point],
        fill: str,
        *,
        edge: str = "",
        width: float = 1.0,
        name: str = "",
        title: str = "",
    ) -> None:
        """Fill a polygon."""
        self._patch(Outline([*corners, corners[0]], closed=True), fill, edge, width, name, title)

    def box(
        self, left: float, bottom: float, right: float, top: float, fill: str, *, name: str = "", title: str = ""
    ) -> None:
        """Fill a rectangle."""
        self.area([(left, bottom), (right, bottom), (right, top), (left, top)], fill, name=name, title=title)

    def mark(self, x: float, y: float, shape: str, *, colour: str = "", name: str = "", title: str = "") -> None:
        """Draw the mark of a status or of the ensemble, in the colour of that name unless another one is given."""
        marker, size = _SHAPES[shape]
        style = MarkerStyle(marker)
        transform = style.get_transform() + Affine2D().scale(2 * size).translate(x, y)
        colour, hollow = colour or shape, shape == "rejected"
        self._patch(
            style.get_path().transformed(transform),
            "paper" if hollow else colour,
            colour if hollow else "paper",
            1.6,
            name,
            title,
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12.0,
        colour: str = "ink",
        align: str = "left",
        bold: bool = False,
    ) -> None:
        """Write a line of text, centred on ``y``; ``align`` is the end of it, or the middle, that is at ``x``."""
        # Half the height of a capital, because browsers have other fonts than matplotlib measures with.
        baseline = y - 0.35 * size
        label = Text(x, baseline, text, fontsize=size, color=_STAND_INS[colour], weight=700 if bold else 400)
        # A model may be called "$x$", which matplotlib would read as mathematics.
        label.set(ha=align, va="baseline", transform=IdentityTransform(), parse_math=False)
        self._add(label)

    def markup(self, label: str, attributes: Mapping[str, str] | None = None) -> str:
        """Return the drawing as an ``svg`` element; screen readers read the ``label``."""
        buffer = io.StringIO()
        self._figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
        root = ElementTree.fromstring(buffer.getvalue())
        for child in [child for child in root if child.tag in (f"{_SVG}metadata", f"{_SVG}defs")]:
            root.remove(child)
        # A list, because restyling adds title elements to the tree.
        for element in list(root.iter()):
            _restyle(element, self._titles)
        _unwrap(root)
        # matplotlib's size is in points, and its namespace is not needed inside HTML.
        root.attrib.clear()
        size = {
            "viewBox": f"0 0 {self.width:g} {self.height:g}",
            "width": f"{self.width:g}",
            "height": f"{self.height:g}",
        }
        root.attrib |= {**size, "role": "img", "aria-label": label, **(attributes or {})}
        return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))

    def _patch(self, outline: Outline, fill: str, edge: str, width: float, name: str, title: str) -> None:
        # Titles are found again by the names of their parts.
        if title and not name:
            name = part(titled=len(self._titles))
        patch = PathPatch(outline, facecolor=_STAND_INS[fill], edgecolor=_STAND_INS.get(edge, "none"), linewidth=width)
        patch.set(transform=IdentityTransform(), gid=name or None)
        if title:
            self._titles[name] = title
        self._add(patch)

    def _add(self, artist: Artist) -> None:
        self._drawn += 1
        artist.set_zorder(self._drawn)  # by default matplotlib draws all lines above all patches
        self._figure.add_artist(artist)


def part(**names: str | int) -> str:
    """Return the name of a part of a drawing: ``part(point=3, shape="primary")`` becomes two ``data-`` attributes."""
    return _PART + "|".join(f"{name}={value}" for name, value in names.items())


@contextmanager
def plain_style() -> Iterator[None]:
    """Draw with matplotlib's defaults and not the user's matplotlibrc, so that the same data gives the same bytes."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "unite-advisor", "path.simplify": False})
        # The browser draws the text, so a character that matplotlib's font lacks does not matter.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        yield


def _restyle(element: ElementTree.Element, titles: Mapping[str, str]) -> None:
    # An HTML parser knows svg elements without a namespace, and would not know them with a prefix.
    element.tag = element.tag.removeprefix(_SVG)
    style = dict(rule.strip().split(": ", 1) for rule in element.attrib.pop("style", "").split(";") if rule.strip())
    for name, value in style.items():
        if name in _PRESENTATION:
            element.set(name, _VARIABLES.get(value, value))
    if element.tag == "text":
        size = re.search(r"([\d.]+)px", style.get("font-size") or style.get("font") or "")
        element.attrib |= {"font-size": size[1]} if size else {}
        element.attrib.pop("transform", None)  # always "rotate(-0)", because no text is turned
        element.attrib |= {name: _compact(element.attrib[name]) for name in ("x", "y") if name in element.attrib}
    if "d" in element.attrib:
        element.set("d", _compact(element.attrib["d"]))
    _name(element, titles)


def _name(element: ElementTree.Element, titles: Mapping[str, str]) -> None:
    name = element.attrib.pop("id", "")
    if not name.startswith(_PART):
        return
    for pair in name.removeprefix(_PART).split("|"):
        key, _, value = pair.partition("=")
        element.set(f"data-{key}", value)
    if name in titles:
        title = ElementTree.Element("title")
        title.text = titles[name]
        element.insert(0, title)


def _unwrap(element: ElementTree.Element) -> None:
    """Replace groups without attributes by their children."""
    children: list[ElementTree.Element] = []
    for child in element:
        _unwrap(child)
        children.extend(child if child.tag == "g" and not child.attrib else [child])
    element[:] = children


def _compact(path: str) -> str:
    # Hundredths of a pixel are invisible, and more digits would only make the page larger.
    rounded = re.sub(r"-?\d+\.\d+", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())
