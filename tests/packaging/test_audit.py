"""The audit of the locked packages, against an index of the tests' own."""

import base64
import json
import zipfile
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.docs.scripts import script
from support.servers import serving

AUDIT = script("audit")
GOOD, YANKED, GONE = ("a" * 64, "b" * 64, "c" * 64)
TODAY = date(2026, 6, 1)
LOCK = f"""\
a-good_One==1.0 \\
    --hash=sha256:{GOOD} \\
    --hash=sha256:{GOOD[::-1]}
holed[extra]==2.0 ; python_version >= '3.12' \\
    --hash=sha256:{GOOD}
old==3.0 \\
    --hash=sha256:{YANKED} \\
    --hash=sha256:{GONE}
"""
HOLE = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "summary": "reads beyond the end",
    "fixed_in": ["2.1"],
    "withdrawn": None,
}


class FakeIndex(ThreadingHTTPServer):
    """An index with a few packages, which notes who asks for what."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None]] = []
        self.vulnerable = True
        self.url = f"http://127.0.0.1:{self.server_port}/simple"

    def answer(self, path: str) -> Any:
        """The document of a path, or None."""
        file = {"hashes": {"sha256": GOOD}, "yanked": False}
        match path.strip("/").split("/"):
            case ["simple", "old"]:
                return {"files": [{"hashes": {"sha256": YANKED}, "yanked": "it eats files"}]}
            case ["simple", _]:
                return {"files": [file]}
            case ["pypi", "holed", "2.0", "json"] if self.vulnerable:
                withdrawn = {**HOLE, "id": "PYSEC-2026-2", "withdrawn": "2026-01-01"}
                return {"vulnerabilities": [HOLE, withdrawn]}
            case ["pypi", _, _, "json"] if self.vulnerable:
                return {"vulnerabilities": []}
        return None


class _Handler(BaseHTTPRequestHandler):
    server: FakeIndex

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        found = self.server.answer(self.path)
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""


@pytest.fixture
def index() -> Iterator[FakeIndex]:
    with serving(FakeIndex()) as server:
        yield server


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "some.lock"
    path.write_text(LOCK.replace(f" \\\n    --hash=sha256:{GOOD[::-1]}", ""))
    return path


def audited(index: FakeIndex, lock: Path, *accepted: Any) -> Any:
    packages = AUDIT.read_lock(lock.read_text())
    return AUDIT.audit(packages, [AUDIT.AskedIndex(AUDIT.Index(index.url))], accepted, today=TODAY)


def accepting(until: date, id: str = "CVE-2026-1") -> Any:
    return AUDIT.Accepted("Holed", id, "nothing here reads", until)


def test_what_the_index_knows(index: FakeIndex, lock: Path) -> None:
    found = audited(index, lock)

    assert [(one.package, one.id) for one in found.findings] == [
        ("holed", "PYSEC-2026-1"),
        ("old", "files"),
        ("old", "yanked"),
    ]
    assert (found.exit_code, found.unknown) == (1, {})
    lines = list(AUDIT.report(found, 3))
    shown = ("holed 2.0", "PYSEC-2026-1", "CVE-2026-1", "reads beyond the end", "2.1")
    assert [word for word in shown if word not in lines[0]] == []
    assert [word for word in ("old 3.0", "yanked", "it eats files") if word not in lines[2]] == []


def test_what_was_accepted_counts_until_its_day(index: FakeIndex, lock: Path) -> None:
    lock.write_text(lock.read_text().partition("old==")[0])
    good = audited(index, lock, accepting(TODAY))
    assert (good.exit_code, [one.id for one in good.accepted]) == (0, ["PYSEC-2026-1"])

    late = audited(index, lock, accepting(date(2026, 5, 31)))
    assert (late.exit_code, late.expired) == (1, [accepting(date(2026, 5, 31))])
    assert "2026-05-31" in "\n".join(AUDIT.report(late, 2))

    idle = audited(index, lock, accepting(TODAY), accepting(TODAY, id="CVE-2020-9"))
    assert (idle.exit_code, [one.id for one in idle.idle]) == (1, ["CVE-2020-9"])


def test_what_cannot_be_looked_up_is_no_good_news(index: FakeIndex, lock: Path) -> None:
    index.vulnerable = False
    lock.write_text(lock.read_text().partition("old==")[0])

    found = audited(index, lock, accepting(TODAY))

    # Nothing is said of the entry: it may well be needed.
    assert (found.findings, found.idle, found.exit_code) == ([], [], 2)
    ((why, unknown),) = found.unknown.items()
    assert "404" in why
    assert [one.name for one in unknown] == ["a-good-one", "holed"]
    (line,) = [one for one in AUDIT.report(found, 2) if why in one]
    assert "a-good-one 1.0" in line
    gone = AUDIT.AskedIndex(AUDIT.Index("http://127.0.0.1:9/simple"))
    packages = AUDIT.read_lock(lock.read_text())
    (why,) = AUDIT.audit(packages, [gone], (), today=TODAY).unknown
    assert "URLError" in why


def test_a_password_is_sent_and_not_shown(index: FakeIndex, lock: Path) -> None:
    url = index.url.replace("http://", "http://me:hush@")
    source = AUDIT.AskedIndex(AUDIT.Index(url))
    assert "hush" not in source.index.url

    AUDIT.audit(AUDIT.read_lock(lock.read_text()), [source], (), today=TODAY)

    assert {who for _, who in index.asked} == {f"Basic {base64.b64encode(b'me:hush').decode()}"}
    for wrong in ("file:///etc", "ftp://me:hush@x/simple"):
        with pytest.raises(ValueError) as caught:
            AUDIT.Index(wrong)
        assert "hush" not in str(caught.value)


def advisory(id: str, *events: dict[str, str], **more: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": "Holed"}
    affected = {"package": package, "ranges": [{"type": "ECOSYSTEM", "events": list(events)}]}
    return {"id": id, "summary": "s", "affected": [{**affected, **more}]}


def test_a_file_of_advisories(tmp_path: Path, lock: Path) -> None:
    since, until = {"introduced": "0"}, {"fixed": "2.0.1"}
    known = [
        advisory("before", since, {"fixed": "2.0"}),
        advisory("affected", since, until),
        # In no order.
        advisory("again", {"fixed": "1.5"}, since, {"introduced": "1.9"}),
        advisory("between", since, {"fixed": "1.5"}, {"introduced": "2.1"}),
        advisory("last", since, {"last_affected": "2.0"}),
        advisory("later", {"introduced": "2.0.post1"}),
        advisory("listed", versions=["2.0"]),
        {**advisory("withdrawn", since), "withdrawn": "2026-01-01"},
    ]
    known[0]["affected"][0]["package"] = {"ecosystem": "PyPI", "name": "holed"}
    other = advisory("elsewhere", since)
    other["affected"][0]["package"]["ecosystem"] = "npm"
    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for one in (*known, other):
            archive.writestr(f"{one['id']}.json", json.dumps(one))

    source = AUDIT.Advisories(path)
    found = AUDIT.audit(AUDIT.read_lock(lock.read_text()), [source], (), today=TODAY)

    assert [one.id for one in found.findings] == ["affected", "again", "last", "listed"]
    assert found.findings[0].fixed_in == ("2.0.1",)


def test_the_command(
    index: FakeIndex,
    lock: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert AUDIT.main([str(lock)]) == 1
    assert "PYSEC-2026-1" in capsys.readouterr().out
    assert len(index.asked) == 6

    path = tmp_path / "all.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.json", json.dumps(advisory("x", {"introduced": "0"})))
    index.asked.clear()
    assert AUDIT.main([str(lock), "--offline", "--advisories", str(path)]) == 1
    assert "holed 2.0: x: s" in capsys.readouterr().out
    assert index.asked == []


@pytest.mark.parametrize(
    "entry",
    [
        'package = "a"\nid = "b"\nreason = "c"',
        'package = "a"\nid = "b"\nreason = " "\nuntil = 2026-01-01',
        'package = "a"\nid = "b"\nreason = "c"\nuntil = "2026-01-01"',
        'package = "a"\nid = "b"\nreason = "c"\nuntil = 2026-01-01\nmore = 1',
    ],
)
def test_an_entry_says_all_that_it_must(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "accepted.toml"
    path.write_text(f"[[accepted]]\n{entry}\n")
    with pytest.raises(ValueError, match=r"accepted\.toml"):
        AUDIT.read_accepted(path)
