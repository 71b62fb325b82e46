"""What hands out temporary keys of S3: a security token service, and a container's endpoint."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ssl import SSLContext
from urllib.parse import parse_qs

from support.servers import serving
from support.stores.store_gateway import Sessions

_ASSUMED = """\
<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>{AccessKeyId}</AccessKeyId><SecretAccessKey>{SecretAccessKey}</SecretAccessKey>
<SessionToken>{Token}</SessionToken><Expiration>{Expiration}</Expiration>
</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"""


class TokenService(ThreadingHTTPServer):
    """Gives keys of ``sessions`` for ``seconds`` each to whoever shows ``identity``.

    ``identity`` is the token of a web identity, or what a container sends as ``Authorization``.
    """

    daemon_threads = True

    def __init__(
        self, sessions: Sessions, seconds: float, identity: str, tls: SSLContext | None
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_side=True)
        self.sessions = sessions
        self.seconds = seconds
        self.identity = identity
        self.refused = 0
        self.endpoint = f"http{'s' if tls else ''}://127.0.0.1:{self.server_address[1]}"

    def keys(self) -> dict[str, str]:
        """New keys, as AWS spells them."""
        issued = self.sessions.issue(self.seconds)
        end = datetime.fromtimestamp(int(issued["expires_at_millis"]) / 1000, UTC)
        return {
            "AccessKeyId": issued["aws_access_key_id"],
            "SecretAccessKey": issued["aws_secret_access_key"],
            "Token": issued["aws_session_token"],
            "Expiration": f"{end:%Y-%m-%dT%H:%M:%SZ}",
        }


class _Handler(BaseHTTPRequestHandler):
    server: TokenService

    def do_GET(self) -> None:
        self._answer(self.headers.get("Authorization"), json.dumps)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        asked = parse_qs(body or self.path.partition("?")[2])
        token = asked.get("WebIdentityToken", [""])[0]
        self._answer(token, lambda keys: _ASSUMED.format(**keys))

    def _answer(self, identity: str | None, spelt: Callable[[dict[str, str]], str]) -> None:
        good = identity == self.server.identity
        self.server.refused += not good
        body = spelt(self.server.keys()).encode() if good else b""
        self.send_response(200 if good else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Stay silent."""


@contextmanager
def token_service(
    sessions: Sessions, *, seconds: float, identity: str, tls: SSLContext | None = None
) -> Iterator[TokenService]:
    """Run a service."""
    with serving(TokenService(sessions, seconds, identity, tls)) as service:
        yield service
