"""Build the images of docker/Dockerfile with Docker, Podman or Buildah.

Usage: ``python scripts/build_images.py [--only NAME] [--engine ENGINE] [--print] ...``. The tag is
the version of the project; nothing is pushed. Times in the images are those of the last commit, or
``SOURCE_DATE_EPOCH``, so that Podman and Buildah make the same image of the same commit again.
Needs nothing but Python 3.11 and the engine.
"""

from __future__ import annotations

import argparse
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
IMAGES = ("memwal", "memwal-spark", "memwal-airflow")
ENGINES = ("docker", "podman", "buildah")
LABEL = "org.opencontainers.image"


@dataclass(frozen=True, slots=True)
class Source:
    """What an image is built from.

    Attributes
    ----------
    version : str
        Version of the project.
    revision : str
        Commit, with ``-dirty`` when files of it are changed; empty outside of a checkout.
    epoch : int
        Time of the image, in seconds since 1970.
    """

    version: str
    revision: str
    epoch: int


def git(*arguments: str) -> str:
    """Return what git answers in the project's folder; nothing without git or a checkout."""
    if shutil.which("git") is None:
        return ""
    done = subprocess.run(
        ["git", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def read_source(environ: Mapping[str, str] = os.environ) -> Source:
    """Return version, commit and time of the project's folder.

    Parameters
    ----------
    environ : mapping, default ``os.environ``
        Where ``SOURCE_DATE_EPOCH`` is read, in seconds; else the time of the last commit, else 0.
    """
    version = runpy.run_path(str(ROOT / "memwal" / "version.py"))["__version__"]
    epoch = environ.get("SOURCE_DATE_EPOCH") or git("log", "-1", "--format=%ct") or "0"
    revision = git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return Source(version, revision, int(epoch))


def default_base() -> str:
    """Return the base image that the Dockerfile names."""
    for line in DOCKERFILE.read_text().splitlines():
        if line.startswith("ARG BASE="):
            return line.removeprefix("ARG BASE=")
    raise SystemExit(f"{DOCKERFILE} has no ARG BASE=...: name the image that all build on there.")


def labels(source: Source, base: str) -> Iterator[str]:
    """Yield the labels that depend on what is built; the Dockerfile has the others."""
    created = datetime.fromtimestamp(source.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    name, _, digest = base.partition("@")
    found = {
        "version": source.version,
        "revision": source.revision,
        "created": created,
        "base.name": name,
        "base.digest": digest,
    }
    for key, value in found.items():
        if value:
            yield f"{LABEL}.{key}={value}"


def build_command(image: str, source: Source, options: argparse.Namespace) -> list[str]:
    """Return the engine's command that builds an image.

    Parameters
    ----------
    image : str
        One of :data:`IMAGES`: a target of the Dockerfile.
    source : Source
        What it is built from.
    options : argparse.Namespace
        ``engine``, ``base``, ``prefix``, ``tag``, ``no_cache`` and ``certificates`` of the command
        line.
    """
    command = [options.engine, "build", f"--file={DOCKERFILE}", f"--target={image}"]
    command.append(f"--tag={options.prefix}{image}:{options.tag or source.version}")
    if options.engine != "docker":
        # Docker has no option for the times of files; its image has the time of the label alone.
        command += [f"--timestamp={source.epoch}", "--layers"]
    command += [f"--build-arg=BASE={options.base}", f"--build-arg=SOURCE_DATE_EPOCH={source.epoch}"]
    command += [f"--label={label}" for label in labels(source, options.base)]
    if options.no_cache:
        command.append("--no-cache")
    if options.certificates:
        command.append(f"--secret=id=certificates,src={options.certificates.resolve()}")
    return [*command, str(ROOT)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="Build the images of memwal.")
    parser.add_argument(
        "--only",
        action="append",
        choices=IMAGES,
        help="build this image; may be repeated (default: all)",
    )
    parser.add_argument(
        "--engine", choices=ENGINES, help="what builds (default: the first of these that is there)"
    )
    parser.add_argument(
        "--no-cache", action="store_true", help="take over no step of an earlier build"
    )
    parser.add_argument("--print", action="store_true", help="print the commands, run none")
    parser.add_argument(
        "--prefix", default="", help="before each name, such as registry.example/data/"
    )
    parser.add_argument("--tag", help="default: the version of the project")
    parser.add_argument(
        "--base",
        default=default_base(),
        help="a Debian 12, such as a mirror's copy (default: the Dockerfile's)",
    )
    parser.add_argument(
        "--certificates",
        type=Path,
        metavar="FILE",
        help="PEM file of all authorities to trust while building, behind a proxy that needs that",
    )
    options = parser.parse_args(arguments)
    if options.certificates and not options.certificates.is_file():
        parser.error(f"there is no file {options.certificates}")
    options.engine = options.engine or next(filter(shutil.which, ENGINES), None)
    if options.engine is None:
        parser.error(f"there is none of {', '.join(ENGINES)}: install one, or name it by --engine")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    options = parse(arguments)
    source = read_source()
    for image in options.only or IMAGES:
        command = build_command(image, source, options)
        print(shlex.join(command), flush=True)
        if options.print:
            continue
        try:
            done = subprocess.run(command, check=False)
        except FileNotFoundError:
            print(f"there is no {options.engine}; choose by --engine", file=sys.stderr)
            return 1
        if done.returncode != 0:
            print(f"{image} was not built; the message stands above", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
