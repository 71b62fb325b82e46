"""The few things that are asked of a Kubernetes API server, with what goes wrong told apart.

The official client does the requests and finds the credentials: those of the service account of
this pod, or of the user's kubeconfig. It takes a second to import, which only those pay who have a
driver in a cluster.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk.exceptions import AirflowException

from memwal.errors import InvalidInputError
from memwal_airflow.spark.settings import MASTER_PREFIX

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"
# To connect, and until something comes.
TIMEOUT_SECONDS = (5.0, 10.0)
PAUSES_SECONDS = (0.2, 1.0, 3.0)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _CONFLICT, _GONE = 401, 403, 404, 409, 410
_VERBS = {"GET": "get or list", "DELETE": "delete"}

log = logging.getLogger(__name__)


class KubernetesUnavailableError(AirflowException):
    """The API server did not answer properly; what was asked for may have happened."""


def own_namespace(file: Path = ACCOUNT_NAMESPACE) -> str:
    """The namespace of the pod that this process runs in; ``default`` outside of a cluster."""
    with contextlib.suppress(OSError):
        return file.read_text().strip() or _DEFAULT_NAMESPACE
    return _DEFAULT_NAMESPACE


class Cluster:
    """One namespace of a cluster.

    Parameters
    ----------
    master : str
        As Spark has it: ``k8s://https://host:port``.
    namespace : str
    context : str, optional
        Of the kubeconfig, where that is used; its current one by default.

    Raises
    ------
    InvalidInputError
        The Kubernetes client is not installed, or the kubeconfig has no such context. All
        methods raise it when the credentials do not allow what is asked for.
    KubernetesUnavailableError
        Raised by all methods when the server gives no proper answer, after some tries.
    """

    def __init__(self, master: str, namespace: str, *, context: str | None = None) -> None:
        address = master.removeprefix(MASTER_PREFIX)
        self.host = address if "://" in address else f"https://{address}"
        self.namespace = namespace
        self._context = context
        self._client = self._connect()

    def pod(self, name: str) -> dict[str, Any] | None:
        """A pod as the API has it; None when there is none of this name."""
        return self._json("GET", f"pods/{quote(name)}")

    def pods(self, labels: Mapping[str, str]) -> list[dict[str, Any]]:
        """The pods that have all of these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        found = self._json("GET", "pods", query={"labelSelector": selector}) or {}
        return list(found.get("items") or ())

    def delete(self, pod: Mapping[str, Any], *, grace_seconds: int) -> None:
        """Ask for the end of this very pod; of none that was made later by the same name."""
        meta = pod["metadata"]
        self._json(
            "DELETE",
            f"pods/{quote(meta['name'])}",
            body={
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "gracePeriodSeconds": grace_seconds,
                "preconditions": {"uid": meta["uid"]},
            },
        )

    def has_config_map(self, name: str) -> bool | None:
        """Whether there is a config map of this name; None where that may not be asked."""
        try:
            return self._json("GET", f"configmaps/{quote(name)}") is not None
        except InvalidInputError:
            return None

    def log(self, name: str, container: str, *, since: str | None = None) -> str:
        """The log of a container, each line with its time; empty when it has none (yet).

        It is asked for once: whoever follows a log asks again in any case.

        Parameters
        ----------
        name, container : str
        since : str, optional
            Leave out lines of before this second.
        """
        query = {"container": container, "timestamps": "true"}
        if since is not None:
            query["sinceTime"] = since
        path = f"pods/{quote(name)}/log"
        found = self._ask("GET", path, query=query, missing=(400, 404), pauses=())
        return "" if found is None else found.decode(errors="replace")

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> dict[str, Any] | None:
        found = self._ask(method, path, query=query, body=body)
        return None if found is None else json.loads(found)

    def _ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        missing: tuple[int, ...] = (_NOT_FOUND, _CONFLICT, _GONE),
        pauses: tuple[float, ...] | None = None,
    ) -> bytes | None:
        """The answer; None when what it is about is not there (or is another by that name)."""
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        what = ""
        for pause in (*(PAUSES_SECONDS if pauses is None else pauses), None):
            try:
                return self._send(method, path, query, body)
            except ApiException as error:
                if error.status in missing:
                    return None
                if error.status == _FORBIDDEN:
                    raise InvalidInputError(self._forbidden(method, path)) from None
                what = f"it answered {error.status} {error.reason}"
                if error.status == _UNAUTHORIZED:
                    # A token that has run out; there is a newer one where this one was found.
                    self._client = self._connect()
                elif error.status and error.status < 500 and error.status != 429:
                    raise KubernetesUnavailableError(
                        f"{self._said(method, path)}: {what}"
                    ) from None
            except (HTTPError, OSError) as error:
                what = f"it did not answer ({type(error).__name__})"
            if pause is None:
                break
            time.sleep(pause)
        raise KubernetesUnavailableError(f"{self._said(method, path)}: {what}")

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, Any] | None,
    ) -> bytes:
        response = self._client.call_api(
            f"/api/v1/namespaces/{quote(self.namespace)}/{path}",
            method,
            query_params=list((query or {}).items()),
            header_params={"Accept": "*/*", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=TIMEOUT_SECONDS,
            # Where Spark sends its driver to; the client would put back where it has its
            # credentials from, whenever it renews them.
            _host=self.host,
        )
        try:
            data: bytes = response.data
        finally:
            response.release_conn()
        return data

    def _connect(self) -> Any:
        try:
            from kubernetes import client, config
        except ImportError:
            raise InvalidInputError(
                "A Spark master on Kubernetes needs the Kubernetes client: install "
                "memwal[kubernetes] where Airflow runs."
            ) from None
        known = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=known)
        except config.ConfigException:
            try:
                config.load_kube_config(
                    os.environ.get("KUBECONFIG"),
                    context=self._context,
                    client_configuration=known,
                    persist_config=False,
                )
            except config.ConfigException as error:
                if self._context is not None:
                    raise InvalidInputError(f"The kubeconfig cannot be used: {error}") from None
                log.info("No credentials of Kubernetes were found; %s is asked without.", self.host)
        # Tried again here, where it is known what may be.
        known.retries = 0
        return client.ApiClient(known)

    def _said(self, method: str, path: str) -> str:
        return f"Kubernetes at {self.host} was asked to {method} {self.namespace}/{path}"

    def _forbidden(self, method: str, path: str) -> str:
        kind = "pods/log" if path.endswith("/log") else path.partition("/")[0]
        return (
            f"Kubernetes does not let Airflow {_VERBS[method]} {kind} in the namespace "
            f"{self.namespace}: bind a Role that does to the service account of Airflow's workers."
        )
