"""The product reads at the first pass: names of locals, assignments, conditional expressions, size of functions.

The limits are per 1,000 lines of code. Lower a limit with every improvement; never raise one. torchmetrics has 0
meaningless names, 2 tuple assignments and 14 conditional expressions per 1,000 lines.
"""

import ast
import io
import tokenize
from collections import Counter

import pytest

from tests.conftest import REPOSITORY

MEANINGLESS = frozenset(("one", "found", "own", "made", "left", "others", "theirs", "known", "ours"))
"""Names of locals that do not say what the variable holds."""
LIMITS = {"meaningless names": 0.3, "tuples assigned to tuples": 0.1, "conditional expressions": 15.2, "walrus": 0.2}
MOST_BRANCHES = 15
LONG_FUNCTIONS = 6
"""Number of functions that may have more branches."""
WITHOUT_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.STRING,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
BRANCHES = (ast.If, ast.For, ast.While, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.comprehension, ast.Match)


def lines_of_code(source: str) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return len({token.start[0] for token in tokens if token.type not in WITHOUT_CODE})


def count_constructs(tree: ast.Module) -> Counter[str]:
    """Return how often each construct of LIMITS occurs in a file."""
    counts: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in MEANINGLESS:
            counts["meaningless names"] += 1
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            if any(isinstance(target, ast.Tuple) for target in node.targets):
                counts["tuples assigned to tuples"] += 1
        elif isinstance(node, ast.IfExp):
            counts["conditional expressions"] += 1
        elif isinstance(node, ast.NamedExpr):
            counts["walrus"] += 1
    return counts


def branchy_functions(tree: ast.Module) -> list[str]:
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [
        function.name
        for function in functions
        if sum(isinstance(node, BRANCHES) for node in ast.walk(function)) > MOST_BRANCHES
    ]


def test_constructs_that_stop_a_reader_are_rare() -> None:
    counts: Counter[str] = Counter()
    lines = 0
    branchy = []
    for folder in ("yolo_lightning", "callbacks"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source)
            counts += count_constructs(tree)
            lines += lines_of_code(source)
            branchy += [f"{path.relative_to(REPOSITORY)}: {name}" for name in branchy_functions(tree)]
    rates = {construct: counts[construct] / lines * 1000 for construct in LIMITS}
    assert not {construct: rate for construct, rate in rates.items() if rate > LIMITS[construct]}
    assert len(branchy) <= LONG_FUNCTIONS, branchy


@pytest.mark.parametrize("folder", ["scripts", "tests"])
def test_no_local_of_scripts_and_tests_has_a_meaningless_name(folder: str) -> None:
    places = []
    for path in (REPOSITORY / folder).rglob("*.py"):
        counts = count_constructs(ast.parse(path.read_text(encoding="utf-8")))
        if counts["meaningless names"]:
            places.append(str(path.relative_to(REPOSITORY)))
    assert not places


@pytest.mark.parametrize(
    ("source", "construct"),
    [
        ("found = 1", "meaningless names"),
        ("a, b = 1, 2", "tuples assigned to tuples"),
        ("a = 1 if b else 2", "conditional expressions"),
        ("print(a := 1)", "walrus"),
    ],
)
def test_constructs_are_counted(source: str, construct: str) -> None:
    assert count_constructs(ast.parse(source)) == {construct: 1}
