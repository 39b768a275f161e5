"""Code is not packed: one statement a line, one meaning a name. Shares over all folders of code."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = (
    "benchmarks",
    "common",
    "collectors",
    "datasets",
    "examples",
    "flows",
    "learners",
    "pipeline",
    "plugins",
    "recipes",
    "release",
)

# Names that say nothing of what they hold. Good projects of the field have hardly any.
FILLERS = {
    "each",
    "found",
    "given",
    "it",
    "made",
    "more",
    "one",
    "other",
    "others",
    "own",
    "place",
    "rest",
    "some",
    "there",
    "thing",
    "what",
}
MOST_FILLERS = 0.005
MOST_PARALLEL = 0.005


def trees() -> Iterator[ast.Module]:
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "tests" not in path.relative_to(ROOT).parts:
                yield ast.parse(path.read_text(encoding="utf-8"))


def bindings(tree: ast.Module) -> Iterator[str]:
    """Every name that is assigned, looped over, or a parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def is_parallel(node: ast.AST) -> bool:
    """Whether it assigns several written values at once: `a, b = 1, 2`, and not `a, b = pair`."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Tuple)
        and any(isinstance(target, ast.Tuple) for target in node.targets)
    )


def starred_literals(node: ast.AST) -> int:
    """Written tuples and lists that are unpacked where they stand: `f(*(1, 2), 3)`."""
    if isinstance(node, ast.Call):
        items = node.args
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        items = node.elts
    else:
        return 0
    return sum(
        isinstance(item, ast.Starred) and isinstance(item.value, ast.Tuple | ast.List)
        for item in items
    )


def test_the_checks_see_what_they_are_for() -> None:
    packed = ast.parse("a, b = 1, 2\nf(*(1, 2), 3)\nfor each in b: pass")
    nodes = list(ast.walk(packed))
    assert sum(map(is_parallel, nodes)) == 1
    assert sum(map(starred_literals, nodes)) == 1
    assert set(bindings(packed)) & FILLERS == {"each"}


def test_a_statement_assigns_one_value_and_no_literal_is_unpacked() -> None:
    nodes = [node for tree in trees() for node in ast.walk(tree)]
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    parallel = sum(map(is_parallel, nodes))
    assert parallel <= MOST_PARALLEL * statements, (parallel, statements)
    assert sum(map(starred_literals, nodes)) == 0


def test_names_say_what_they_hold() -> None:
    names = Counter(name for tree in trees() for name in bindings(tree))
    fillers = {name: names[name] for name in FILLERS if names[name]}
    share = sum(fillers.values()) / sum(names.values())
    assert share <= MOST_FILLERS, fillers
