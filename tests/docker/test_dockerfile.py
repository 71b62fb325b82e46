"""The Dockerfile keeps the rules: images are small, pinned, unprivileged and free of secrets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.kubernetes import dockerfile

ROOT = Path(__file__).resolve().parents[2]
PATH = ROOT / "docker" / "Dockerfile"
FILE = dockerfile.read(PATH)
CONTEXT = dockerfile.context(ROOT, ROOT / ".dockerignore")
IMAGES = {"memwal": "10001", "memwal-spark": "185", "memwal-airflow": "50000"}
STEPS = [(stage, step) for stage in FILE.stages.values() for step in stage.steps]
RUNS = [step for _, step in STEPS if step.keyword == "RUN"]


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--config", "docker/hadolint.yaml", PATH],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "")


def test_everything_is_built_on_one_base_that_is_pinned() -> None:
    outside = {stage.base for stage in FILE.stages.values()} - set(FILE.stages)
    assert outside == {FILE.arguments["BASE"]}
    assert re.fullmatch(
        r"docker\.io/library/debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", *outside
    )


@pytest.mark.parametrize("step", RUNS, ids=lambda step: f"line {step.line}")
def test_packages_of_python_are_checked_by_hash(step: dockerfile.Step) -> None:
    assert not re.search(r"\b(curl|wget|git)\b", step.text)
    for install in re.findall(r"(?:uv pip|bin/pip) [^&]*?(?:install|sync) [^&]*", step.text):
        # The wheel is of this build; all else is in a lock.
        own = install.split()[-3:] == ["--find-links", "/dist", "lance-memwal"]
        assert "--require-hashes" in install or (own and "--no-index" in install)


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_its_user(image: str) -> None:
    user = FILE.lasting(image, "USER")
    assert user is not None
    assert user.text == f"{IMAGES[image]}:0"
    steps = FILE.stages[image].steps
    assert not {"RUN", "COPY"} & {step.keyword for step in steps[steps.index(user) :]}
    (made,) = [step for step in steps if step.keyword == "RUN"]
    assert f"useradd --uid {IMAGES[image]} --gid 0 " in made.text


def test_nothing_else_goes_to_the_engine() -> None:
    copied = {
        source
        for _, step in STEPS
        if step.keyword == "COPY" and not step.flags
        for source in step.words()[:-1]
    }
    locks = {f"requirements/{path.name}" for path in (ROOT / "requirements").glob("*.lock")}
    inside = {name for name in CONTEXT for entry in copied if f"{name}/".startswith(f"{entry}/")}
    assert inside == CONTEXT - (locks - copied)
    leftovers = re.compile(r"__pycache__|node_modules|\.git/|\.venv|secrets|web/static|\.egg-info")
    assert [name for name in CONTEXT if leftovers.search(name)] == []


def test_what_git_has_is_what_is_built() -> None:
    """Of the folders that are copied, the engine gets the files of Git and no others."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    known = set(done.stdout.splitlines())
    assert known >= CONTEXT
    for folder in ("memwal/", "plugins/", "spark_apps/", "dags/", "docker/airflow/"):
        wanted = {name for name in known if name.startswith(folder) and (ROOT / name).exists()}
        assert wanted == {name for name in CONTEXT if name.startswith(folder)}


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda lock: lock.stem
)
def test_a_lock_names_no_registry_and_hashes_everything(lock: Path) -> None:
    lines = [line for line in lock.read_text().splitlines() if not line.startswith("#")]
    pins = [line for line in lines if re.match(r"[a-z0-9]", line)]
    assert pins
    # A pin, its hashes each on a line that ends with a backslash but the last.
    assert all(re.fullmatch(r"[\w.\-\[\],]+==\S+( ; .*)? \\", line) for line in pins)
    others = [line for line in lines if line not in pins]
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in others)


@pytest.mark.parametrize("name", ["build", "cli", "spark", "airflow"])
def test_images_have_the_versions_that_are_tested(name: str) -> None:
    def pins(lock: str) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for line in (ROOT / "requirements" / lock).read_text().splitlines():
            if pin := re.match(r"([\w.\-]+)(?:\[.*\])?==(\S+)", line):
                found.setdefault(pin.group(1), set()).add(pin.group(2))
        return found

    tested, image = pins("dev.lock"), pins(f"{name}.lock")
    other = {key: value for key, value in image.items() if not value <= tested.get(key, value)}
    assert other == {}
    assert len(set(image) & set(tested)) > 5


def test_the_stand_in_of_pyspark_stays_out() -> None:
    """It overwrites parts of pyspark; see requirements/overrides.txt."""
    for name in ("spark", "airflow"):
        lock = (ROOT / "requirements" / f"{name}.lock").read_text()
        assert "pyspark==" in lock
        assert "pyspark-client==" not in lock
