"""Checks of the image ids, in particular of ids that were rounded by a floating-point conversion.

LTDv2's ids have 17 digits. A float64 represents every fourth integer of that size, a float32 every 2^31st, and a number
printed with fewer digits ends in zeros or has an exponent.
"""

import re
from collections.abc import Sequence

from yolo_lightning.challenge.content import Certainty, Content, SubmissionProblem, Template
from yolo_lightning.evaluation.drift import ID_DIGITS

ID = re.compile(rf"\d{{{ID_DIGITS}}}")
FLOAT_TEXT = re.compile(r"\d+\.\d*|\d+(\.\d*)?[eE]\+?\d{1,4}")
FLOAT64_SPACING = 4  # spacing of float64 between 2^54 and 2^55, the range of ids of the years 1801 to 3602
FEWEST_IDS = 64  # minimum number of ids whose common divisor is not regarded as chance
LEAST_SHARE = 0.5
"""Minimum fraction of the split's ids in a file that is scored in spite of missing and foreign ids."""
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
    missing = [image_id for image_id in template.image_ids if image_id not in given]
    is_this_split = len(given & expected) >= LEAST_SHARE * len(expected)
    problems = [one for one in check_alone(foreign) if one.certainty is Certainty.CERTAIN]
    for ids, what in ((foreign, "ids do not belong to this split"), (missing, "ids of the split are missing")):
        if ids:
            problems.append(SubmissionProblem(what, len(ids), ids[0], tolerated=is_this_split))
    return problems
