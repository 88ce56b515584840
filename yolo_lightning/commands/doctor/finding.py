"""One row of the doctor's report."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding, in ascending order."""

    OK = "ok"
    NOTE = "note"  # worth knowing
    WARNING = "warning"  # makes trouble likely
    BAD = "bad"  # training does not run, computes wrong results or is unsafe


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    check: str  # name of the check
    found: str
    verdict: Severity = Severity.OK
    advice: str = ""  # what to do; empty if nothing needs to be done


def worst(findings: Iterable[Finding]) -> Severity:
    """Return the highest severity, or OK for no findings."""
    order = list(Severity)
    return max((finding.verdict for finding in findings), key=order.index, default=Severity.OK)
