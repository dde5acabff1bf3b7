"""Numbers for people."""

from __future__ import annotations


def time_text(us: float) -> str:
    """Return a time for people: `12.3 ms`.

    Args:
        us: In microseconds.
    """
    for unit in ("µs", "ms"):
        if us < 999.5:  # what is rounded to 1000 is one of the next unit
            return f"{us:.3g} {unit}"
        us /= 1000
    return f"{us:.3g} s" if us < 1000 else f"{us:,.0f} s"


def bytes_text(count: float) -> str:
    """Return a size for people: `346 MB`."""
    return scaled(count, ("B", "kB", "MB", "GB", "TB"))


def count_text(count: float) -> str:
    """Return a large count for people: `22.4 G`."""
    return scaled(count, ("", "k", "M", "G", "T")).rstrip()


def scaled(number: float, units: tuple[str, ...]) -> str:
    """Return a number of three digits in the unit, of those 1,000 apart, that fits it."""
    for unit in units[:-1]:
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} {units[-1]}"
