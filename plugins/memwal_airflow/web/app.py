"""The FastAPI app that Airflow's API server mounts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from airflow.api_fastapi.core_api.security import get_user
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, status
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import OperationalError

from memwal.errors import (
    InvalidInputError,
    MemWalError,
    ObjectNotFoundError,
    StoreUnavailableError,
    TableSetupError,
)
from memwal_airflow.web import actions, page, views
from memwal_airflow.web.access import get_catalog
from memwal_airflow.web.report import reporting

HEADERS = {
    # Scripts and styles are files of ours, and only Airflow's own page may show us in a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""Headers of every answer."""

NO_CACHE = "no-store"
"""``Cache-Control`` of answers that set none."""


def create_app() -> FastAPI:
    """Create the app. All of its routes need a user, also paths that do not exist."""
    app = FastAPI(
        title="memwal",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
        dependencies=[Depends(get_user)],
    )
    app.include_router(views.router, prefix="/api")
    app.include_router(actions.router, prefix="/api")
    app.include_router(_not_found_router(), prefix="/api")
    app.include_router(page.router)
    app.include_router(_not_found_router())
    app.middleware("http")(_add_headers)
    app.add_exception_handler(MemWalError, _error_response)
    app.add_exception_handler(RequestValidationError, _validation_error_response)
    app.add_exception_handler(OperationalError, _database_error_response)
    app.add_exception_handler(Exception, _unexpected_error_response)
    return app


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Report the state of Airflow while the API server runs, which enters this with its own."""
    async with reporting(get_catalog):
        yield


async def _add_headers(
    request: Request, answer: Callable[[Request], Awaitable[Response]]
) -> Response:
    response = await answer(request)
    response.headers.update(HEADERS)
    response.headers.setdefault("Cache-Control", NO_CACHE)
    return response


def _not_found_router() -> APIRouter:
    """Return routes that answer every other path: 404, for logged-in users."""
    router = APIRouter()

    @router.api_route(
        "/{path:path}", methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    )
    def nothing() -> None:
        raise HTTPException(status.HTTP_404_NOT_FOUND, "There is nothing here.")

    return router


_STATUS: tuple[tuple[type[MemWalError], int], ...] = (
    (ObjectNotFoundError, status.HTTP_404_NOT_FOUND),
    (InvalidInputError, status.HTTP_400_BAD_REQUEST),
    (StoreUnavailableError, status.HTTP_503_SERVICE_UNAVAILABLE),
    (TableSetupError, status.HTTP_503_SERVICE_UNAVAILABLE),
)


def _error_response(_: Request, error: Exception) -> JSONResponse:
    codes = (code for kind, code in _STATUS if isinstance(error, kind))
    code = next(codes, status.HTTP_500_INTERNAL_SERVER_ERROR)
    return JSONResponse({"detail": str(error)}, status_code=code)


def _validation_error_response(_: Request, error: Any) -> JSONResponse:
    problems = (
        f"{'.'.join(map(str, item['loc'])) or 'the request'}: {item['msg']}"
        for item in error.errors()
    )
    detail = "; ".join(problems)
    return JSONResponse({"detail": detail}, status_code=status.HTTP_422_UNPROCESSABLE_CONTENT)


def _database_error_response(_: Request, __: Exception) -> JSONResponse:
    """Answer for Airflow's database; an error of the catalog's is a MemWalError."""
    detail = "Airflow's database does not answer; look at whether it runs."
    return JSONResponse({"detail": detail}, status_code=status.HTTP_503_SERVICE_UNAVAILABLE)


def _unexpected_error_response(_: Request, __: Exception) -> JSONResponse:
    """Answer an unexpected error, which the server logs."""
    return JSONResponse(
        {"detail": "This failed unexpectedly; the log of the API server says why."},
        status_code=status.HTTP_500_INTERNAL_SERVER_ERROR,
        headers={**HEADERS, "Cache-Control": NO_CACHE},
    )
