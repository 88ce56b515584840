"""Are the keys of an answer file the ids of the split, and which of them went through a floating-point number?

LTDv2's ids have 17 digits. A float64 keeps every fourth integer of that size, a float32 every 2^31st, and a number
printed with fewer digits ends in zeros or in an exponent.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from functools import partial

from yolo_lightning.challenge.content import Certainty, Content, SubmissionProblem, Template
from yolo_lightning.challenge.repair import with_empty_frames, with_ids, without_frames
from yolo_lightning.evaluation.drift import ID_DIGITS

ID = re.compile(rf"\d{{{ID_DIGITS}}}")
FLOAT_TEXT = re.compile(r"\d+\.\d*|\d+(\.\d*)?[eE]\+?\d{1,4}")
FLOAT64_SPACING = 4
"""Of integers of 17 digits from 2^54 on, where the years from 1801 lie."""
FLOAT32_SPACING = 1 << 31
ZEROS = 2
"""Trailing zeros that all ids share, from which they count as lost digits."""
FEWEST_IDS = 64
"""Ids before a property that all of them share is no chance any more."""
LEAST_SHARE = 0.5
"""Of the split's ids that must be there before missing ones are added and foreign ones dropped."""


def check_ids(content: Content, template: Template | None) -> list[SubmissionProblem]:
    """What is wrong with the keys."""
    return check_alone(content.image_ids) if template is None else check_against(content, template)


def check_alone(image_ids: Sequence[str]) -> list[SubmissionProblem]:
    """What can be said of ids without knowing the split's."""
    problems = [SubmissionProblem("no template was given: missing and foreign ids stay unknown", 1, "", Certainty.NOTE)]
    floats = [text for text in image_ids if FLOAT_TEXT.fullmatch(text)]
    others = [text for text in image_ids if not ID.fullmatch(text) and not FLOAT_TEXT.fullmatch(text)]
    if floats:
        problems.append(SubmissionProblem("ids went through a floating-point number", len(floats), floats[0]))
    if others:
        problems.append(SubmissionProblem("keys are no ids of 17 digits", len(others), others[0], Certainty.LIKELY))
    exact = [int(text) for text in image_ids if ID.fullmatch(text)]
    for spacing in (10**ZEROS, FLOAT64_SPACING):
        if len(exact) >= FEWEST_IDS and all(value % spacing == 0 for value in exact):
            what = f"all ids are multiples of {spacing}: they went through a floating-point number"
            problems.append(SubmissionProblem(what, len(exact), str(exact[0]), Certainty.LIKELY))
            break
    return problems


def check_against(content: Content, template: Template) -> list[SubmissionProblem]:
    """What is wrong with ids, given those of the split."""
    expected, given = frozenset(template.image_ids), frozenset(content.image_ids)
    foreign = [image_id for image_id in content.image_ids if image_id not in expected]
    sources = damaged_ids(foreign, rounding(content.image_ids), template.image_ids)
    problems = [restoration(sources, given)] if sources else []
    single = {found[0] for found in sources.values() if len(found) == 1}
    mostly_there = len(given & expected | single) >= LEAST_SHARE * len(expected)
    extra = [image_id for image_id in foreign if image_id not in sources]
    if extra:
        remedy = "they are dropped: the evaluation ignores them" if mostly_there else ""
        repair = partial(without_frames, image_ids=frozenset(extra)) if mostly_there else None
        what = "ids are not of this split"
        problems.append(
            SubmissionProblem(what, len(extra), extra[0], remedy=remedy, repair=repair, tolerated=mostly_there)
        )
    missing = [image_id for image_id in template.image_ids if image_id not in given and image_id not in single]
    if missing:
        remedy = "they are added with empty lists, which is how the evaluation counts them" if mostly_there else ""
        repair = partial(with_empty_frames, image_ids=missing) if mostly_there else None
        what = "ids of the split are missing"
        problems.append(
            SubmissionProblem(what, len(missing), missing[0], remedy=remedy, repair=repair, tolerated=mostly_there)
        )
    return problems


def restoration(sources: dict[str, list[str]], given: frozenset[str]) -> SubmissionProblem:
    """The report of damaged ids; they can be restored where each has one source, which is nowhere else."""
    claims = Counter(source for found in sources.values() for source in found)
    clear = all(len(found) == 1 and claims[found[0]] == 1 and found[0] not in given for found in sources.values())
    text, found = next(iter(sources.items()))
    example = f"{text} may be {' or '.join(found[:3]) or 'none of the split'}{' or others' if len(found) > 3 else ''}"
    what = "ids went through a floating-point number"
    if not clear:
        return SubmissionProblem(f"{what}, and it is not clear which ids of the split are meant", len(sources), example)
    names = {text: found[0] for text, found in sources.items()}
    remedy = "each is replaced by the only id of the split that it can have come from"
    return SubmissionProblem(what, len(sources), example, remedy=remedy, repair=partial(with_ids, names=names))


def rounding(image_ids: Sequence[str]) -> int:
    """Largest spacing of rounded numbers that all ids of 17 digits keep, 1 if they keep none."""
    values = [int(text) for text in image_ids if ID.fullmatch(text)]
    candidates = (FLOAT32_SPACING, *(10**zeros for zeros in range(ID_DIGITS - 1, 0, -1)), FLOAT64_SPACING)
    return max((n for n in candidates if values and all(value % n == 0 for value in values)), default=1)


def damaged_ids(foreign: Sequence[str], spacing: int, image_ids: Sequence[str]) -> dict[str, list[str]]:
    """Foreign ids that are rounded ids of the split, each with those that it may have been.

    Args:
        foreign: Keys that are no ids of the split.
        spacing: What ids without decimal point or exponent were rounded to; 1 if they were not.
        image_ids: Of the split.
    """
    exact = sorted((int(text), text) for text in image_ids if text.isdecimal())
    values = [value for value, _ in exact]
    sources = {}
    for text in foreign:
        is_float = FLOAT_TEXT.fullmatch(text) is not None
        if not (is_float or (spacing > 1 and ID.fullmatch(text))):
            continue
        lowest, highest = origin(text) if is_float else around(int(text), spacing)
        found = [identifier for _, identifier in exact[bisect_left(values, lowest) : bisect_right(values, highest)]]
        if is_float or found:
            sources[text] = found
    return sources


def around(value: int, spacing: int) -> tuple[int, int]:
    """The smallest and largest integer that can have become `value`; digits may have been rounded or cut off."""
    return value - spacing // 2, value + (spacing // 2 if spacing % 10 else spacing - 1)


def origin(text: str) -> tuple[int, int]:
    """The smallest and largest integer that a printed float can have been before it was rounded."""
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
