"""Mutants: small wrong changes of the library, each of which some test should notice.

Usage::

    python scripts/mutants.py draw --seed 20 --count 150   # adds to tests/mutants.json
    python scripts/mutants.py check                        # which of them are still in the code
    python scripts/mutants.py run --out results.jsonl      # judges them; resumes where it stopped
    python scripts/mutants.py safeguards                   # takes out each of tests/safeguards.toml

A mutant is found again by its function, its kind and the text of its line; if that function has
no such line, by the line alone, provided that the whole library has only one. ``check`` lists what
is not found, with the line that is nearest; edit ``tests/mutants.json`` then: ``module``,
``function``, ``line``, ``tests``. The mutants stand in random order, so the first results of a run
are a fair sample.

``run`` changes a copy of the repository, never the repository itself, and runs the mutant's tests
there: the ones that stand first in ``tests`` first. Results, one JSON object a line:

``killed``      a test failed, and passes without the mutant
``survived``    all tests passed
``timeout``     the tests used up their CPU seconds; ``during`` is the test that ran then
``unreliable``  a test failed, and fails without the mutant as well
``not found``   the code or the tests of the mutant are not there

``safeguards`` takes what protects the core out, by the edits of ``tests/safeguards.toml``. It ends
with an error if an edit does not fit the code, if a test that is named fails as the code is, or if
a safeguard is not noticed by each of its tests.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby, pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STORED = Path("tests") / "mutants.json"
SAFEGUARDS = Path("tests") / "safeguards.toml"
SKIPPED_FOLDERS = {"_proto", "migrations"}
LOGGERS = {"log", "logger", "_log", "_logger", "LOG", "_LOG", "logging"}
LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
# A wall clock limit for one test, against deadlocks, which use no CPU.
TEST_SECONDS = 1800
FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
STARTED = re.compile(r"^(tests/\S+?\.py(?:::.*?)?) ?(?:PASSED|SKIPPED|XFAIL|$)", re.MULTILINE)


@dataclass(frozen=True)
class Edit:
    """Replace the characters from ``start`` to ``end`` of a module by ``text``."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Place:
    """A place of the code where a mutant can be made."""

    module: str
    function: str
    kind: str
    ordinal: int
    """Number among the places of this kind in this function."""
    number: int
    """Line number, from 1."""
    in_line: int
    """Number among the places of this kind in this line."""
    line: str
    mutant: str
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Mutant:
    """A mutant as it is stored."""

    id: int
    module: str
    function: str
    kind: str
    ordinal: int
    in_line: int
    line: str
    mutant: str
    tests: list[str]


@dataclass(frozen=True)
class Safeguard:
    """What protects the core against a race or a fault, and the edit that takes it out."""

    name: str
    module: str
    old: str  # text that is in the module exactly once
    new: str
    tests: list[str]  # as pytest names them; each fails without the safeguard

    def take_out(self, root: Path) -> str:
        """Return the text of the module without it; ValueError if the edit does not fit."""
        text = (root / self.module).read_text()
        if text.count(self.old) != 1:
            raise ValueError(
                f"{self.name}: {self.module} has this text {text.count(self.old)} times, not once; "
                f"write the safeguard of today into {SAFEGUARDS}:\n{self.old}"
            )
        return text.replace(self.old, self.new)


class Module:
    """The source of one module, addressed by the positions of its syntax tree."""

    def __init__(self, root: Path, path: Path) -> None:
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_bytes().decode()
        self.lines = self.text.split("\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, number: int, column: int) -> int:
        """Offset in characters of a line number and a column in bytes."""
        return self._starts[number - 1] + len(
            self.lines[number - 1].encode()[:column].decode(errors="replace")
        )

    def start(self, node: ast.AST) -> int:
        """Offset of the first character of a node."""
        return self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Offset behind the last character of a node."""
        return self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def number(self, offset: int) -> int:
        """Line number of an offset."""
        return self.text.count("\n", 0, offset) + 1

    def operator(self, left: ast.AST, right: ast.AST, old: str, new: str) -> Edit | None:
        """Replace the operator between two nodes; None if a comment stands there too."""
        start, end = self.end(left), self.start(right)
        gap = self.text[start:end]
        words = r"\s+".join(re.escape(word) for word in old.split())
        match = re.search(rf"\b{words}\b" if old[0].isalpha() else words, gap)
        if "#" in gap or match is None:
            return None
        return Edit(start + match.start(), start + match.end(), new)

    def apply(self, edits: Sequence[Edit]) -> str:
        """Return the text with the changes made."""
        text = self.text
        for edit in sorted(edits, key=lambda edit: -edit.start):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


class Finder(ast.NodeVisitor):
    """Collects the places of one module, in the order of the code."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._names: list[str] = []
        self._in_function = 0
        self.found: list[tuple[str, str, tuple[Edit, ...]]] = []

    def _add(self, kind: str, *edits: Edit | None) -> None:
        known = tuple(edit for edit in edits if edit is not None)
        if self._in_function and len(known) == len(edits):
            self.found.append((".".join(self._names), kind, known))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Visit the body, not the bases and decorators."""
        self._names.append(node.name)
        depth, self._in_function = self._in_function, 0
        self._visit_all(node.body)
        self._in_function = depth
        self._names.pop()

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__":
            return
        self._names.append(node.name)
        self._in_function += 1
        self._visit_all(node.body)
        self._in_function -= 1
        self._names.pop()

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function

    def _visit_all(self, nodes: Sequence[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _skip(self, node: ast.AST) -> None:
        """Leave out messages and text: nothing in them is behaviour."""

    visit_Raise = visit_Assert = visit_JoinedStr = _skip

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Visit the value, not the type."""
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        """Remove a call statement, unless it only logs."""
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            if _logs(call):
                return
            start, end = self._module.start(node), self._module.end(node)
            self._add("removed call", Edit(start, end, "pass"))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        """Change each operator of a comparison."""
        operands = [node.left, *node.comparators]
        for operator, (left, right) in zip(node.ops, pairwise(operands), strict=True):
            old, new = COMPARISONS[type(operator)]
            self._add("comparison", self._module.operator(left, right, old, new))
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        """Turn ``and`` into ``or`` and the other way round."""
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        gaps = pairwise(node.values)
        self._add("and/or", *(self._module.operator(a, b, old, new) for a, b in gaps))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        """Remove ``not``."""
        if isinstance(node.op, ast.Not):
            start = self._module.start(node)
            end = start + len("not")
            while self._module.text[end].isspace():
                end += 1
            self._add("not removed", Edit(start, end, ""))
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """Turn ``+`` into ``-`` and the other way round, where it is not plainly about texts."""
        if isinstance(node.op, ast.Add | ast.Sub) and not _has_literal_sequence(node):
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            self._add("plus/minus", self._module.operator(node.left, node.right, old, new))
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Turn ``+=`` into ``-=`` and the other way round."""
        if isinstance(node.op, ast.Add | ast.Sub) and not _is_sequence(node.value):
            old, new = ("+=", "-=") if isinstance(node.op, ast.Add) else ("-=", "+=")
            self._add("plus/minus", self._module.operator(node.target, node.value, old, new))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Add one to a whole number; swap ``True`` and ``False``."""
        start, end = self._module.start(node), self._module.end(node)
        if isinstance(node.value, bool):
            self._add("true/false", Edit(start, end, str(not node.value)))
        elif isinstance(node.value, int):
            self._add("number", Edit(start, end, str(node.value + 1)))

    def visit_Call(self, node: ast.Call) -> None:
        """Swap ``min`` and ``max``; leave out ``strict=`` of ``zip``, and types."""
        if _logs(node):
            return
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            start, end = self._module.start(node.func), self._module.end(node.func)
            self._add("min/max", Edit(start, end, "max" if node.func.id == "min" else "min"))
        self.visit(node.func)
        cast = isinstance(node.func, ast.Name) and node.func.id == "cast"
        self._visit_all(node.args[1:] if cast else node.args)
        self._visit_all([keyword for keyword in node.keywords if keyword.arg != "strict"])

    def _visit_condition(self, node: ast.If | ast.IfExp) -> None:
        test = node.test
        # One comparison, or a "not", is turned round by its own mutant.
        turned = (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)) or (
            isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        )
        if not turned:
            start, end = self._module.start(test), self._module.end(test)
            self._add("condition", Edit(start, start, "not ("), Edit(end, end, ")"))
        self.generic_visit(node)

    visit_If = visit_IfExp = _visit_condition

    def visit_Break(self, node: ast.Break) -> None:
        """Turn ``break`` into ``continue``."""
        edit = Edit(self._module.start(node), self._module.end(node), "continue")
        self._add("break/continue", edit)

    def visit_Continue(self, node: ast.Continue) -> None:
        """Turn ``continue`` into ``break``."""
        edit = Edit(self._module.start(node), self._module.end(node), "break")
        self._add("break/continue", edit)


def _logs(call: ast.Call) -> bool:
    func = call.func
    return (
        isinstance(func, ast.Attribute)
        and func.attr in LOG_CALLS
        and isinstance(func.value, ast.Name)
        and func.value.id in LOGGERS
    )


def _is_sequence(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str | bytes)
    return isinstance(node, ast.JoinedStr | ast.List | ast.ListComp | ast.Tuple)


def _has_literal_sequence(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _has_literal_sequence(node.left) or _has_literal_sequence(node.right)
    return _is_sequence(node)


def places_of(root: Path, path: Path) -> list[Place]:
    """Return the places of a module, in the order of the code."""
    module = Module(root, path)
    finder = Finder(module)
    finder.visit(ast.parse(module.text))
    ordinals: dict[tuple[str, str], int] = {}
    in_lines: dict[tuple[str, int], int] = {}
    places = []
    for function, kind, edits in finder.found:
        number = module.number(edits[0].start)
        ordinal = ordinals.get((function, kind), 0)
        in_line = in_lines.get((kind, number), 0)
        ordinals[function, kind] = ordinal + 1
        in_lines[kind, number] = in_line + 1
        places.append(
            Place(
                module=module.path,
                function=function,
                kind=kind,
                ordinal=ordinal,
                number=number,
                in_line=in_line,
                line=module.lines[number - 1].strip(),
                mutant=module.apply(edits).split("\n")[number - 1].strip(),
                edits=edits,
            )
        )
    return places


def all_places(root: Path) -> list[Place]:
    """Return the places of the whole library."""
    paths = sorted((root / "memwal").rglob("*.py"))
    return [
        place
        for path in paths
        if not SKIPPED_FOLDERS & set(path.relative_to(root).parts)
        for place in places_of(root, path)
    ]


def default_tests(root: Path, module: str) -> list[str]:
    """Return the tests of a module: its own file, those that name it, then the whole folder."""
    path = Path(module)
    folder = Path("tests", *path.parent.parts[1:])
    while not any((root / folder).glob("test_*.py")):
        folder = folder.parent
    files = sorted((root / folder).glob("test_*.py"))
    own = [file for file in files if file.stem == f"test_{path.stem}"]
    name = re.compile(rf"\b{path.stem}\b")
    naming = [file for file in files if file not in own and name.search(file.read_text())]
    first = [file.relative_to(root).as_posix() for file in own + naming]
    if folder != Path("tests"):
        return [*first, f"{folder.as_posix()}/test_*.py"]
    if own:
        return first[:1]
    return first or ["tests/test_table.py", "tests/test_public.py"]


def draw(root: Path, seed: int, count: int, modules: Sequence[str], first: int) -> list[Mutant]:
    """Draw lines of modules by their prefixes, and a place of each; ids begin at ``first``."""

    def line(place: Place) -> tuple[str, int]:
        return place.module, place.number

    chance = random.Random(seed)  # noqa: S311
    places = (place for place in all_places(root) if place.module.startswith(tuple(modules)))
    lines = [list(same) for _, same in groupby(sorted(places, key=line), key=line)]
    drawn = [chance.choice(same) for same in chance.sample(lines, count)]
    return [
        Mutant(
            id=number,
            module=place.module,
            function=place.function,
            kind=place.kind,
            ordinal=place.ordinal,
            in_line=place.in_line,
            line=place.line,
            mutant=place.mutant,
            tests=default_tests(root, place.module),
        )
        for number, place in enumerate(drawn, first)
    ]


def find(mutant: Mutant, places: Sequence[Place]) -> Place | None:
    """Return the place of a mutant, which may have moved; None if that is not certain."""
    same = [p for p in places if (p.kind, p.line, p.mutant) == _what(mutant)]
    here = [p for p in same if (p.module, p.function) == (mutant.module, mutant.function)]
    if here:
        return min(here, key=lambda p: abs(p.ordinal - mutant.ordinal))
    name = mutant.function.rpartition(".")[2]
    named = [p for p in same if p.function.rpartition(".")[2] == name]
    for candidates in (named, same):
        if len(candidates) == 1:
            return candidates[0]
    return None


def _what(mutant: Mutant) -> tuple[str, str, str]:
    return mutant.kind, mutant.line, mutant.mutant


def nearest(mutant: Mutant, places: Sequence[Place]) -> Place:
    """Return the place that looks most like a mutant that is not found."""
    name = mutant.function.rpartition(".")[2]

    def likeness(place: Place) -> float:
        same = (place.module == mutant.module) + (place.function.rpartition(".")[2] == name)
        return difflib.SequenceMatcher(None, place.line, mutant.line).ratio() + 0.2 * same

    return max((p for p in places if p.kind == mutant.kind), key=likeness)


def check(root: Path, mutants: Sequence[Mutant]) -> int:
    """Print what is not found; return how many mutants that are."""
    places = all_places(root)
    lost = 0
    for mutant in mutants:
        place = find(mutant, places)
        gone = [name for name in mutant.tests if not any(root.glob(name))]
        if place is not None and not gone:
            continue
        lost += 1
        print(f"{mutant.id}: {mutant.module} {mutant.function} ({mutant.kind})")
        if place is None:
            near = nearest(mutant, places)
            print(f"    lost:    {mutant.line}")
            print(f"    nearest: {near.line}\n             {near.module} {near.function}")
        for name in gone:
            print(f"    no such tests: {name}")
    print(f"{len(mutants) - lost} of {len(mutants)} mutants are found")
    return lost


def copy_repository(root: Path, target: Path) -> None:
    """Copy what git knows or would add, and link the virtual environment."""
    listed = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    names = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).is_file() and not (root / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    if (root / ".venv").exists():
        (target / ".venv").symlink_to((root / ".venv").resolve())


@dataclass(frozen=True)
class Run:
    """How a run of pytest ended."""

    code: int
    output: str

    @property
    def out_of_time(self) -> bool:
        """Whether the CPU seconds were used up."""
        return self.code in (-signal.SIGXCPU, -signal.SIGKILL)

    @property
    def failed(self) -> str | None:
        """The first test that failed."""
        match = FAILED.search(self.output)
        return match[1] if match else None

    @property
    def last(self) -> str | None:
        """The test that ran last."""
        started = STARTED.findall(self.output)
        return started[-1] if started else None


def run_tests(root: Path, tests: Sequence[str], cpu_seconds: int) -> Run:
    """Run tests in a process group of their own, with a limit of CPU seconds."""

    scratch = root / ".scratch"
    shutil.rmtree(scratch, ignore_errors=True)
    options = f"-x -v --tb=line -n 0 -p no:randomly -p no:cacheprovider -o timeout={TEST_SECONDS}"
    command = [sys.executable, "-m", "pytest", *options.split(), f"--basetemp={scratch}", *tests]
    # CI: hypothesis tries the same examples each time.
    paths = f"{root}{os.pathsep}{root / 'plugins'}"
    environment = {**os.environ, "PYTHONPATH": paths, "CI": "1"}
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
        resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Run(process.returncode, output.read())


def _replace(file: Path, text: str) -> None:
    """Write a module so that Python does not take the bytecode of the one before for its own.

    It tells them by size and by time in seconds, and a mutant often has the same of both.
    """
    later = file.stat().st_mtime + 2
    file.write_bytes(text.encode())
    os.utime(file, (later, later))


def judge(root: Path, mutant: Mutant, place: Place | None, cpu_seconds: int) -> dict[str, object]:
    """Make the change, run the tests and undo the change. Returns the result and its details."""
    first = [name for name in mutant.tests if "*" not in name and (root / name).exists()]
    rest = [
        path.relative_to(root).as_posix()
        for name in mutant.tests
        for path in sorted(root.glob(name))
        if path.relative_to(root).as_posix() not in first
    ]
    if place is None or not first + rest:
        return {"result": "not found"}
    module = Module(root, root / place.module)
    _replace(root / place.module, module.apply(place.edits))
    try:
        for tests in filter(None, (first, rest)):
            run = run_tests(root, tests, cpu_seconds)
            if run.code:
                break
    finally:
        _replace(root / place.module, module.text)
    if run.code == 0:
        return {"result": "survived"}
    if run.out_of_time:
        return {"result": "timeout", "during": run.last, "own": tests is first}
    if run.failed is None:
        # No test failed, so pytest did not get that far, or was ended from outside.
        return {"result": "killed", "test": None, "output": run.output[-500:]}
    if run_tests(root, [run.failed.partition("[")[0]], cpu_seconds).code:
        return {"result": "unreliable", "test": run.failed}
    return {"result": "killed", "test": run.failed}


def run_all(root: Path, mutants: Sequence[Mutant], out: Path, cpu_seconds: int) -> None:
    """Judge the mutants that ``out`` has no result of."""
    done = {json.loads(line)["id"] for line in _lines(out)}
    with tempfile.TemporaryDirectory(prefix="mutants-", dir="/var/tmp") as folder:
        copy = Path(folder)
        copy_repository(root, copy)
        places = all_places(copy)
        for mutant in mutants:
            if mutant.id in done:
                continue
            began = time.monotonic()
            place = find(mutant, places)
            result = {"id": mutant.id, **judge(copy, mutant, place, cpu_seconds)}
            result["seconds"] = round(time.monotonic() - began)
            what = {"module": mutant.module, "function": mutant.function, "kind": mutant.kind}
            with out.open("a") as file:
                file.write(json.dumps({**result, **what}) + "\n")
            print(f"{mutant.id}: {mutant.module} {mutant.function}: {result['result']}", flush=True)
    results = [json.loads(line)["result"] for line in _lines(out)]
    print(", ".join(f"{results.count(name)} {name}" for name in sorted(set(results))))


def read_safeguards(root: Path) -> list[Safeguard]:
    """Read the safeguards of a repository."""
    stored = tomllib.loads((root / SAFEGUARDS).read_text())
    return [Safeguard(name=name, **values) for name, values in stored.items()]


def take_out(root: Path, safeguards: Sequence[Safeguard], cpu_seconds: int) -> int:
    """Take safeguards out one by one; print and count those that a test does not notice.

    Raises ValueError if an edit does not fit the code, or the tests fail without any edit.
    """
    for safeguard in safeguards:
        safeguard.take_out(root)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-", dir="/var/tmp") as folder:
        copy = Path(folder)
        copy_repository(root, copy)
        tests = sorted({test for safeguard in safeguards for test in safeguard.tests})
        run = run_tests(copy, tests, cpu_seconds * len(tests))
        if run.code:
            raise ValueError(f"the tests do not pass as the code is:\n{run.output[-3000:]}")
        for safeguard in safeguards:
            module = copy / safeguard.module
            text = module.read_text()
            _replace(module, safeguard.take_out(copy))
            # One by one: each of them is to fail.
            runs = {test: run_tests(copy, [test], cpu_seconds) for test in safeguard.tests}
            _replace(module, text)
            silent = [test for test, run in runs.items() if run.failed is None]
            missed += bool(silent)
            print(f"{safeguard.name}: {'NOT NOTICED by' if silent else 'noticed'}", *silent)
            for test in silent:
                print(runs[test].output[-1000:])
    print(f"{len(safeguards) - missed} of {len(safeguards)} safeguards are noticed", flush=True)
    return missed


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        yield from path.read_text().splitlines()


def read(path: Path) -> list[Mutant]:
    """Read the stored mutants."""
    return [Mutant(**stored) for stored in json.loads(path.read_text())]


def write(path: Path, mutants: Sequence[Mutant]) -> None:
    """Store mutants."""
    path.write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw, check or run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("draw", "check", "run", "safeguards"):
        command = commands.add_parser(name)
        command.add_argument("--repo", type=Path, default=ROOT, help="the repository")
        command.add_argument(
            "--mutants", type=Path, default=ROOT / STORED, help="the file of mutants"
        )
        if name == "draw":
            command.add_argument("--seed", type=int, default=20)
            command.add_argument("--count", type=int, default=150)
            command.add_argument("--modules", nargs="+", default=["memwal/"], help="prefixes")
        elif name in ("run", "safeguards"):
            kind = int if name == "run" else str
            command.add_argument("--only", type=kind, nargs="+", help="ids or names of mutants")
            command.add_argument(
                "--limit-cpu-seconds",
                type=int,
                default=240,
                help="for a mutant's own tests, and again for the rest",
            )
        if name == "run":
            command.add_argument(
                "--out", type=Path, required=True, help="results are appended here"
            )
    options = parser.parse_args(arguments)
    root = options.repo.resolve()
    if options.command == "draw":
        stored = read(options.mutants) if options.mutants.exists() else []
        first = max((mutant.id for mutant in stored), default=-1) + 1
        drawn = draw(root, options.seed, options.count, options.modules, first)
        write(options.mutants, [*stored, *drawn])
        return 0
    if options.command == "safeguards":
        named = options.only
        chosen = [s for s in read_safeguards(root) if named is None or s.name in named]
        return int(take_out(root, chosen, options.limit_cpu_seconds) > 0)
    mutants = read(options.mutants)
    if options.command == "check":
        return int(check(root, mutants) > 0)
    if options.only:
        mutants = [mutant for mutant in mutants if mutant.id in options.only]
    run_all(root, mutants, options.out, options.limit_cpu_seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
