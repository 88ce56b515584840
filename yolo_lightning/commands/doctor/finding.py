"""One line of the doctor's report."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters, from least to most."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what that means.

    Attributes:
        check: What was looked at.
        found: What it is like.
        verdict: `BAD` keeps a training from running, from being right or from being safe; `WARNING` makes trouble
            likely; `NOTE` is worth knowing.
        advice: What to do; empty where nothing is to be done.
    """

    check: str
    found: str
    verdict: Severity
    advice: str = ""


def worst(findings: Iterable[Finding]) -> Severity:
    """The verdict that matters most; OK where there is none."""
    order = list(Severity)
    return max((finding.verdict for finding in findings), key=order.index, default=Severity.OK)
