"""Look for known vulnerabilities and withdrawn releases among the locked packages.

Usage: ``python scripts/audit.py [--advisories all.zip] [LOCK ...]``; without a lock, all of
``requirements/``. Of the index that pip is configured for it asks, for each package, which of its
releases are yanked, which files they have, and which vulnerabilities are known. Not every index
tells the last: then ``--advisories`` gives a file of OSV's, all of PyPI in one zip, and no
vulnerability is asked for anywhere. With ``--offline`` nothing is asked at all.

Findings that were looked at and accepted stand in ``requirements/accepted.toml``, each with a
reason and the day on which it is to be looked at again.

Ends with 1 when there are findings, and with 2 when something could not be looked up.

pip-audit (2.10) asks only ``pypi.org`` or an OSV server, ends with 0 when it skips packages that
the service does not know, and reads no file of advisories. It does not report yanked releases and
missing files either, and its ``--ignore-vuln`` has no reason and no last day. ``uv audit`` (0.13)
reads ``uv.lock``, and not these locks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Protocol

from package_index import REQUIREMENTS, Index, Package, read_lock
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ACCEPTED = REQUIREMENTS / "accepted.toml"

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that speaks against a locked package.

    Attributes
    ----------
    package, version : str
    id : str
        Of the advisory; ``yanked`` or ``files`` for what the index tells.
    text : str
    fixed_in : tuple of str
        Versions that have it no more.
    aliases : tuple of str
        Other names of the advisory.
    """

    package: str
    version: str
    id: str
    text: str
    fixed_in: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Accepted:
    """A finding that somebody looked at.

    Attributes
    ----------
    package, id, reason : str
    until : date
        The last day on which it counts.
    """

    package: str
    id: str
    reason: str
    until: date

    def covers(self, finding: Finding) -> bool:
        """Whether it is about this finding."""
        names = {finding.id, *finding.aliases}
        return canonicalize_name(self.package) == finding.package and self.id in names


class Source(Protocol):
    """Whoever knows something about packages."""

    def findings(self, package: Package) -> list[Finding]:
        """What is known of a package. Raises LookupError when it cannot be said."""


def read_accepted(path: Path) -> list[Accepted]:
    """What was accepted; each entry must have all that it needs.

    Raises
    ------
    ValueError
        An entry lacks something or has too much.
    """
    entries = tomllib.loads(path.read_text()).get("accepted", [])
    try:
        accepted = [Accepted(**entry) for entry in entries]
    except TypeError as error:
        raise ValueError(f"{path.name}: each entry has package, id, reason, until") from error
    for entry in accepted:
        # A time of day would not compare with a day.
        if type(entry.until) is not date or not entry.reason.strip():
            raise ValueError(f"{path.name}: {entry.id} needs a reason, and until as a date")
    return accepted


@dataclass(frozen=True, slots=True)
class AskedIndex:
    """What an index tells.

    Attributes
    ----------
    index : Index
    vulnerabilities : bool
        Whether to ask for known vulnerabilities too.
    """

    index: Index
    vulnerabilities: bool = True

    def findings(self, package: Package) -> list[Finding]:
        """Whether a release is yanked or changed, and its vulnerabilities."""
        return [*self._of_files(package), *self._of_advisories(package)]

    def _of_files(self, package: Package) -> Iterator[Finding]:
        files = {file["hashes"].get("sha256"): file for file in self.index.files(package)}
        gone = [digest for digest in package.hashes if digest not in files]
        if gone:
            text = f"the index has {len(gone)} of {len(package.hashes)} locked files no more"
            yield Finding(package.name, package.version, "files", text)
        # The reason, or just true.
        found = [files[digest].get("yanked", False) for digest in package.hashes & files.keys()]
        yanked = [why for why in found if why is not False]
        if yanked:
            why = next((reason for reason in yanked if isinstance(reason, str)), "no reason given")
            yield Finding(package.name, package.version, "yanked", f"the release was yanked: {why}")

    def _of_advisories(self, package: Package) -> Iterator[Finding]:
        if not self.vulnerabilities:
            return
        for known in self.index.vulnerabilities(package):
            if known.get("withdrawn") is None:
                yield Finding(
                    package.name,
                    package.version,
                    known["id"],
                    known.get("summary") or known.get("details") or "",
                    tuple(known.get("fixed_in", ())),
                    tuple(known.get("aliases", ())),
                )


class Advisories:
    """Advisories of OSV in a file: ``all.zip`` of the ecosystem PyPI."""

    def __init__(self, path: Path) -> None:
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".json"):
                    self._add(json.loads(archive.read(name)))

    def _add(self, advisory: dict[str, Any]) -> None:
        if "withdrawn" in advisory:
            return
        for affected in advisory.get("affected", ()):
            package = affected.get("package", {})
            if package.get("ecosystem") == "PyPI":
                entry = {**affected, "advisory": advisory}
                self._by_name.setdefault(canonicalize_name(package["name"]), []).append(entry)

    def findings(self, package: Package) -> list[Finding]:
        """The advisories that affect this version."""
        return [
            Finding(
                package.name,
                package.version,
                known["advisory"]["id"],
                known["advisory"].get("summary") or known["advisory"].get("details", ""),
                tuple(version for kind, version in _events(known) if kind == "fixed"),
                tuple(known["advisory"].get("aliases", ())),
            )
            for known in self._by_name.get(package.name, ())
            if _affects(known, package.version)
        ]


def _events(affected: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for span in affected.get("ranges", ()):
        if span.get("type") == "ECOSYSTEM":
            for event in span.get("events", ()):
                yield from event.items()


def _affects(affected: Mapping[str, Any], version: str) -> bool:
    """Whether a version is named, or lies behind an introduction and before what ends it."""
    if version in affected.get("versions", ()):
        return True
    wanted, inside = Version(version), False
    for kind, bound in _sorted_events(affected):
        if kind == "introduced":
            inside = inside or bound <= wanted
        elif kind == "fixed":
            inside = inside and wanted < bound
        elif kind == "last_affected":
            inside = inside and wanted <= bound
    return inside


def _sorted_events(affected: Mapping[str, Any]) -> list[tuple[str, Version]]:
    events = []
    for kind, bound in _events(affected):
        try:
            events.append((kind, Version(bound)))
        except InvalidVersion:
            # Of before versions had a form; nothing that is locked is that old.
            continue
    return sorted(events, key=lambda event: event[1])


@dataclass(slots=True)
class Audit:
    """What an audit came to.

    Attributes
    ----------
    findings : list of Finding
        That are not accepted.
    accepted : list of Finding
    expired : list of Accepted
        Whose day has passed, though the finding is still there.
    idle : list of Accepted
        That no finding needs any more.
    unknown : dict of str to list of Package
        Why something could not be looked up, and of which packages.
    """

    findings: list[Finding] = field(default_factory=list)
    accepted: list[Finding] = field(default_factory=list)
    expired: list[Accepted] = field(default_factory=list)
    idle: list[Accepted] = field(default_factory=list)
    unknown: dict[str, list[Package]] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """What the process ends with."""
        return 1 if self.findings or self.idle else 2 if self.unknown else 0


def audit(
    packages: Iterable[Package],
    sources: Sequence[Source],
    accepted: Sequence[Accepted],
    *,
    today: date,
) -> Audit:
    """Ask every source about every package."""
    result = Audit()
    asked = [(source, package) for package in sorted(set(packages)) for source in sources]

    def ask(question: tuple[Source, Package]) -> list[Finding] | LookupError:
        source, package = question
        try:
            return source.findings(package)
        except LookupError as error:
            return error

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = list(pool.map(ask, asked))
    found: set[Finding] = set()
    for (_, package), answer in zip(asked, answers, strict=True):
        if isinstance(answer, LookupError):
            result.unknown.setdefault(str(answer), []).append(package)
        else:
            found |= set(answer)
    for finding in sorted(found):
        covering = [entry for entry in accepted if entry.covers(finding)]
        if any(today <= entry.until for entry in covering):
            result.accepted.append(finding)
        else:
            result.findings.append(finding)
            result.expired += covering
    if not result.unknown:
        result.idle = [entry for entry in accepted if not any(map(entry.covers, found))]
    return result


def report(result: Audit, packages: int) -> Iterator[str]:
    """What the audit came to, line by line."""
    for finding in result.findings:
        fixed = f"; fixed in {', '.join(finding.fixed_in)}" if finding.fixed_in else ""
        names = " ".join((finding.id, *finding.aliases))
        text = " ".join(finding.text.split())[:200]
        yield f"{finding.package} {finding.version}: {names}: {text}{fixed}"
    for entry in result.expired:
        yield f"{entry.package}: {entry.id} was accepted until {entry.until}: look at it again"
    for entry in result.idle:
        yield f"{entry.package}: {entry.id} is accepted and no longer there: take the entry out"
    for why, of in result.unknown.items():
        yield f"{why}: {len(of)} packages, {of[0].name} {of[0].version} for one"
    accepted = f", {len(result.accepted)} accepted" if result.accepted else ""
    yield f"audit: {packages} packages, {len(result.findings)} findings{accepted}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the audit of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("locks", nargs="*", type=Path, metavar="LOCK")
    parser.add_argument("--advisories", type=Path, help="all.zip of OSV's ecosystem PyPI")
    parser.add_argument("--offline", action="store_true", help="ask no index")
    given = parser.parse_args(arguments)
    if given.offline and given.advisories is None:
        parser.error("--offline needs --advisories")
    sources: list[Source] = []
    if given.advisories is not None:
        sources.append(Advisories(given.advisories))
    if not given.offline:
        sources.append(AskedIndex(Index.of_pip(), given.advisories is None))
    locks = given.locks or sorted(REQUIREMENTS.glob("*.lock"))
    packages = {package for lock in locks for package in read_lock(lock.read_text())}
    today = datetime.now(UTC).date()
    result = audit(packages, sources, read_accepted(ACCEPTED), today=today)
    print("\n".join(report(result, len(packages))))
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
