"""What scripts ask of locks, of pip's configuration and of the index that it names."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
DEFAULT_INDEX = "https://pypi.org/simple"

_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_SIMPLE = "application/vnd.pypi.simple.v1+json"
_SECONDS = 60


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """A package as a lock has it.

    Attributes
    ----------
    name, version : str
        The name as indexes spell it.
    hashes : frozenset of str
        SHA-256 of the files that may be installed.
    """

    name: str
    version: str
    hashes: frozenset[str] = field(default=frozenset(), compare=False)


def read_lock(text: str) -> Iterator[Package]:
    """The packages of a lock, as ``uv pip compile --generate-hashes`` writes it."""
    for block in re.split(r"\n(?=\S)", text):
        found = _PINNED.match(block)
        if found is not None:
            yield Package(canonicalize_name(found[1]), found[2], frozenset(_HASH.findall(block)))


def pip_settings(python: str = sys.executable) -> dict[str, str]:
    """How pip is configured, by files and environment: ``index-url``, ``cert`` and so on."""
    command = [python, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    settings = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition("=")
        # Files come first and the environment, which wins, last.
        settings[key.rpartition(".")[2]] = value.strip("'\"")
    return settings


class Index:
    """A package index, by the simple interface that pip uses and PyPI's JSON beside it.

    What cannot be had raises LookupError.

    Parameters
    ----------
    url : str
        Address of the simple interface; a user and a password in it are sent and never shown.
    certificates : str or None
        File of the authorities that are trusted; those of the system by default.
    """

    def __init__(self, url: str, certificates: str | None = None) -> None:
        parts = urlsplit(url.rstrip("/"))
        host = parts.netloc.rpartition("@")[2]
        self.url = urlunsplit((parts.scheme, host, parts.path, "", ""))
        user = f"{parts.username or ''}:{parts.password or ''}"
        self._headers = {}
        if parts.username:
            self._headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        if parts.scheme not in ("http", "https"):
            raise ValueError("the index of pip's configuration is neither http:// nor https://")
        self._tls = ssl.create_default_context(cafile=certificates)

    @classmethod
    def of_pip(cls) -> Index:
        """The index that pip is configured for."""
        settings = pip_settings()
        return cls(settings.get("index-url", DEFAULT_INDEX), settings.get("cert"))

    def files(self, package: Package) -> list[dict[str, Any]]:
        """The files of a package in all its versions, as PEP 691 has them."""
        listed: list[dict[str, Any]] = self._get(f"{self.url}/{quote(package.name)}/", _SIMPLE)[
            "files"
        ]
        return listed

    def vulnerabilities(self, package: Package) -> list[dict[str, Any]]:
        """What PyPI's JSON says of a release; not every index has it."""
        base = self.url.removesuffix("/simple")
        address = f"{base}/pypi/{quote(package.name)}/{quote(package.version)}/json"
        known: list[dict[str, Any]] = self._get(address, "application/json")["vulnerabilities"]
        return known

    def metadata(self, package: Package) -> str:
        """What a wheel of a package says of itself."""
        for one in self.files(package):
            if one["hashes"].get("sha256") in package.hashes and one["filename"].endswith(".whl"):
                wheel, _ = self._read(urljoin(f"{self.url}/", one["url"]), "*/*")
                if hashlib.sha256(wheel).hexdigest() not in package.hashes:
                    raise LookupError(f"{one['filename']} is not the file that was locked")
                with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
                    (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
                    return archive.read(name).decode()
        raise LookupError(f"the index has no wheel of {package.name} {package.version}")

    def _get(self, address: str, accept: str) -> Any:
        content, kind = self._read(address, accept)
        if "json" not in kind:
            raise LookupError("the index answers with pages, not with JSON")
        return json.loads(content)

    def _read(self, address: str, accept: str) -> tuple[bytes, str]:
        parts = urlsplit(address)
        headers = {"Accept": accept}
        if parts.netloc == urlsplit(self.url).netloc:
            # Files may lie elsewhere, which is not to be told.
            headers |= self._headers
        if parts.scheme not in ("http", "https"):
            raise LookupError("the index names an address that is neither http:// nor https://")
        request = urllib.request.Request(address, headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(  # noqa: S310
                request, timeout=_SECONDS, context=self._tls
            ) as answer:
                return answer.read(), answer.headers.get_content_type()
        except urllib.error.HTTPError as error:
            error.close()
            raise LookupError(f"the index says {error.code}") from None
        except (OSError, ValueError) as error:
            raise LookupError(f"the index does not answer: {type(error).__name__}") from None
