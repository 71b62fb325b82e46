"""A Kubernetes API server for tests: as much of one as a Spark driver's life takes, with faults.

It keeps pods, config maps and services, answers requests for them as the real one does (names are
taken once, deletions have preconditions, lists go by labels, watches stream), and fails as told:
before it does what it was asked for, or after.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from support.servers import serving

PATH = re.compile(
    r"/api(?:s/networking\.k8s\.io)?/v1/namespaces/(?P<namespace>[^/]+)/"
    r"(?P<kind>pods|configmaps|services|networkpolicies)(?:/(?P<name>[^/]+))?(?P<log>/log)?"
)
KINDS = {
    "pods": "Pod",
    "configmaps": "ConfigMap",
    "services": "Service",
    "networkpolicies": "NetworkPolicy",
}
STREAM_SECONDS = 30.0


@dataclass(kw_only=True)
class Fault:
    """How a request fails.

    Attributes
    ----------
    method, path : str
        Which; the path is a regular expression that is looked for.
    status : int
        What it is answered; 0 closes the connection without an answer.
    after : bool
        Whether it takes effect all the same.
    times : int
        How often.
    """

    method: str
    path: str
    status: int = 500
    after: bool = False
    times: int = 1


@dataclass
class Pod:
    """A pod of the server, for whoever plays the kubelet."""

    server: KubernetesServer
    name: str
    namespace: str = "spark"

    @property
    def body(self) -> dict[str, Any]:
        """As the API has it."""
        return self.server.objects["pods", self.namespace, self.name]

    @property
    def exists(self) -> bool:
        """Whether the server knows it."""
        return ("pods", self.namespace, self.name) in self.server.objects

    @property
    def labels(self) -> dict[str, str]:
        """Its labels."""
        return dict(self.body["metadata"]["labels"])

    @property
    def arguments(self) -> list[str]:
        """Arguments of the driver's container."""
        return list(self.body["spec"]["containers"][0]["args"])

    def write(self, *lines: str) -> None:
        """Let the driver write lines of its log."""
        with self.server.lock:
            log = self.server.logs.setdefault(self.body["metadata"]["uid"], [])
            log += [(datetime.now(UTC), line) for line in lines]

    def wait(self, reason: str, message: str = "") -> None:
        """Let the container wait for a reason."""
        self._status("Pending", {"waiting": {"reason": reason, "message": message}})

    def condition(self, reason: str, message: str) -> None:
        """Let the scheduler find no place for it."""
        found = {
            "type": "PodScheduled",
            "status": "False",
            "reason": reason,
            "message": message,
        }
        self._status("Pending", None, conditions=[found])

    def run(self) -> None:
        """Let it run."""
        self._status("Running", {"running": {"startedAt": _now()}})

    def end(self, code: int = 0, *, reason: str | None = None) -> None:
        """Let the container end."""
        state = {
            "terminated": {
                "exitCode": code,
                "reason": reason or ("Error" if code else "Completed"),
                "finishedAt": _now(),
            }
        }
        self._status("Failed" if code else "Succeeded", state)

    def evict(self, reason: str, message: str) -> None:
        """Let the node end it, with no word about its container."""
        self._status("Failed", None, reason=reason, message=message)

    def vanish(self) -> None:
        """Delete it, as somebody else would."""
        self.server.forget("pods", self.namespace, self.name)

    def _status(self, phase: str, state: dict[str, Any] | None, **more: Any) -> None:
        with self.server.lock:
            name = self.body["spec"]["containers"][0]["name"]
            status: dict[str, Any] = {"phase": phase, **more}
            if state is not None:
                one = {"name": name, "state": state, "ready": False, "restartCount": 0}
                status["containerStatuses"] = [{**one, "image": "spark", "imageID": ""}]
            self.body["status"] = status
            self.server.changed("pods", self.body, "MODIFIED")


@dataclass
class KubernetesServer:
    """A running server.

    Attributes
    ----------
    address : str
        ``http://127.0.0.1:port``.
    objects : dict
        What it knows, by kind, namespace and name.
    faults : list of Fault
        What is to fail, from now on.
    requests : list of (str, str)
        Method and path of what it was asked.
    token : str or None
        The only one that it takes; None takes everybody.
    refused : int
        How many requests had another token.
    on_pod : callable, optional
        Called, in a thread of its own, with every pod that is made.
    on_delete : callable, optional
        Called with every pod that is to end; the pod is gone when it returns.
    """

    address: str = ""
    objects: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    logs: dict[str, list[tuple[datetime, str]]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    token: str | None = None
    refused: int = 0
    on_pod: Callable[[Pod], None] | None = None
    on_delete: Callable[[Pod], None] | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _events: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)

    @property
    def pods(self) -> list[Pod]:
        """All pods."""
        with self.lock:
            return [Pod(self, key[2], key[1]) for key in self.objects if key[0] == "pods"]

    @property
    def pod(self) -> Pod:
        """The only one."""
        (found,) = self.pods
        return found

    def asked(self, method: str, path: str) -> int:
        """How many requests of a method had a path in which this is found."""
        return sum(m == method and re.search(path, p) is not None for m, p in self.requests)

    def changed(self, kind: str, body: dict[str, Any], event: str) -> None:
        """Number a change and keep it for watches."""
        version = next(self._versions)
        body["metadata"]["resourceVersion"] = str(version)
        self._events.append((version, kind, event, json.loads(json.dumps(body))))

    def forget(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and what it owns."""
        with self.lock:
            body = self.objects.pop((kind, namespace, name), None)
            if body is None:
                return
            self.changed(kind, body, "DELETED")
            uid = body["metadata"]["uid"]
            owned = [
                key
                for key, one in self.objects.items()
                if any(o["uid"] == uid for o in one["metadata"].get("ownerReferences", ()))
            ]
        for key in owned:
            self.forget(*key)

    def make(self, kind: str, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object."""
        meta = body["metadata"]
        meta |= {"namespace": namespace, "uid": str(uuid4()), "creationTimestamp": _now()}
        body |= {"apiVersion": "v1", "kind": KINDS.get(kind, kind)}
        if kind == "pods":
            body["status"] = {"phase": "Pending"}
        with self.lock:
            self.objects[kind, namespace, meta["name"]] = body
            self.changed(kind, body, "ADDED")
        if kind == "pods" and self.on_pod is not None:
            pod = Pod(self, meta["name"], namespace)
            threading.Thread(target=self.on_pod, args=(pod,), daemon=True).start()
        return body

    def events_after(
        self, version: int, kind: str, fits: Callable[[dict[str, Any]], bool]
    ) -> list[tuple[int, str, dict[str, Any]]]:
        """Changes of objects since a version."""
        with self.lock:
            return [
                (v, e, b) for v, k, e, b in self._events if v > version and k == kind and fits(b)
            ]

    def fault(self, method: str, path: str) -> Fault | None:
        """The fault that a request has, if any."""
        with self.lock:
            for one in self.faults:
                if one.method == method and re.search(one.path, path):
                    one.times -= 1
                    if not one.times:
                        self.faults.remove(one)
                    return one
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    found: KubernetesServer
    namespace: str
    kind: str
    name: str | None

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(length) if length else b""
        with self.found.lock:
            self.found.requests.append((self.command, self.path))
        fault = self.found.fault(self.command, self.path)
        if fault is not None and not fault.after:
            self._fail(fault.status)
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.found.token is not None and token != self.found.token:
            self.found.refused += 1
            self._fail(401)
            return
        address = urlsplit(self.path)
        self.query = {key: values[0] for key, values in parse_qs(address.query).items()}
        match = PATH.fullmatch(address.path)
        if match is None:
            self._answer(404, _status(404, f"no {address.path}"))
            return
        self.namespace, self.kind, self.name = match["namespace"], match["kind"], match["name"]
        if match["log"]:
            self._log()
        elif self.command == "GET" and self.query.get("watch") in ("true", "1"):
            self._watch()
        else:
            status, answer = getattr(self, f"_{self.command.lower()}")()
            if fault is not None:
                self._fail(fault.status)
            else:
                self._answer(status, answer)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _serve

    def _fail(self, status: int) -> None:
        if status == 0:
            self.close_connection = True
            return
        self._answer(status, _status(status, "as the test wants it"))

    def _key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, str(self.name)

    def _get(self) -> tuple[int, dict[str, Any]]:
        with self.found.lock:
            if self.name is None:
                items = [
                    body
                    for (kind, namespace, _), body in self.found.objects.items()
                    if (kind, namespace) == (self.kind, self.namespace) and self._fits(body)
                ]
                kind = f"{KINDS[self.kind]}List"
                return 200, {"kind": kind, "apiVersion": "v1", "metadata": {}, "items": items}
            body = self.found.objects.get(self._key())
        return (404, _status(404, f"{self.name} not found")) if body is None else (200, body)

    def _post(self) -> tuple[int, dict[str, Any]]:
        body = json.loads(self.body)
        self.name = body["metadata"]["name"]
        with self.found.lock:
            if self._key() in self.found.objects:
                return 409, _status(409, f"{self.name} already exists", "AlreadyExists")
            return 201, self.found.make(self.kind, self.namespace, body)

    def _patch(self) -> tuple[int, dict[str, Any]]:
        body = json.loads(self.body)
        with self.found.lock:
            known = self.found.objects.get(self._key())
            if known is None:
                return 201, self.found.make(self.kind, self.namespace, body)
            known |= {key: value for key, value in body.items() if key != "metadata"}
            known["metadata"] |= body["metadata"]
            return 200, known

    def _delete(self) -> tuple[int, dict[str, Any]]:
        options = json.loads(self.body or b"{}")
        with self.found.lock:
            body = self.found.objects.get(self._key())
            if body is None:
                return 404, _status(404, f"{self.name} not found")
            uid = (options.get("preconditions") or {}).get("uid")
            if uid is not None and uid != body["metadata"]["uid"]:
                return 409, _status(409, "the uid is another one", "Conflict")
            body["metadata"]["deletionTimestamp"] = _now()
        if self.kind == "pods" and self.found.on_delete is not None:
            threading.Thread(target=self._end, daemon=True).start()
        else:
            self.found.forget(*self._key())
        return 200, body

    def _end(self) -> None:
        pod = Pod(self.found, str(self.name), self.namespace)
        if self.found.on_delete is not None:
            self.found.on_delete(pod)
        self.found.forget(*self._key())

    def _log(self) -> None:
        with self.found.lock:
            body = self.found.objects.get(self._key())
        if body is None:
            self._answer(404, _status(404, f"{self.name} not found"))
            return
        states = [one["state"] for one in body["status"].get("containerStatuses", ())]
        if not states or "waiting" in states[0]:
            self._answer(400, _status(400, "the container is waiting to start"))
            return
        self._start_stream("text/plain")
        ends_at = time.monotonic() + STREAM_SECONDS
        seconds = float(self.query.get("sinceSeconds") or "inf")
        first = time.time() - seconds
        uid, sent = body["metadata"]["uid"], 0
        try:
            while True:
                with self.found.lock:
                    now = self.found.objects.get(self._key())
                    lines = list(self.found.logs.get(uid, []))[sent:]
                sent += len(lines)
                text = "".join(
                    f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z {line}\n"
                    for at, line in lines
                    if at.timestamp() >= first
                )
                self._send_chunk(text.encode())
                statuses = [] if now is None else now["status"].get("containerStatuses", ())
                if not any("running" in one["state"] for one in statuses):
                    break
                if time.monotonic() >= ends_at:
                    break
                time.sleep(0.02)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _watch(self) -> None:
        version = int(self.query.get("resourceVersion") or 0)
        self._start_stream("application/json")
        ends_at = time.monotonic() + STREAM_SECONDS
        try:
            while time.monotonic() < ends_at:
                for number, event, body in self.found.events_after(version, self.kind, self._fits):
                    version = number
                    self._send_chunk(json.dumps({"type": event, "object": body}).encode() + b"\n")
                time.sleep(0.05)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _start_stream(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send_chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _fits(self, body: dict[str, Any]) -> bool:
        fields = self.query.get("fieldSelector", "")
        if fields.startswith("metadata.name="):
            return bool(body["metadata"]["name"] == fields.partition("=")[2])
        labels = body["metadata"].get("labels") or {}
        for term in filter(None, self.query.get("labelSelector", "").split(",")):
            key, equals, value = term.partition("=")
            if key not in labels or (equals and labels[key] != value.lstrip("=")):
                return False
        return True

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _status(code: int, message: str, reason: str = "") -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "message": message,
        "reason": reason,
    }


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def kubeconfig(folder: Path, *, token: str = "none") -> Path:
    """Write a kubeconfig with a token, and with another server than that of the Spark master."""
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    path.write_text(json.dumps(config))
    return path


@contextmanager
def running_kubernetes() -> Iterator[KubernetesServer]:
    """Run a server on 127.0.0.1."""
    found = KubernetesServer()
    handler = type("Handler", (_Handler,), {"found": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    found.address = f"http://127.0.0.1:{server.server_port}"
    with serving(server):
        yield found
