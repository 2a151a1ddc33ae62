"""Numbers as a person reads them."""

from __future__ import annotations

BYTE_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")  # powers of 1000, as networks and disks are sold


def byte_unit(value: float) -> tuple[float, str]:
    """The unit that suits a number of bytes: how many bytes it is, and its name."""
    size, place = 1.0, 0
    while place < len(BYTE_UNITS) - 1 and value / size >= 999.5:  # from there it would be shown as 1000
        size *= 1000
        place += 1
    return size, BYTE_UNITS[place]


def bytes_text(value: float) -> str:
    """`1234567` is `1.2 MB`: one decimal up to 100 of a unit, none above, none for single bytes."""
    size, name = byte_unit(value)
    decimals = 1 if size > 1 and value / size < 99.95 else 0
    return f"{value / size:,.{decimals}f} {name}"


def count_text(value: float) -> str:
    """`12345` is `12,345`; a mean that is not whole keeps one decimal."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.1f}"


def share_text(value: float) -> str:
    """`0.2312` is `23.1 %`."""
    return f"{100 * value:.1f} %"


def score_text(value: float) -> str:
    """`0.81234` is `81.23 %`: accuracies are compared to the second decimal."""
    return f"{100 * value:.2f} %"


def seconds_text(value: float) -> str:
    """`0.0123` is `12.3 ms`, `75.2` is `75.2 s`, `4000` is `1 h 6 min`."""
    if value < 1:
        return f"{1000 * value:.1f} ms"
    if value < 120:
        return f"{value:.1f} s"
    minutes = round(value / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def number_text(value: float) -> str:
    """Four significant digits, for a loss or a drift."""
    return f"{value:.4g}"
