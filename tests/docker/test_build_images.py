"""The script that builds the images: its commands, labels, times, and what it says of failures."""

import shlex
from pathlib import Path

import pytest
from support.docs.scripts import script
from support.kubernetes import dockerfile

from memwal.version import __version__ as VERSION

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = script("build_images")


@pytest.fixture(autouse=True)
def epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    assert SCRIPT.main(["--print", *arguments]) == 0
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]


def engine(folder: Path, body: str) -> None:
    program = folder / "podman"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)


def test_images_are_targets_of_the_dockerfile() -> None:
    stages = dockerfile.read(ROOT / "docker" / "Dockerfile").stages
    assert set(SCRIPT.IMAGES) <= set(stages)
    # What no other stage is made from is an image, and every image is built.
    used = {stage.base for stage in stages.values()} | {
        flag.removeprefix("--from=")
        for stage in stages.values()
        for step in stage.of("COPY")
        for flag in step.flags
    }
    assert set(stages) - used == set(SCRIPT.IMAGES)


@pytest.mark.parametrize("name", ["docker", "podman", "buildah"])
def test_every_image_has_a_command(capsys: pytest.CaptureFixture[str], name: str) -> None:
    commands = printed(capsys, "--engine", name, "--prefix", "registry.example/data/")

    assert [command[:2] for command in commands] == [[name, "build"]] * 3
    assert [command[-1] for command in commands] == [str(ROOT)] * 3
    for image, command in zip(SCRIPT.IMAGES, commands, strict=True):
        assert f"--target={image}" in command
        assert f"--tag=registry.example/data/{image}:{VERSION}" in command
        assert f"--file={ROOT / 'docker' / 'Dockerfile'}" in command
        assert "--build-arg=SOURCE_DATE_EPOCH=1700000000" in command
        # An option that Docker does not have.
        assert ("--timestamp=1700000000" in command) == (name != "docker")
        assert not any("push" in word for word in command)


def test_another_base_tag_and_certificates(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle.pem"
    with pytest.raises(SystemExit):
        SCRIPT.main(["--print", "--certificates", str(bundle)])
    assert str(bundle) in capsys.readouterr().err
    bundle.touch()

    arguments = ("--only", "memwal", "--base", "mirror.example/debian:12", "--tag", "t")
    (command,) = printed(capsys, *arguments, "--engine", "docker", "--certificates", str(bundle))
    (fresh,) = printed(capsys, *arguments, "--engine", "docker", "--no-cache")
    assert "--no-cache" in fresh

    assert "--build-arg=BASE=mirror.example/debian:12" in command
    assert "--tag=memwal:t" in command
    assert "--no-cache" not in command
    assert f"--secret=id=certificates,src={bundle}" in command


def test_the_first_failure_ends_it(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    engine(tmp_path, "exit 3")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    assert SCRIPT.main(["--engine", "podman"]) == 3
    said = capfd.readouterr()
    assert "memwal" in said.err.splitlines()[-1]
    assert len(said.out.splitlines()) == 1
