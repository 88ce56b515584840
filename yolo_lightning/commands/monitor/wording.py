"""Times, shares and rates as text."""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Return a duration in its two largest units: `3 d 4 h`, `2 h 5 min`, `4 min 10 s`, `12 s`."""
    whole = max(0, round(seconds))
    for size_s, name, part_s, part_name in (
        (DAY_S, "d", HOUR_S, "h"),
        (HOUR_S, "h", MINUTE_S, "min"),
        (MINUTE_S, "min", 1, "s"),
    ):
        if whole >= size_s:
            return f"{whole // size_s} {name} {whole % size_s // part_s} {part_name}"
    return f"{whole} s"


def share(part: float | None) -> str:
    """Return a share from 0 to 1 in percent."""
    return "?" if part is None else f"{part:.0%}".replace("%", " %")


def rate(step_s: float) -> str:
    """Return the rate of steps that take `step_s` seconds: it/s, or s/it from 10 s on.

    A damaged status file can contain 0 and negative numbers; their rate is unknown.
    """
    if step_s <= 0:
        return "? it/s"
    return f"{1 / step_s:.2f} it/s" if step_s < 10 else f"{step_s:.1f} s/it"
