import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import memwal
from memwal.errors import StoreAccessError
from memwal.storage.location import TableLocation
from memwal.util.log import redact, redact_store_response, secret_values


def test_only_public_options_are_shown() -> None:
    shown = redact(
        {
            "aws_region": "eu-west-1",
            "AWS_ENDPOINT": "https://user:word@minio:9000/x",
            "allow_http": "true",
            "aws_secret_access_key": "secret-1",
            "aws_access_key_id": "secret-2",
            "azure_storage_sas_token": "secret-3",
            "google_service_account_key": "secret-4",
            "headers.authorization": "secret-5",
            "something_new": "secret-6",
        }
    )

    assert shown == {
        "aws_region": "eu-west-1",
        "AWS_ENDPOINT": "https://minio:9000/x",
        "allow_http": "true",
        "aws_secret_access_key": "***",
        "aws_access_key_id": "***",
        "azure_storage_sas_token": "***",
        "google_service_account_key": "***",
        "headers.authorization": "***",
        "something_new": "***",
    }


def test_secrets_are_collected_from_options_and_environment() -> None:
    values = secret_values(
        {"aws_secret_access_key": "longer-secret", "aws_region": "eu-west-1", "x": "short"},
        {"AWS_SESSION_TOKEN": "secret", "AWS_REGION": "eu-west-1", "HOME": "/home/somebody"},
    )

    assert values == ("longer-secret", "secret")


def test_a_store_response_is_cut_out_of_an_error_except_its_code() -> None:
    body = "<?xml version='1.0'?>\n<Error><Code>{}</Code><Token>{}</Token></Error>"
    for given, left in (
        (f"403: {body.format('SignatureDoesNotMatch', 'hunter2')}, at 1", "SignatureDoesNotMatch"),
        ("403: <Error><Code>a b</Code><Token>hunter2\n</Token></Error>, at 1", "***"),
    ):
        error = OSError(given)
        redact_store_response(error)
        assert str(error) == f"403: {left}, at 1"
    torn = ValueError("403: <Error><Token>hunter2")
    redact_store_response(torn)
    assert str(torn) == "403: ***"
    plain = OSError(2, "no <such> file")
    redact_store_response(plain)
    assert plain.args == (2, "no <such> file")


class _Echo(BaseHTTPRequestHandler):
    """Refuses every request, and repeats its headers, as S3 does in a canonical request."""

    def do_GET(self) -> None:
        said = f"<CanonicalRequest>{self.headers}</CanonicalRequest>"
        body = f"<Error><Code>SignatureDoesNotMatch</Code>{said}</Error>".encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_a_token_in_a_store_response_is_in_no_traceback() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    options = {
        "aws_access_key_id": "hunter2-key",
        "aws_secret_access_key": "hunter2-secret",
        "aws_session_token": "hunter2-token",
        "aws_region": "us-east-1",
        "aws_endpoint": f"http://127.0.0.1:{server.server_port}",
        "allow_http": "true",
    }
    location = TableLocation("s3://bucket/t.lance", options)
    try:
        for look in (
            lambda: memwal.open(location.uri, storage_options=options),
            lambda: location.store.get("x"),
            lambda: list(location.store.list("")),
        ):
            with pytest.raises(StoreAccessError) as caught:
                look()
            assert "hunter2" not in "".join(traceback.format_exception(caught.value))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
