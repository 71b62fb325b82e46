"""The built page with canned answers, below a prefix, and a stand-in for the Airflow around it."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.airflow.page_answers import Canned, canned

STATIC = Path(__file__).resolve().parents[3] / "plugins" / "memwal_airflow" / "web" / "static"
PREFIX = "/team-a/memwal/"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
# As Airflow 3.3 frames the page of a plugin.
SANDBOX = "allow-scripts allow-same-origin allow-forms allow-downloads"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}


class PageServer(ThreadingHTTPServer):
    """Serves the page on a free port of 127.0.0.1.

    Attributes
    ----------
    answers : Canned
        What the API answers.
    may_write, logged_in, broken : bool
        Who asks, and whether the API fails.
    posted : list of tuple
        Path, headers and body of every POST.
    asked : list of str
        Paths of every GET of the API.
    """

    daemon_threads = True

    def __init__(self, *, tables: int = 500) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: Canned = canned(tables=tables)
        self.may_write = True
        self.logged_in = True
        self.broken = False
        self.posted: list[tuple[str, dict[str, str], Any]] = []
        self.asked: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def page(self) -> str:
        """Address of the page."""
        return self.origin + PREFIX


class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/around":
            self._send(200, _around(parse_qs(parts.query)["theme"][0]), "text/html", policy=False)
        elif parts.path.startswith(PREFIX + "api/"):
            name = parts.path.removeprefix(PREFIX + "api/")
            self.server.asked.append(name)
            self._api(name, {key: found[0] for key, found in parse_qs(parts.query).items()})
        elif parts.path.startswith(PREFIX):
            self._file(parts.path.removeprefix(PREFIX) or "index.html")
        else:
            self._send(
                200, f"<title>Airflow</title><h1>{parts.path}</h1>", "text/html", policy=False
            )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.removeprefix(PREFIX + "api/")
        self.server.posted.append((name, dict(self.headers), body))
        if not self.server.may_write:
            self._json(403, {"detail": "Forbidden"})
        elif name.endswith("/runs"):
            link = "/dags/memwal_flights/runs/manual__1"
            self._json(202, {"dag_run_id": "manual__1", "link": link})
        else:
            self._json(200, {"retried": len(body["regions"])})

    def _api(self, name: str, query: dict[str, str]) -> None:
        answers = self.server.answers
        if not self.server.logged_in:
            self._json(401, {"detail": "Not authenticated"})
        elif self.server.broken:
            self._json(503, {"detail": "The catalog does not answer; look at its database."})
        elif name == "fleet":
            self._json(200, answers.fleet())
        else:
            table, _, rest = name.removeprefix("tables/").partition("/")
            found = answers.table(unquote(table))
            if found is None:
                self._json(404, {"detail": f"No table {table!r} is registered."})
            elif rest == "history":
                self._json(200, answers.history(float(query["hours"])))
            elif rest == "regions":
                row = next(row for row in answers.rows if row["table"] == unquote(table))
                self._json(200, {"at": row["sampled_at"], "regions": answers.regions(row)})
            elif rest == "runs":
                self._json(200, answers.runs())
            elif rest == "collection":
                self._json(200, answers.collection())
            else:
                self._json(200, {**found, "may_write": self.server.may_write})

    def _file(self, name: str) -> None:
        path = (STATIC / name).resolve()
        if STATIC not in path.parents or not path.is_file():
            self._send(404, "not here", "text/plain")
        else:
            self._send(200, path.read_bytes(), TYPES[path.suffix])

    def _json(self, status: int, body: Any) -> None:
        self._send(status, json.dumps(body), "application/json")

    def _send(self, status: int, body: str | bytes, kind: str, *, policy: bool = True) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        if policy:
            self.send_header("Content-Security-Policy", POLICY)
        self.end_headers()
        self.wfile.write(content)


def _around(theme: str) -> str:
    frame = f'<iframe title="memwal" sandbox="{SANDBOX}" src="{PREFIX}"></iframe>'
    style = "<style>html,body{margin:0;height:100%}iframe{border:0;width:100%;height:100%}</style>"
    return f'<!doctype html><html lang="en" class="{theme}"><title>Airflow</title>{style}{frame}'
