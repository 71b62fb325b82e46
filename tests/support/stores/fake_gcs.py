"""fake-gcs-server, an emulator of Google Cloud Storage, in its own process on 127.0.0.1.

It has to be there: ``go install github.com/fsouza/fake-gcs-server@latest``. Of Google's two
interfaces, obstore and Lance use the XML one, of which this server knows little: a gateway hands
what they ask, with their conditions, to its JSON interface. The server decides who comes first.
"""

import json
import re
import shutil
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from support.servers import free_port, running_program
from support.stores.store_gateway import Answer, Forward, Gateway, Request, gateway_before

PROGRAM = "fake-gcs-server"

_OBJECT = re.compile(r"/([^/?]+)/([^?]+)")


@dataclass(frozen=True)
class FakeGcs:
    """A running emulator.

    Attributes
    ----------
    endpoint : str
        Of the gateway.
    server : str
        Of the server itself.
    """

    endpoint: str
    server: str

    @property
    def storage_options(self) -> dict[str, str]:
        """What Lance and memwal need to reach it: the key of a service account says where."""
        key = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(key), "allow_http": "true"}

    def create_bucket(self) -> str:
        """Make a bucket of a new random name, and return that."""
        name = f"bucket-{uuid4().hex[:12]}"
        request = urllib.request.Request(
            f"{self.server}/storage/v1/b?project=tests",
            data=json.dumps({"name": name}).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30):
            return name


def is_installed() -> bool:
    """Whether its program is on the path."""
    return shutil.which(PROGRAM) is not None


@contextmanager
def running_fake_gcs(folder: Path) -> Iterator[FakeGcs]:
    """Run an emulator that keeps its objects in memory and its log in ``folder``."""
    port = free_port()
    server = f"http://127.0.0.1:{port}"
    where = ["-host", "127.0.0.1", "-port", str(port), "-scheme", "http"]
    names = ["-public-host", f"127.0.0.1:{port}", "-external-url", server]
    command = (PROGRAM, "-backend", "memory", *where, *names)
    health = f"{server}/_internal/healthcheck"
    with (
        running_program(*command, folder=folder, address=health),
        gateway_before(server) as gateway,
    ):
        gateway.rule = lambda request, forward: _translated(gateway, request, forward)
        yield FakeGcs(gateway.endpoint, server)


def _translated(gateway: Gateway, request: Request, forward: Forward) -> Answer | None:
    """Ask by the JSON interface what was asked by the XML one."""
    if request.method == "LIST":
        return _listed(gateway, request)
    found = _OBJECT.match(request.path)
    if found is None:
        return forward()
    bucket, name = found[1], quote(unquote(found[2]), safe="")
    if request.method == "PUT":
        query = f"uploadType=media&name={name}"
        expected = request.headers.get("x-goog-if-generation-match")
        if expected is not None:
            query += f"&ifGenerationMatch={expected}"
        path = f"/upload/storage/v1/b/{bucket}/o?{query}"
        answer = gateway.forward(replace(request, method="POST", path=path))
        return _described(answer) if answer.status == 200 else answer
    path = f"/storage/v1/b/{bucket}/o/{name}"
    if request.method == "DELETE":
        return gateway.forward(replace(request, path=path))
    described = gateway.forward(replace(request, method="GET", path=path))
    if described.status != 200:
        return described
    told = _described(described)
    answer = gateway.forward(replace(request, method="GET", path=f"{path}?alt=media"))
    ours = {key.lower() for key, _ in told.headers}
    kept = tuple(pair for pair in answer.headers if pair[0].lower() not in ours)
    return replace(answer, headers=kept + told.headers)


def _described(answer: Answer) -> Answer:
    about = json.loads(answer.body)
    changed = time.strptime(about["updated"][:19], "%Y-%m-%dT%H:%M:%S")
    headers = {
        "ETag": f'"{about["etag"]}"',
        "x-goog-generation": str(about["generation"]),
        "Last-Modified": time.strftime("%a, %d %b %Y %H:%M:%S GMT", changed),
    }
    return Answer(200, b"", tuple(headers.items()))


def _listed(gateway: Gateway, request: Request) -> Answer:
    url = urlsplit(request.path)
    asked = parse_qs(url.query)
    names = {"prefix": "prefix", "delimiter": "delimiter", "continuation-token": "pageToken"}
    query = "&".join(
        f"{theirs}={quote(asked[ours][0], safe='')}"
        for ours, theirs in names.items()
        if ours in asked
    )
    path = f"/storage/v1/b/{url.path.strip('/')}/o?{query}"
    answer = gateway.forward(replace(request, method="GET", path=path))
    if answer.status != 200:
        return answer
    found = json.loads(answer.body)
    contents = "".join(
        f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size>"
        f"<LastModified>{item['updated']}</LastModified><ETag>{item['etag']}</ETag></Contents>"
        for item in found.get("items", ())
    )
    folders = "".join(
        f"<CommonPrefixes><Prefix>{escape(prefix)}</Prefix></CommonPrefixes>"
        for prefix in found.get("prefixes", ())
    )
    token = found.get("nextPageToken", "")
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    body = f"<ListBucketResult>{contents}{folders}{more}</ListBucketResult>"
    return Answer(200, body.encode(), (("Content-Type", "application/xml"),))
