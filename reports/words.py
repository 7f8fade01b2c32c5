"""Numbers as a reader wants them: points, ratios, lengths, p-values; a dash stands for what is unknown."""

from __future__ import annotations

UNKNOWN = "–"
MINUS = "\u2212"


def points(value: float | None) -> str:
    """Return an accuracy or a gap with one decimal: ``78.0``."""
    return UNKNOWN if value is None else _signless(f"{value:.1f}")


def difference(value: float | None) -> str:
    """Return a difference in points with its sign: ``+6.0``."""
    if value is None:
        return UNKNOWN
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)


def interval(ends: tuple[float, float] | None) -> str:
    """Return the interval of an accuracy: ``71.2 to 83.9``."""
    return UNKNOWN if ends is None else f"{points(ends[0])} to {points(ends[1])}"


def difference_interval(ends: tuple[float, float] | None) -> str:
    """Return the interval of a difference: ``+1.0 to +11.0``."""
    return UNKNOWN if ends is None else f"{difference(ends[0])} to {difference(ends[1])}"


def ratio(value: float | None) -> str:
    """Return a ratio: ``1.24×``."""
    return UNKNOWN if value is None else f"{value:.2f}×"


def length(value: float | None) -> str:
    """Return a mean length in characters, with a decimal where it matters: ``18.4``, ``1,204``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def p_value(value: float | None) -> str:
    """Return a p-value with its sign: ``= 0.012``, ``< 0.001``."""
    if value is None:
        return UNKNOWN
    return "< 0.001" if value < 0.001 else f"= {value:.3f}" if value < 0.1 else f"= {value:.2f}"


def amount(value: float | None) -> str:
    """Return a large number shortly: ``912``, ``0.9 M``, ``7.2 B``."""
    if value is None:
        return UNKNOWN
    for size, unit in ((1e9, "B"), (1e5, "M")):
        if value >= size:
            return f"{value / (1e9 if unit == 'B' else 1e6):.1f} {unit}"
    return f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """Return a duration: ``4.2 s``, ``3 min``."""
    if value is None:
        return UNKNOWN
    return f"{value:.1f} s" if value < 100 else f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def cost(value: float | None) -> str:
    """Return milliseconds with three digits at least: ``0.84``, ``12.3``, ``1,204``."""
    if value is None:
        return UNKNOWN
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Return a share in percent: ``7%``."""
    return UNKNOWN if value is None else f"{100 * value:.0f}%"


def chance(value: float | None) -> str:
    """Return a p-value for a column: ``0.012``, ``< 0.001``."""
    return p_value(value).removeprefix("= ")


def memory(value: float | None) -> str:
    """Return bytes: ``640 MB``, ``14.2 GB``."""
    if value is None:
        return UNKNOWN
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.0f} MB"


def shortened(name: str, longest: int) -> str:
    """Return a name that fits, with its middle left out: ends tell models apart."""
    if len(name) <= longest:
        return name
    head = (longest - 1) // 2
    return f"{name[:head]}…{name[len(name) - (longest - 1 - head) :]}"


def _signless(text: str) -> str:
    return "0.0" if text == "-0.0" else text.replace("-", MINUS)
