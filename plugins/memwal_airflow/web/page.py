"""Routes of the built front end, and of the tab of a DAG."""

from __future__ import annotations

import html
from pathlib import Path

from fastapi import APIRouter, HTTPException, status
from fastapi.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from memwal_airflow import DAG_PREFIX
from memwal_airflow.links import DRAIN_DAG_ID, app_path, table_address

STATIC = Path(__file__).parent / "static"
"""Folder of the built front end."""

_CACHE_IMMUTABLE = "private, max-age=31536000, immutable"
_CACHE_REVALIDATE = "private, no-cache"

router = APIRouter()


@router.get("/")
def index() -> Response:
    """Serve the page, or say how to build it."""
    built = STATIC / "index.html"
    if built.is_file():
        return FileResponse(
            built, media_type="text/html", headers={"Cache-Control": _CACHE_REVALIDATE}
        )
    return _text_page(
        "The page is not built",
        "memwal was installed from a clone of its repository in which this page was not built. "
        "Run <code>make ui</code> there, then "
        "<code>pip install --force-reinstall --no-deps .</code> in the environment of Airflow's "
        "API server (an editable installation needs only the first), and load this page again. "
        "The same figures are printed by <code>memwal fleet status</code>.",
        status_code=status.HTTP_503_SERVICE_UNAVAILABLE,
    )


@router.get("/dags/{dag_id}")
def table_of_dag(dag_id: str) -> Response:
    """Redirect to the page of a DAG's table, or of all; the tab of every DAG shows this."""
    if dag_id == DRAIN_DAG_ID:
        return RedirectResponse(app_path("/"))
    if dag_id.startswith(DAG_PREFIX):
        return RedirectResponse(table_address(dag_id.removeprefix(DAG_PREFIX)))
    return _text_page(
        "No table belongs to this DAG",
        f"{html.escape(dag_id)} is not one of the DAGs that maintain a table; their names begin "
        f"with <code>{DAG_PREFIX}</code>.",
    )


@router.get("/{path:path}")
def asset(path: str) -> Response:
    """Serve a file of the front end. Names of files below ``assets`` change with their content."""
    try:
        file = (STATIC / path).resolve()
        exists = file.is_relative_to(STATIC.resolve()) and file.is_file()
    except (OSError, ValueError):
        # Longer than a name can be, or with a zero byte.
        exists = False
    if not exists:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is nothing here.")
    cache_control = _CACHE_IMMUTABLE if path.startswith("assets/") else _CACHE_REVALIDATE
    return FileResponse(file, headers={"Cache-Control": cache_control})


def _text_page(title: str, words: str, *, status_code: int = status.HTTP_200_OK) -> HTMLResponse:
    return HTMLResponse(
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<h1>{title}</h1><p>{words}</p></html>",
        status_code=status_code,
        headers={"Cache-Control": _CACHE_REVALIDATE},
    )
