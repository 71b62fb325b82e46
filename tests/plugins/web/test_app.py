"""Who gets in, and what every answer carries."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from memwal.catalog import Catalog

AsUser = Callable[..., Any]
WRITES = {"X-Requested-With": "memwal", "Sec-Fetch-Site": "same-origin"}


# Who may use which route: those who may read a table's DAG, or those who may start its runs.
RULES = {
    ("GET", "/api/fleet"): "viewer",
    ("GET", "/api/tables/{name}"): "viewer",
    ("GET", "/api/tables/{name}/history"): "viewer",
    ("GET", "/api/tables/{name}/regions"): "viewer",
    ("GET", "/api/tables/{name}/runs"): "viewer",
    ("GET", "/api/tables/{name}/collection"): "viewer",
    ("POST", "/api/tables/{name}/runs"): "user",
    ("POST", "/api/tables/{name}/retry"): "user",
    ("GET", "/"): "viewer",
    ("GET", "/dags/{dag_id}"): "viewer",
    ("GET", "/{path:path}"): "viewer",
}
NOTHING_THERE = {"/api/{path:path}", "/{path:path}"}


def own_routes(served: Any) -> Iterator[tuple[str, str]]:
    """Methods and paths of the app, as they are declared."""
    (mount,) = (route for route in served.routes if getattr(route, "path", "") == "/memwal")
    for route in mount.app.routes:
        for method in route.methods:
            yield method, route.path


def filled(path: str) -> str:
    """A path of the app for one table."""
    path = path.replace("{name}", "flights").replace("{dag_id}", "memwal__flights")
    return "/memwal" + path.replace("{path:path}", "assets/index.js")


def every_route(served: Any) -> Iterator[tuple[str, str]]:
    """Methods and paths of the app, and some that it does not have."""
    for method, path in own_routes(served):
        yield method, filled(path)
    for path in ("docs", "redoc", "openapi.json", "static/index.html", "api/", "%2e%2e/app.py"):
        yield "GET", f"/memwal/{path}"


def test_nobody_gets_anything(served: Any, as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/flights.lance")
    client = as_user()
    routes = list(every_route(served))
    assert len(routes) > 20
    for method, path in routes:
        answer = client.request(method, path, headers=WRITES)
        assert (method, path, answer.status_code) == (method, path, 401)
        assert method == "HEAD" or answer.json() == {"detail": "Not authenticated"}
    # Not even told that what they sent is not JSON.
    answer = client.post("/memwal/api/tables/flights/runs", content="{", headers=WRITES)
    assert answer.status_code == 401
    forged = client.get("/memwal/api/fleet", headers={"Authorization": "Bearer x.y.z"})
    assert forged.status_code in (401, 403)


def test_every_route_has_a_rule(served: Any) -> None:
    assert {one for one in own_routes(served) if one[1] not in NOTHING_THERE} == {
        one for one in RULES if one[1] not in NOTHING_THERE
    }


@pytest.mark.few(2)
@pytest.mark.parametrize("user", ["viewer", "user", "admin"])
def test_who_may_use_which_route(
    served: Any, as_user: AsUser, catalog: Catalog, tmp_path: Path, user: str
) -> None:
    catalog.register("flights", uri=str(tmp_path / "flights.lance"))
    client = as_user(user)
    for (method, path), needed in RULES.items():
        headers, body = (WRITES, {}) if method == "POST" else ({}, None)
        answer = client.request(method, filled(path), headers=headers, json=body)
        denied = needed == "user" and user == "viewer"
        assert (answer.status_code == 403) == denied, (method, path, answer.status_code)
        assert answer.status_code != 401
    for method, path in own_routes(served):
        if path in NOTHING_THERE and (method, path) not in RULES:
            answer = client.request(method, filled(path), headers=WRITES)
            assert (method, answer.status_code) == (method, 404)


def test_what_every_answer_carries(as_user: AsUser, catalog: Catalog) -> None:
    client = as_user("viewer")
    for path in ("", "api/fleet", "api/nothing", "api/tables/absent", "nothing"):
        for one in (client, as_user()):
            headers = one.get(f"/memwal/{path}").headers
            assert "frame-ancestors 'self'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-frame-options"] == "SAMEORIGIN"
            assert headers["x-content-type-options"] == "nosniff"
            if path:
                assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "a" * 300,
        "a/" * 3000,
        "%00",
        "..%2fapp.py",
        "%2fetc%2fpasswd",
        "%252e%252e%252fapp.py",
        "..%5capp.py",
        "api/tables/%00",
        "api/tables/a%2f..%2fflights",
        "api//tables/flights",
    ],
)
def test_there_is_no_way_around(as_user: AsUser, catalog: Catalog, path: str) -> None:
    catalog.register("flights", uri="/data/flights.lance")
    assert as_user("viewer").get(f"/memwal/{path}").status_code == 404


def test_a_job_that_cannot_be(as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/flights.lance")
    answer = as_user("viewer").get("/memwal/api/tables/flights/runs?job=%00")
    assert answer.status_code == 422


def test_the_cookie_of_the_airflow_ui_is_enough(as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/flights.lance")
    for user, may_write in (("viewer", False), ("user", True), ("admin", True)):
        answer = as_user(user, cookie=True).get("/memwal/api/tables/flights")
        assert answer.json()["may_write"] is may_write


@pytest.mark.parametrize("rest", ["runs", "retry"])
class TestWrites:
    def test_a_viewer_may_not(self, as_user: AsUser, catalog: Catalog, rest: str) -> None:
        catalog.register("flights", uri="/data/flights.lance")
        path = f"/memwal/api/tables/flights/{rest}"
        for cookie in (True, False):
            answer = as_user("viewer", cookie=cookie).post(path, json={}, headers=WRITES)
            assert answer.status_code == 403
            assert "flights" in answer.json()["detail"]

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({}, 403),
            ({"X-Requested-With": "XMLHttpRequest"}, 403),
            ({**WRITES, "Sec-Fetch-Site": "cross-site"}, 403),
            ({**WRITES, "Sec-Fetch-Site": "same-site"}, 403),
            ({"X-Requested-With": "memwal", "Origin": "https://evil.example"}, 403),
            ({"X-Requested-With": "memwal", "Origin": "null"}, 403),
            ({**WRITES, "Content-Type": "text/plain"}, 415),
            ({**WRITES, "Content-Type": "application/x-www-form-urlencoded"}, 415),
        ],
    )
    def test_other_sites_cannot_forge_one(
        self,
        as_user: AsUser,
        catalog: Catalog,
        rest: str,
        headers: dict[str, str],
        code: int,
    ) -> None:
        catalog.register("flights", uri="/data/flights.lance")
        client = as_user("admin", cookie=True)
        sent = {"Content-Type": "application/json", **headers}
        path = f"/memwal/api/tables/flights/{rest}"
        assert client.post(path, content="{}", headers=sent).status_code == code

    def test_what_is_sent_is_checked(self, as_user: AsUser, catalog: Catalog, rest: str) -> None:
        catalog.register("flights", uri="/data/flights.lance")
        client = as_user("admin")
        path = f"/memwal/api/tables/flights/{rest}"
        for body, code in (
            ("{", 400),
            ("[]", 422),
            ('{"region": []}', 422),
            ('{"regions": ["../x"]}', 422),
            (" " * (1 << 20) + "{}", 413),
        ):
            headers = {**WRITES, "Content-Type": "application/json"}
            answer = client.post(path, content=body, headers=headers)
            assert (body[:20], answer.status_code) == (body[:20], code)
            assert isinstance(answer.json()["detail"], str)
        absent = client.post(f"/memwal/api/tables/absent/{rest}", json={}, headers=WRITES)
        assert absent.status_code == 404


def test_origins_of_our_own(as_user: AsUser, catalog: Catalog) -> None:
    catalog.register("flights", uri="/data/flights.lance")
    client = as_user("admin", cookie=True)
    for origin in ({"Origin": "http://testserver"}, {}, {"Sec-Fetch-Site": "none"}):
        headers = {"X-Requested-With": "memwal", **origin}
        answer = client.post("/memwal/api/tables/flights/retry", json={}, headers=headers)
        assert (answer.status_code, answer.json()) == (200, {"retried": []})


class TestPage:
    @pytest.fixture
    def built(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        from memwal_airflow.web import page

        folder = tmp_path / "static"
        (folder / "assets").mkdir(parents=True)
        (folder / "index.html").write_text("<!doctype html>built")
        (folder / "assets" / "index-1.js").write_text("1")
        (tmp_path / "secret.txt").write_text("hush")
        monkeypatch.setattr(page, "STATIC", folder)
        return folder

    def test_it_is_served(self, as_user: AsUser, built: Path) -> None:
        client = as_user("viewer", cookie=True)
        page = client.get("/memwal/")
        assert (page.status_code, page.text) == (200, "<!doctype html>built")
        assert page.headers["cache-control"] == "private, no-cache"
        script = client.get("/memwal/assets/index-1.js")
        assert "javascript" in script.headers["content-type"]
        assert "immutable" in script.headers["cache-control"]

    def test_and_nothing_beside_it(self, as_user: AsUser, built: Path) -> None:
        client = as_user("viewer")
        (built / "link").symlink_to(built.parent / "secret.txt")
        for path in ("assets", "%2e%2e/secret.txt", "assets/..%2f..%2fsecret.txt", "link", "%00"):
            answer = client.get(f"/memwal/{path}")
            assert (path, answer.status_code) == (path, 404)

    def test_it_says_how_to_build_it(
        self, as_user: AsUser, built: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (built / "index.html").unlink()
        answer = as_user("viewer").get("/memwal/")
        assert answer.status_code == 503
        assert "make ui" in answer.text

    def test_a_dag_leads_to_its_table(self, as_user: AsUser) -> None:
        client = as_user("viewer")
        answer = client.get("/memwal/dags/memwal__flights")
        assert answer.status_code == 307
        assert answer.headers["location"] == "/memwal/#/tables/flights"
        other = client.get("/memwal/dags/%3Cb%3Eother")
        assert other.status_code == 200
        assert "&lt;b&gt;other" in other.text
        assert "<b>" not in other.text


def test_a_catalog_that_does_not_answer(
    as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from memwal_airflow.web import access

    url = f"sqlite:///{tmp_path / 'absent.db'}"
    monkeypatch.setenv("MEMWAL_CATALOG_URL", url)
    access.get_catalog.cache_clear()
    assert as_user().get("/memwal/api/fleet").status_code == 401
    answer = as_user("viewer").get("/memwal/api/fleet")
    assert answer.status_code == 503


def test_a_database_of_airflow_that_does_not_answer(
    as_user: AsUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sqlalchemy.exc import OperationalError

    # Airflow 3.1 asks its database for no token.
    tokens = pytest.importorskip("airflow.models.revoked_token")

    def unanswered(*_: object) -> bool:
        raise OperationalError("SELECT", {}, ConnectionError("password=hush"))

    client = as_user("viewer")
    monkeypatch.setattr(tokens.RevokedToken, "is_revoked", unanswered)
    answer = client.get("/memwal/api/fleet")
    assert answer.status_code == 503
    assert "hush" not in answer.text


def test_what_nobody_expected(
    as_user: AsUser, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("password=hush")

    monkeypatch.setattr(Catalog, "list", broken)
    answer = as_user("viewer").get("/memwal/api/fleet")
    assert answer.status_code == 500
    assert "hush" not in answer.text
    assert "frame-ancestors" in answer.headers["content-security-policy"]


def test_what_airflow_is_told(served: Any) -> None:
    from memwal_airflow.plugin import MemWalPlugin

    (app,) = MemWalPlugin.fastapi_apps
    assert (app["url_prefix"], app["name"]) == ("/memwal", "memwal")
    assert app["app"] is MemWalPlugin.fastapi_apps[0]["app"]
    views = {view["destination"]: view for view in MemWalPlugin.external_views}
    assert views["nav"]["href"] == "/memwal/"
    assert "{DAG_ID}" in views["dag"]["href"]
