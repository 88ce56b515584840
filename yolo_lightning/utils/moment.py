"""Moments as text, and in options."""

from datetime import datetime

from yolo_lightning.errors import UserError

HOUR_S = 3600


def moment(time_s: float, now_s: float) -> str:
    """Return a local time, with the date if it is not today; both arguments are seconds since 1970."""
    then, now = datetime.fromtimestamp(time_s), datetime.fromtimestamp(now_s)
    if then.date() == now.date():
        return then.strftime("%H:%M:%S" if abs(time_s - now_s) < HOUR_S else "%H:%M")
    return then.strftime("%a %d %b %H:%M" if then.year == now.year else "%d %b %Y %H:%M")


def parse_moment(option: str, text: str) -> datetime:
    """Return a date and time with time zone; a date alone means the end of that day, the default zone is local.

    Raises:
        UserError: With the name of the option, if the text is no date.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UserError(f"{option} must be YYYY-MM-DD or YYYY-MM-DDTHH:MM, got {text!r}.") from error
    if len(text) == len("YYYY-MM-DD"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment.astimezone()
