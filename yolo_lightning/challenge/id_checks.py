"""Checks of the image ids, in particular of ids that were rounded by a floating-point conversion.

LTDv2's ids have 17 digits. A float64 represents every fourth integer of that size, a float32 every 2^31st, and a number
printed with fewer digits ends in zeros or has an exponent.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

from yolo_lightning.challenge.content import Certainty, Content, SubmissionProblem, Template
from yolo_lightning.evaluation.drift import ID_DIGITS

ID = re.compile(rf"\d{{{ID_DIGITS}}}")
FLOAT_TEXT = re.compile(r"\d+\.\d*|\d+(\.\d*)?[eE]\+?\d{1,4}")
FLOAT64_SPACING = 4  # spacing of float64 between 2^54 and 2^55, the range of ids of the years 1801 to 3602
FLOAT32_SPACING = 1 << 31
FEWEST_IDS = 64  # minimum number of ids whose common divisor is not regarded as chance
LEAST_SHARE = 0.5
"""Minimum fraction of the split's ids that a file must contain before missing ids are added and foreign ids dropped."""
ROUNDED = "ids were rounded by a floating-point conversion"


def check_alone(image_ids: Sequence[str]) -> list[SubmissionProblem]:
    """Return the problems that can be found without a template."""
    what = "missing and foreign ids cannot be detected without a template"
    problems = [SubmissionProblem(what, 1, "", Certainty.NOTE)]
    floats = [text for text in image_ids if FLOAT_TEXT.fullmatch(text)]
    others = [text for text in image_ids if not ID.fullmatch(text) and not FLOAT_TEXT.fullmatch(text)]
    if floats:
        problems.append(SubmissionProblem(ROUNDED, len(floats), floats[0]))
    if others:
        problems.append(SubmissionProblem("keys are not ids of 17 digits", len(others), others[0], Certainty.LIKELY))
    exact = [int(text) for text in image_ids if ID.fullmatch(text)]
    for spacing in (100, FLOAT64_SPACING):
        if len(exact) >= FEWEST_IDS and all(value % spacing == 0 for value in exact):
            what = f"all ids are multiples of {spacing}, probably because of a floating-point conversion"
            problems.append(SubmissionProblem(what, len(exact), str(exact[0]), Certainty.LIKELY))
            break
    return problems


def check_against(content: Content, template: Template) -> list[SubmissionProblem]:
    """Return the problems of ids, given those of the split."""
    expected, given = frozenset(template.image_ids), frozenset(content.image_ids)
    foreign = [image_id for image_id in content.image_ids if image_id not in expected]
    sources = _damaged_ids(foreign, rounding(content.image_ids), template.image_ids)
    problems = [_rounded_ids(sources, given)] if sources else []
    restored = {found[0] for found in sources.values() if len(found) == 1}
    is_this_split = len(given & expected | restored) >= LEAST_SHARE * len(expected)
    unexpected = [image_id for image_id in foreign if image_id not in sources]
    missing = [image_id for image_id in template.image_ids if image_id not in given and image_id not in restored]

    def drop(content: Content) -> Content:
        left_out = frozenset(unexpected)
        return content.with_frames([image_id for image_id in content.image_ids if image_id not in left_out])

    def add(content: Content) -> Content:
        return content.with_frames([*content.image_ids, *missing])

    for ids, what, remedy, repair in (
        (unexpected, "ids do not belong to this split", "drop them, as the evaluation does", drop),
        (missing, "ids of the split are missing", "add them with empty lists, as the evaluation does", add),
    ):
        if ids and is_this_split:
            problems.append(SubmissionProblem(what, len(ids), ids[0], remedy=remedy, repair=repair, tolerated=True))
        elif ids:
            problems.append(SubmissionProblem(what, len(ids), ids[0]))
    return problems


def _rounded_ids(sources: dict[str, list[str]], given: frozenset[str]) -> SubmissionProblem:
    """Return the problem of rounded ids, with a repair if each has one possible source that no other id claims."""
    claims = Counter(source for found in sources.values() for source in found)
    clear = all(len(found) == 1 and claims[found[0]] == 1 and found[0] not in given for found in sources.values())
    text, found = next(iter(sources.items()))
    example = f"{text} may be {' or '.join(found[:3]) or 'none of the split'}{' or others' if len(found) > 3 else ''}"
    if not clear:
        return SubmissionProblem(f"{ROUNDED}, and the original ids are ambiguous", len(sources), example)
    names = {text: found[0] for text, found in sources.items()}
    remedy = "replace each by the only id of the split that rounds to it"

    def repair(content: Content) -> Content:
        return replace(content, image_ids=tuple(names.get(image_id, image_id) for image_id in content.image_ids))

    return SubmissionProblem(ROUNDED, len(sources), example, remedy=remedy, repair=repair)


def rounding(image_ids: Sequence[str]) -> int:
    """Return the largest rounding unit of which all ids of 17 digits are multiples, 1 if there is none."""
    values = [int(text) for text in image_ids if ID.fullmatch(text)]
    candidates = (FLOAT32_SPACING, *(10**zeros for zeros in range(ID_DIGITS - 1, 0, -1)), FLOAT64_SPACING)
    return max((unit for unit in candidates if values and all(value % unit == 0 for value in values)), default=1)


def _damaged_ids(foreign: Sequence[str], spacing: int, image_ids: Sequence[str]) -> dict[str, list[str]]:
    """Return the foreign keys that are rounded ids of the split, with the ids that each may have been.

    `spacing` is the rounding unit of keys without decimal point or exponent; 1 if they were not rounded.
    """
    exact = sorted((int(text), text) for text in image_ids if text.isdecimal())
    values = [value for value, _ in exact]
    sources = {}
    for text in foreign:
        is_float = FLOAT_TEXT.fullmatch(text) is not None
        if is_float:
            lowest, highest = origin(text)
        elif spacing > 1 and ID.fullmatch(text):  # rounded to nearest; decimal digits may also have been cut off
            lowest = int(text) - spacing // 2
            highest = int(text) + (spacing // 2 if spacing % 10 else spacing - 1)
        else:
            continue
        found = [identifier for _, identifier in exact[bisect_left(values, lowest) : bisect_right(values, highest)]]
        if is_float or found:
            sources[text] = found
    return sources


def origin(text: str) -> tuple[int, int]:
    """Return the smallest and largest integer that rounding can have turned into this printed float."""
    number = Decimal(text).normalize()
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    if number.adjusted() != ID_DIGITS - 1:
        return 0, 0
    value = int(number)
    lost_digits = 5 * 10 ** (exponent - 1) if exponent > 0 else 0
    lost_bits = FLOAT64_SPACING // 2 if value % FLOAT64_SPACING == 0 else 0
    reach = max(lost_digits, lost_bits)
    return value - reach, value + reach
