"""Ceph's S3: one monitor, one store in memory and one gateway, in a folder and for any user.

The programs must be there: scripts/slow_tools.py brings them. ``PYTHONPATH=tests python -m
support.stores.radosgw FOLDER`` runs a cluster until it is interrupted, and prints what reaches it.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from support.servers import free_port, running_program
from support.waiting import until

ACCESS_KEY = "radosgw-key"
SECRET_KEY = "radosgw-secret"

PROGRAMS = (
    "ceph",
    "ceph-authtool",
    "ceph-mon",
    "ceph-osd",
    "monmaptool",
    "radosgw",
    "radosgw-admin",
)

_ALL = {"mon": "allow *", "osd": "allow *"}
_CAPABILITIES = {
    "mon.": {"mon": "allow *"},
    "client.admin": _ALL,
    "client.rgw": _ALL,
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
}

_START_SECONDS = 120.0
_MEMORY_BYTES = 4 << 30

_CONFIGURATION = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon_port}
auth allow insecure global id reclaim = false
run dir = {folder}
log file = {folder}/$name.log
admin socket =
keyring = {folder}/keyring
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon warn on pool no redundancy = false
mon pg warn min per osd = 0
osd crush chooseleaf type = 0
[mon]
mon data = {folder}/mon
mon cluster log file = {folder}/cluster.log
mon data avail crit = 1
[osd]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = {memory}
osd op num shards = 2
osd op num threads per shard = 1
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{port}
rgw data = {folder}/rgw
rgw thread pool size = 64
rgw enable gc threads = false
rgw enable lc threads = false
"""


@dataclass(frozen=True)
class RadosGateway:
    """A running gateway.

    Attributes
    ----------
    endpoint : str
        ``http://127.0.0.1:port``.
    folder : Path
        Where it keeps everything, its logs among it.
    """

    endpoint: str
    folder: Path

    @property
    def storage_options(self) -> dict[str, str]:
        """What Lance and memwal need to reach it."""
        return {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": "default",
        }

    def create_bucket(self) -> str:
        """Make a bucket of a new random name, and return that."""
        name = f"bucket-{uuid4().hex[:12]}"
        self._client().create_bucket(Bucket=name)
        return name

    def create_user(self, name: str) -> dict[str, str]:
        """Make a user without rights, and return what reaches the gateway as that user."""
        environment = {**os.environ, "CEPH_CONF": str(self.folder / "ceph.conf")}
        user = ("user", "create", "--uid", name, "--display-name", name)
        keys = ("--access-key", f"key-of-{name}", "--secret-key", f"secret-of-{name}")
        _run(environment, "radosgw-admin", *user, *keys)
        return {
            **self.storage_options,
            "aws_access_key_id": f"key-of-{name}",
            "aws_secret_access_key": f"secret-of-{name}",
        }

    def put_policy(
        self, bucket: str, statements: Mapping[str, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Let users do what statements say, by a policy of the bucket."""
        allowed = [
            {
                **one,
                "Sid": f"{user} {one['Sid']}",
                "Principal": {"AWS": f"arn:aws:iam:::user/{user}"},
            }
            for user, of in statements.items()
            for one in of
        ]
        policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
        self._client().put_bucket_policy(Bucket=bucket, Policy=policy)

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="default",
        )


def missing_programs() -> list[str]:
    """Which of the programs are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextlib.contextmanager
def running_radosgw(folder: Path) -> Iterator[RadosGateway]:
    """Run a cluster that keeps everything in ``folder``, which is empty."""
    port, mon_port = free_port(), free_port()
    fsid = str(uuid4())
    configuration = folder / "ceph.conf"
    configuration.write_text(
        _CONFIGURATION.format(
            fsid=fsid, folder=folder, port=port, mon_port=mon_port, memory=_MEMORY_BYTES
        )
    )
    for name in ("mon", "osd", "rgw"):
        (folder / name).mkdir()
    environment = {**os.environ, "CEPH_CONF": str(configuration)}
    monmap = folder / "monmap"
    address = f"v2:127.0.0.1:{mon_port}"
    _run(environment, "monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monmap)
    keyring = folder / "keyring"
    _make_keys(environment, keyring)
    _run(environment, "ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring)
    with contextlib.ExitStack() as daemons:

        def start(*command: str, address: str | None = None) -> None:
            program = running_program(*command, folder=folder, env=environment, address=address)
            daemons.enter_context(program)

        start("ceph-mon", "-f", "-i", "a")
        osd = str(uuid4())
        _run(environment, "ceph", "--connect-timeout", "60", "osd", "create", osd)
        _run(environment, "ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        start("ceph-osd", "-f", "-i", "0")
        until(lambda: "1 up" in _run(environment, "ceph", "osd", "stat"))
        user = ("user", "create", "--uid", "tests", "--display-name", "tests")
        keys = ("--access-key", ACCESS_KEY, "--secret-key", SECRET_KEY)
        _run(environment, "radosgw-admin", *user, *keys)
        endpoint = f"http://127.0.0.1:{port}"
        start("radosgw", "-f", "-n", "client.rgw", address=endpoint)
        yield RadosGateway(endpoint, folder)


def _make_keys(environment: Mapping[str, str], keyring: Path) -> None:
    create = ("--create-keyring",)
    for name, capabilities in _CAPABILITIES.items():
        allowed = [word for what in capabilities.items() for word in ("--cap", *what)]
        _run(environment, "ceph-authtool", *create, keyring, "--gen-key", "-n", name, *allowed)
        create = ()


def _run(environment: Mapping[str, str], *command: object) -> str:
    done = subprocess.run(
        list(map(str, command)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=_START_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr[-2000:]}")
    return done.stdout + done.stderr


def _serve(folder: Path) -> None:
    folder.mkdir(parents=True)
    with running_radosgw(folder) as gateway:
        print(json.dumps({"bucket": gateway.create_bucket(), **gateway.storage_options}))
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                time.sleep(3600)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]).resolve())
