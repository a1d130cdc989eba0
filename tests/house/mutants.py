"""Small faults put into the code, one at a time: the tests have to notice each.

    python -m tests.house.mutants              # those of mutants.json
    python -m tests.house.mutants --only store
    python -m tests.house.mutants --freeze 200 # choose as many; those of the file stay
    python -m tests.house.mutants --freeze 20 --only store/writing # choose as many more of these files

A fault is one line of one function, kept by its content, so that it is found again after the function went to another
file. What is found nowhere is listed: its mechanism is gone, or it was rewritten. The tree under test is a copy.
"""

import argparse
import ast
import collections
import concurrent.futures
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROZEN = Path(__file__).with_name("mutants.json")
ROOMS = ("client", "engine", "extras", "monitor", "proto", "store", "tasks")
SEED = 20261129
TIMEOUT_S, TEST_TIMEOUT_S = 180, 30
"""Time for the files of tests of a fault, and for each test: a fault may make it wait for ever."""
MAX_TEST_FILES = 6
MAX_CHOSEN_S = 15
"""Time of a file of tests without a fault, beyond which it is not chosen."""
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*"
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A fault in one line.

    Attributes:
        file: Where the line stood when it was chosen, from the root of the tree.
        function: The name of the function that it stands in.
        line: The line, without the blanks around it.
        changed: The line with the fault.
        tests: Files whose tests noticed it, from the root of the tree.
    """

    file: str
    function: str
    line: str
    changed: str
    tests: tuple[str, ...] = ()


def changes(node: ast.AST, line: str) -> Iterator[tuple[int, int, str]]:
    """Give the faults that a piece of code may have: from where to where in its line, and what stands there then.

    Args:
        node: The piece of code, on one line.
        line: The line, in UTF-8: columns count bytes.
    """
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            yield left.end_col_offset or 0, right.col_offset, f" {COMPARISONS[type(operator)]} "
        case ast.BoolOp(op=operator, values=[first, second, *_]):
            word = " or " if isinstance(operator, ast.And) else " and "
            yield first.end_col_offset or 0, second.col_offset, word
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node.col_offset, operand.col_offset, ""
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in SIGNS:
            yield left.end_col_offset or 0, right.col_offset, f" {SIGNS[type(operator)]} "
        case ast.Constant(value=bool(value)):
            yield node.col_offset, node.end_col_offset or 0, str(not value)
        case ast.Constant(value=int(value)):
            yield node.col_offset, node.end_col_offset or 0, str(value + 1)
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield value.col_offset, value.end_col_offset or 0, "None"


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Give all faults of a file that leave it syntactically whole."""
    lines = path.read_bytes().splitlines()
    for function in functions(path):
        inner = {id(child) for statement in function.body for child in ast.walk(statement)
                 if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.JoinedStr)
                 for child in ast.walk(child)}  # fmt: skip
        for statement in function.body:
            for node in ast.walk(statement):
                number = getattr(node, "lineno", None)
                if number is None or id(node) in inner or node.end_lineno != number:  # type: ignore[attr-defined]
                    continue
                line = lines[number - 1]
                for start, end, text in changes(node, line.decode()):
                    changed = line[:start] + text.encode() + line[end:]
                    # An operator between brackets: what stood between the operands has to be the operator alone.
                    if changed.count(b"(") == line.count(b"(") and changed.count(
                        b")"
                    ) == line.count(b")"):
                        yield Mutant(
                            path.relative_to(ROOT).as_posix(), function.name, line.decode().strip(),
                            changed.decode().strip(),
                        )  # fmt: skip


def place(tree: Path, mutant: Mutant) -> tuple[Path, int] | None:
    """Return the file and the number of the line, wherever it stands now; `None` if it is found nowhere.

    A line that stands several times, in its old file or under its function's name, is the first of them.
    """
    old = tree / mutant.file
    for path in ([old] if old.exists() else []) + sources(tree):
        if mutant.line in path.read_text():
            lines = path.read_text().splitlines()
            for function in functions(path):
                if function.name == mutant.function:
                    for number in range(function.lineno, (function.end_lineno or 0) + 1):
                        if lines[number - 1].strip() == mutant.line:
                            return path, number
    return None


def sources(tree: Path) -> list[Path]:
    return sorted(
        path
        for room in ROOMS
        for path in (tree / room).rglob("*.py")
        if "/migrations/" not in str(path)
    )


def copy_of_tree() -> Path:
    """Copy what is tracked, as it stands in the working tree; the folder is to be removed."""
    tree = Path(tempfile.mkdtemp(prefix="mutants-"))
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    for name in listed.stdout.decode().split("\0")[:-1]:
        source, target = ROOT / name, tree / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return tree


def outcome(tree: Path, test_files: tuple[str, ...], timeout_s: float = TIMEOUT_S) -> str:
    """Run the tests of files; return `passed`, `failed`, or `late` if they do not end in time."""
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree / 'src'}:{tree / 'client'}:{tree}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--no-header",
        "-n0",
        f"--timeout={TEST_TIMEOUT_S}",
        *test_files,
    ]
    try:
        finished = subprocess.run(
            command, check=False, cwd=tree, env=environment, capture_output=True, timeout=timeout_s
        )
    except subprocess.TimeoutExpired:
        return "late"
    if finished.returncode in {0, 5}:
        return "passed"
    return "late" if b"Failed: Timeout" in finished.stdout else "failed"


def tests_near(file: str) -> list[str]:
    """Return files of tests that import a module, else its package: those of parts alone, and first which import least."""
    module = "quadriga." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    module = module.replace(".client.quadriga_client", ".client")
    parent, _, name = module.rpartition(".")
    for pattern in (
        rf"{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{name}\b",
        rf"{re.escape(parent)}\b",
    ):
        found = []
        for path in sorted((ROOT / "tests").rglob("test_*.py")):
            text = path.read_text()
            if not {"conformance", "exporters", "cuda", "e2e"} & {*path.parts} and re.search(
                pattern, text
            ):
                found.append((text.count("quadriga."), path.relative_to(ROOT).as_posix()))
        if found:
            found.sort()
            return [file for _, file in found[:MAX_TEST_FILES]]
    return []


def try_mutant(tree: Path, mutant: Mutant) -> str:
    """Put a fault into a tree, run its tests, take it out; return `noticed`, `late`, `missed` or `gone`.

    Tests that a fault makes wait for ever notice it, but are `late` on a busy machine without any.
    """
    found = place(tree, mutant)
    if found is None:
        return "gone"
    path, number = found
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    lines[number - 1] = lines[number - 1].replace(mutant.line, mutant.changed)
    path.write_text("".join(lines))
    try:
        ast.parse(path.read_bytes())
        test_files = tuple(name for name in mutant.tests if (tree / name).exists())
        test_files = test_files or tuple(tests_near(path.relative_to(tree).as_posix()))
        ended = outcome(tree, test_files) if test_files else "passed"
        return {"failed": "noticed", "passed": "missed"}.get(ended, ended)
    finally:
        path.write_text(text)


def freeze(count: int, processes: int, only: str) -> None:
    """Choose faults that tests notice, and add them to those of the file: `count` in all, as many of each room as it has code.

    Args:
        count: How many there are then; with `only`, how many more.
        processes: How many are tried at once.
        only: What their files begin with; empty for the whole tree.
    """
    chosen = read_frozen()
    chance = random.Random(SEED + len(chosen))
    files: dict[str, list[Path]] = collections.defaultdict(list)
    for path in sources(ROOT):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(only):
            files[only or name.partition("/")[0]].append(path)
    sizes = {
        room: sum(len(path.read_text().splitlines()) for path in paths)
        for room, paths in files.items()
    }
    for room, paths in files.items():
        wanted = max(8, round(count * sizes[room] / sum(sizes.values())))
        if not only:
            wanted -= sum(mutant.file.startswith(f"{room}/") for mutant in chosen)
        candidates = [*dict.fromkeys(mutant for path in paths for mutant in mutants_of(path))]
        chance.shuffle(candidates)
        pool = iter(candidates)
        kept: list[Mutant] = []
        trees = [copy_of_tree() for _ in range(processes)]
        with concurrent.futures.ThreadPoolExecutor(processes) as executor:
            while len(kept) < wanted:
                batch = [mutant for mutant, _ in zip(pool, trees, strict=False)]
                if not batch:
                    break
                kept += filter(None, executor.map(noticed_by, trees, batch))
                written = [dataclasses.asdict(mutant) for mutant in chosen + kept]
                FROZEN.write_text(json.dumps(written, indent=1) + "\n")
        for tree in trees:
            shutil.rmtree(tree)
        chosen += kept
        print(f"{room}: {len(kept)} more", flush=True)


def read_frozen() -> list[Mutant]:
    """Return the faults of the file; none without it."""
    entries = json.loads(FROZEN.read_text()) if FROZEN.exists() else []
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def passes(tree: Path, test_file: str, known: dict[str, bool] = {}) -> bool:  # noqa: B006 - it remembers
    """Tell whether tests pass in a copy of the tree without a fault, in a time in which hundreds of faults can be tried."""
    if test_file not in known:
        known[test_file] = outcome(tree, (test_file,), MAX_CHOSEN_S) == "passed"
    return known[test_file]


def noticed_by(tree: Path, mutant: Mutant) -> Mutant | None:
    """Return a fault with the first file of tests that notices it; `None` if none does."""
    for name in tests_near(mutant.file):
        if not passes(tree, name):
            continue
        with_tests = dataclasses.replace(mutant, tests=(name,))
        try:
            if try_mutant(tree, with_tests) == "noticed":
                return with_tests
        except SyntaxError:
            return None
    return None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--freeze", type=int, metavar="N", help="choose N faults that the tests notice"
    )
    parser.add_argument("--only", default="", metavar="PREFIX", help="those whose file begins so")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.freeze:
        freeze(arguments.freeze, arguments.processes, arguments.only)
        return 0
    mutants = [mutant for mutant in read_frozen() if mutant.file.startswith(arguments.only)]
    if not mutants:
        parser.error(f"expected faults in {FROZEN.name}: --freeze 200 chooses them")
    trees = [copy_of_tree() for _ in range(arguments.processes)]
    results: collections.Counter[str] = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(len(trees)) as executor:
        for first in range(0, len(mutants), len(trees)):
            batch = mutants[first : first + len(trees)]
            for mutant, result in zip(batch, executor.map(try_mutant, trees, batch), strict=False):
                results[result] += 1
                if result != "noticed":
                    print(f"{result}: {mutant.file} {mutant.function}: {mutant.line}", flush=True)
    for tree in trees:
        shutil.rmtree(tree)
    print(", ".join(f"{result} {number}" for result, number in results.items()))
    return int("missed" in results)


if __name__ == "__main__":
    sys.exit(main())
