"""An S3 server for tests: ministack in its own process, on 127.0.0.1 and a free port.

It was chosen because its conditional puts are exact: moto's server lets two creators of one key
win now and then.
"""

import os
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from support.servers import free_port, running_program

ACCESS_KEY = "emulator-key"
SECRET_KEY = "emulator-secret"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Emulator:
    """A running emulator.

    Attributes
    ----------
    endpoint : str
        ``http://127.0.0.1:port``.
    storage_options : dict
        What Lance and memwal need to reach it.
    """

    endpoint: str
    storage_options: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        options = {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": REGION,
        }
        object.__setattr__(self, "storage_options", options)

    def create_bucket(self, name: str | None = None) -> str:
        """Make a bucket, of a new random name unless one is given, and return its name."""
        bucket = name or f"bucket-{uuid4().hex[:12]}"
        request = urllib.request.Request(f"{self.endpoint}/{bucket}", method="PUT")
        with urllib.request.urlopen(request, timeout=240):
            return bucket


@contextmanager
def running_emulator(scratch: Path) -> Iterator[S3Emulator]:
    """Run an emulator that keeps its few files in ``scratch``."""
    port = free_port()
    environment = {
        "PATH": os.environ.get("PATH", ""),
        "HOME": str(scratch),
        "TMPDIR": str(scratch),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3",
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
        # It would look for containers of its own to stop; keep it away from a real Docker.
        "DOCKER_HOST": f"unix://{scratch}/no-docker.sock",
    }
    endpoint = f"http://127.0.0.1:{port}"
    command = (sys.executable, "-m", "ministack")
    with running_program(*command, folder=scratch, env=environment, address=endpoint):
        yield S3Emulator(endpoint)
