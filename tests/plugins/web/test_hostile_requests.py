"""Requests at random to every route: an answer or a refusal, and never a failure."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hostile.harness import Broken
from hostile.values import mutated, one_of_these, texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from memwal.catalog import Catalog

AsUser = Callable[..., Any]

_METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "get", "\u00e9")
_RUN = {"jobs": ["merge"], "regions": ["0" * 32], "force": False, "dry_run": True}
_HEADERS = (
    ("origin", "http://["),
    ("origin", "null"),
    ("host", "["),
    ("host", "a b:x"),
    ("sec-fetch-site", "cross-site"),
    ("content-type", "text/html"),
    ("content-length", "-1"),
    ("authorization", "Bearer \xff.x.y"),
    ("authorization", "Basic e30="),
    ("cookie", "_token=x; _token=y"),
    ("x-forwarded-host", "evil.example"),
    ("if-none-match", "*"),
    ("range", "bytes=99-1,-5,x"),
    ("accept", "\x00"),
)
# What is not the page's to answer: the table is nowhere, and the page may not be built.
_ELSEWHERE = {("/api/tables/flights/collection", 502), ("/", 503)}


@dataclass(frozen=True)
class Request:
    """A request as a server hands it over."""

    method: str
    path: str
    query: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What an app sent."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


@dataclass(frozen=True)
class Page:
    """The app, and a user of it."""

    app: Any
    token: str
    runner: asyncio.Runner

    def send(self, request: Request) -> Answer:
        """Send a request, also one that no client would."""
        return self.runner.run(self._send(request))

    async def _send(self, request: Request) -> Answer:
        headers = {
            "host": "testserver",
            "authorization": f"Bearer {self.token}",
            "content-type": "application/json",
            "x-requested-with": "memwal",
            **dict(request.headers),
        }
        path = "/memwal" + quote(request.path.encode(errors="surrogatepass"), safe="/%")
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": request.method,
            "scheme": "http",
            "server": ("testserver", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": quote(request.query, safe="=&+%", errors="replace").encode(),
            "headers": [(k.encode(), v.encode("latin-1")) for k, v in headers.items()],
            "state": {},
            "extensions": {},
        }
        sent: list[dict[str, Any]] = []
        chunks = _chunks(request.body)

        async def receive() -> dict[str, Any]:
            return await anext(chunks)

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        start, *rest = sent
        return Answer(
            start["status"],
            dict(start["headers"]),
            b"".join(message.get("body", b"") for message in rest),
        )


async def _chunks(body: bytes) -> AsyncIterator[dict[str, Any]]:
    for start in range(0, max(len(body), 1), 1 << 16):
        part = body[start : start + (1 << 16)]
        more = start + (1 << 16) < len(body)
        yield {"type": "http.request", "body": part, "more_body": more}
    while True:
        yield {"type": "http.disconnect"}


@pytest.fixture
def page(served: Any, as_user: AsUser, catalog: Catalog) -> Iterator[Page]:
    """Return the app with a table that everybody may see, for one who may do everything."""
    catalog.register("flights", uri="/nowhere/flights.lance")
    token = as_user("admin").headers["Authorization"].removeprefix("Bearer ")
    with asyncio.Runner() as runner:
        yield Page(served, token, runner)


def _paths(served: Any) -> list[str]:
    (mount,) = (route for route in served.routes if getattr(route, "path", "") == "/memwal")
    return sorted({route.path for route in mount.app.routes})


def _requests(served: Any) -> SearchStrategy[Request]:
    """Requests to every route of the app, by its own list of them."""
    part = texts("flights", "memwal__flights", "assets/x", "../app.py", "%2e%2e%2fapp.py")
    path = st.builds(
        lambda path, name, rest: (
            path.replace("{name}", name).replace("{dag_id}", rest).replace("{path:path}", rest)
        ),
        one_of_these(*_paths(served)),
        st.sampled_from(("flights", "flights", "flights", "absent", "\ud7ff", "a/b", "%00")),
        part,
    )
    value = (
        st.sampled_from(("0", "1", "-1", "1e9", "nan", "inf", "9" * 30, "merge", "%ff", ""))
        | texts()
    )
    query = st.lists(
        st.builds("{}={}".format, st.sampled_from(("hours", "limit", "job", "x", "")), value),
        max_size=3,
    ).map("&".join)
    body = (
        mutated(_RUN, {"regions": []}).map(json.dumps).map(str.encode)
        | st.binary(max_size=30)
        | texts().map(lambda text: text.encode(errors="surrogatepass"))
        | st.integers(1, 5_000).map(lambda depth: b'{"jobs":' + b"[" * depth)
        | one_of_these(b'{"jobs": ["\\ud800"]}', b'{"\\ud800": 1}', b'{"force": 1e400}')
        | one_of_these(b"[" * (2 << 20), b'{"jobs": ["' + b"x" * (1 << 19) + b'"]}')
    )
    headers = st.lists(one_of_these(*_HEADERS), max_size=2).map(tuple)
    return st.builds(
        Request,
        st.sampled_from((*_METHODS, "GET", "POST", "POST", "POST")),
        path,
        query,
        headers,
        body,
    )


def _check(page: Page, request: Request) -> None:
    try:
        answer = page.send(request)
    except Exception as error:
        raise Broken(f"{request} raised {type(error).__name__}: {error}") from error
    if answer.status >= 500 and (request.path, answer.status) not in _ELSEWHERE:
        raise Broken(f"{request} was answered with {answer.status}: {answer.body[:500]!r}")
    if "\n" in unquote(request.path):
        # No mount of the server has a path with a line break in it: the answer is not ours.
        return
    if b"content-security-policy" not in answer.headers:
        raise Broken(f"{request} was answered without a policy")
    if answer.status >= 400 and request.path.startswith("/api") and request.method != "HEAD":
        told = json.loads(answer.body)
        if not str(told["detail"]).strip():
            raise Broken(f"{request} was refused without a word")
    if b"root:x:" in answer.body or b"memwal_airflow.web" in answer.body:
        raise Broken(f"{request} got a file: {answer.body[:200]!r}")


def _fuzz(page: Page, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(_requests(page.app))
    def attempt(request: Request) -> None:
        _check(page, request)

    attempt()


def test_requests(page: Page) -> None:
    _fuzz(page, 60)


@pytest.mark.slow
def test_many_requests(page: Page) -> None:
    _fuzz(page, 5_000)


@pytest.mark.parametrize(
    "request_",
    [
        Request("POST", "/api/tables/flights/runs", "", (("origin", "http://["),), b"{}"),
        Request("POST", "/api/tables/flights/runs", "", (("host", "["), ("origin", "x")), b"{}"),
        Request("POST", "/api/tables/flights/runs", "", (), b'{"jobs": ["\\ud800"]}'),
        Request("POST", "/api/tables/flights/retry", "", (), b'{"\\ud800": 1}'),
        Request("POST", "/api/tables/flights/runs", "", (), b'{"jobs":' + b"[" * 100_000),
        Request("POST", "/api/tables/flights/runs", "", (), b"[" * (2 << 20)),
    ],
    ids=["origin", "host", "half a character", "half a name", "depth", "size"],
)
def test_requests_that_once_failed(page: Page, request_: Request) -> None:
    _check(page, request_)
    assert 400 <= page.send(request_).status < 500


def test_a_route_that_fails_is_noticed(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    from memwal_airflow.web import views

    monkeypatch.setattr(views, "table_history", broken)
    with pytest.raises(Broken, match="KeyError"):
        _check(page, Request("GET", "/api/tables/flights/history", "hours=1", (), b""))
