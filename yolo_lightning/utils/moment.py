"""Moments in options."""

from datetime import datetime


def parse_moment(option: str, text: str) -> datetime:
    """Return a date and time with time zone; a date alone means the end of that day, the default zone is local.

    Raises:
        ValueError: With the name of the option, if the text is no date.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{option} must be YYYY-MM-DD or YYYY-MM-DDTHH:MM, got {text!r}.") from error
    if len(text) == len("YYYY-MM-DD"):
        moment = moment.replace(hour=23, minute=59, second=59)
    return moment.astimezone()
