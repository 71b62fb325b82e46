"""The built front end, and the way from a DAG to its table."""

from __future__ import annotations

import html
from pathlib import Path

from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from memwal_airflow import DAG_PREFIX
from memwal_airflow.web.places import app_path

STATIC = Path(__file__).parent / "static"
"""Where the set-up puts the built front end."""

_FOR_EVER = "private, max-age=31536000, immutable"
_ASK_AGAIN = "private, no-cache"

router = APIRouter()


@router.get("/")
def index() -> Response:
    """The page, or how to build it."""
    built = STATIC / "index.html"
    if built.is_file():
        return FileResponse(built, media_type="text/html", headers={"Cache-Control": _ASK_AGAIN})
    return _plain(
        "The page is not built",
        "Build it with <code>make ui</code> in the repository of memwal and load this page again. "
        "The same figures are printed by <code>memwal fleet status</code>.",
        status_code=status.HTTP_503_SERVICE_UNAVAILABLE,
    )


@router.get("/dags/{dag_id}")
def of_dag(dag_id: str) -> Response:
    """Lead to the table that a DAG maintains: the tab of every DAG shows this."""
    if dag_id.startswith(DAG_PREFIX):
        name = dag_id.removeprefix(DAG_PREFIX)
        return RedirectResponse(app_path(f"/#/tables/{name}"))
    return _plain(
        "No table belongs to this DAG",
        f"{html.escape(dag_id)} is not one of the DAGs that maintain a table; their names begin "
        f"with <code>{DAG_PREFIX}</code>.",
    )


@router.get("/{path:path}")
def asset(path: str) -> Response:
    """A file of the front end. The names of those below ``assets`` change with what they hold."""
    try:
        file = (STATIC / path).resolve()
        found = file.is_relative_to(STATIC.resolve()) and file.is_file()
    except (OSError, ValueError):
        # Longer than a name can be, or with a zero byte.
        found = False
    if not found:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is nothing here.")
    kept = _FOR_EVER if path.startswith("assets/") else _ASK_AGAIN
    return FileResponse(file, headers={"Cache-Control": kept})


def _plain(title: str, words: str, *, status_code: int = status.HTTP_200_OK) -> HTMLResponse:
    return HTMLResponse(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<h1>{title}</h1><p>{words}</p></html>",
        status_code=status_code,
        headers={"Cache-Control": _ASK_AGAIN},
    )
