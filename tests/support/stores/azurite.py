"""Azurite, the emulator of Azure Blob Storage, in its own process on 127.0.0.1 and a free port.

It is an npm package and has to be there: ``npm install --global azurite``.
"""

import base64
import hashlib
import hmac
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from uuid import uuid4

from support.servers import free_port, running_program

PROGRAM = "azurite-blob"
# Every Azurite has this account and this key, which its manual prints.
ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

_VERSION = "2021-08-06"


@dataclass(frozen=True)
class Azurite:
    """A running emulator.

    Attributes
    ----------
    endpoint : str
        ``http://127.0.0.1:port``, without the account.
    """

    endpoint: str

    @property
    def storage_options(self) -> dict[str, str]:
        """What Lance and memwal need to reach it."""
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": ACCOUNT_KEY,
            "azure_storage_endpoint": f"{self.endpoint}/{ACCOUNT}",
            "allow_http": "true",
        }

    def create_container(self) -> str:
        """Make a container of a new random name, and return that."""
        name = f"container-{uuid4().hex[:12]}"
        date = formatdate(usegmt=True)
        signed = (
            f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{_VERSION}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        request = urllib.request.Request(
            f"{self.endpoint}/{ACCOUNT}/{name}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": _VERSION,
                "Authorization": f"SharedKey {ACCOUNT}:{_signature(signed)}",
                "Content-Length": "0",
            },
        )
        with urllib.request.urlopen(request, timeout=30):
            return name

    def shared_access(self, container: str, seconds: int) -> str:
        """A signature that allows everything in a container, for so long."""
        end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
        fields = {
            "sp": "racwdl",
            "st": "",
            "se": end,
            "resource": f"/blob/{ACCOUNT}/{container}",
            "si": "",
            "sip": "",
            "spr": "",
            "sv": _VERSION,
            "sr": "c",
        }
        # After these come a snapshot, an encryption scope and five headers: none of them.
        signature = _signature("\n".join([*fields.values(), *7 * [""]]))
        given = {"sp": "racwdl", "se": end, "sv": _VERSION, "sr": "c", "sig": signature}
        return urllib.parse.urlencode(given)


def _signature(text: str) -> str:
    digest = hmac.new(base64.b64decode(ACCOUNT_KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def is_installed() -> bool:
    """Whether its program is on the path."""
    return shutil.which(PROGRAM) is not None


@contextmanager
def running_azurite(folder: Path) -> Iterator[Azurite]:
    """Run an emulator that keeps its objects in memory and its log in ``folder``."""
    port = free_port()
    options = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"]
    quiet = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    endpoint = f"http://127.0.0.1:{port}"
    with running_program(PROGRAM, *options, *quiet, folder=folder, address=endpoint):
        yield Azurite(endpoint)
