"""Moments as text, and in options."""

import re
from datetime import UTC, datetime

from yolo_lightning.errors import UserError

MINUTE_S = 60
HOUR_S = 3600
DAY_S = 86_400

WRITTEN_MOMENT = re.compile(r"(?P<date>\d{4}-\d\d-\d\d)(?P<time>[T ]\d\d:\d\d(:\d\d)?(?P<zone>Z|[+-]\d\d:?\d\d)?)?")
YEARS = range(2000, 2200)
"""Years of moments that can be converted between zones and to seconds since 1970."""
LATEST_S = datetime(YEARS.stop, 1, 1, tzinfo=UTC).timestamp()
"""End of the last of these years, in seconds since 1970."""


def is_moment(time_s: float) -> bool:
    """Return whether a number from a file can be a moment of this century or the next, in seconds since 1970."""
    return 0 <= time_s < LATEST_S


def moment(time_s: float, now_s: float) -> str:
    """Return a local time, with the date if it is not today; both arguments are seconds since 1970."""
    then = datetime.fromtimestamp(time_s)
    now = datetime.fromtimestamp(now_s)
    form = "%d %b %Y %H:%M"
    if then.date() == now.date():
        form = "%H:%M:%S" if abs(time_s - now_s) < HOUR_S else "%H:%M"
    elif then.year == now.year:
        form = "%a %d %b %H:%M"
    return then.strftime(form)


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


def parse_moment(option: str, text: str) -> datetime:
    """Return a date and time with time zone; a date alone means the end of that day, the default zone is local.

    Raises:
        UserError: With the name of the option, if the text has another form or names no moment of 2000 to 2199.
    """
    accepted = f"{option} must be YYYY-MM-DD, YYYY-MM-DDTHH:MM or YYYY-MM-DDTHH:MM+HH:MM, got {text!r}."
    match = WRITTEN_MOMENT.fullmatch(text)
    if match is None:
        raise UserError(accepted)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{accepted} {str(error).capitalize()}.") from error
    if moment.year not in YEARS:
        raise UserError(f"{option} must be in the years {YEARS[0]} to {YEARS[-1]}, got {text!r}.")
    if match["time"] is None:
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment.astimezone()
