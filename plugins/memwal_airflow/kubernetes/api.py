"""Requests to a Kubernetes API server by the official client, with errors that name the next step.

The client takes a second to import, so only tasks with a driver in a cluster import it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowException
from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_chain, wait_fixed

from memwal.errors import InvalidInputError
from memwal.util.optional_deps import how_to_install
from memwal.util.records import JsonMapping, JsonObject
from memwal_airflow.spark.settings import MASTER_PREFIX

ACCOUNT_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"
# To connect, and between two parts of an answer.
TIMEOUT_SECONDS = (5.0, 10.0)
PAUSES_SECONDS = (0.2, 1.0, 3.0)
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 400, 401, 403, 404
_CONFLICT, _GONE, _TOO_MANY_REQUESTS = 409, 410, 429

logger = logging.getLogger(__name__)


class KubernetesUnavailableError(AirflowException):
    """The API server gave no valid answer; the requested change may have happened."""


def own_namespace(file: Path = ACCOUNT_NAMESPACE) -> str:
    """Return the namespace of the pod that this process runs in; ``default`` outside a cluster."""
    with contextlib.suppress(OSError):
        return file.read_text().strip() or _DEFAULT_NAMESPACE
    return _DEFAULT_NAMESPACE


class Cluster:
    """One namespace of a cluster.

    The credentials are those of the service account of this pod, or of the user's kubeconfig (in
    ``context``; default: its current one). Every method raises InvalidInputError if they do not
    allow the request, and KubernetesUnavailableError if repeated attempts got no valid answer.
    ``master`` is a Spark master: ``k8s://https://host:port``.
    """

    def __init__(self, master: str, namespace: str, *, context: str | None = None) -> None:
        address = master.removeprefix(MASTER_PREFIX)
        self.host = address if "://" in address else f"https://{address}"
        self.namespace = namespace
        self._context = context
        self._api = self._connect()

    def pod(self, name: str) -> JsonObject | None:
        """Return a pod as the API has it; None without a pod of this name."""
        return self._request_json("get", f"pods/{name}", "read_namespaced_pod", name=name)

    def pods(self, labels: Mapping[str, str]) -> list[JsonObject]:
        """Return the pods that have all of these labels."""
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        pods = self._request_json("list", "pods", "list_namespaced_pod", label_selector=selector)
        return list((pods or {}).get("items") or ())

    def delete(self, pod: JsonMapping, *, grace_seconds: int) -> None:
        """Request the deletion of this pod, never of a later pod of the same name."""
        from kubernetes.client import V1DeleteOptions, V1Preconditions

        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        body = V1DeleteOptions(
            grace_period_seconds=grace_seconds, preconditions=V1Preconditions(uid=uid)
        )
        self._request_json("delete", f"pods/{name}", "delete_namespaced_pod", name=name, body=body)

    def has_config_map(self, name: str) -> bool | None:
        """Return whether there is a config map of this name; None where reading it is forbidden."""
        path, method = f"configmaps/{name}", "read_namespaced_config_map"
        try:
            return self._request_json("get", path, method, name=name) is not None
        except InvalidInputError:
            return None

    def log(self, name: str, container: str, *, since: str | None = None) -> str:
        """Return the log of a container from the second ``since`` on, each line with its time.

        Empty without a log (yet). Sent once only: a caller that follows a log asks again anyway.
        """
        query = [("container", container), ("timestamps", "true")]
        if since is not None:
            query.append(("sinceTime", since))

        def read_log(api: Any, **options: object) -> Any:
            # read_namespaced_pod_log has no sinceTime. Its since_seconds counts back from the
            # node's clock: lines would be lost where this clock differs from it.
            return api.api_client.call_api(
                "/api/v1/namespaces/{namespace}/pods/{name}/log",
                "GET",
                path_params={"namespace": self.namespace, "name": name},
                query_params=query,
                auth_settings=["BearerToken"],
                _return_http_data_only=True,
                **options,
            )

        missing = (_BAD_REQUEST, _NOT_FOUND)
        text = self._send("get", f"pods/{name}/log", read_log, missing=missing, attempts=1)
        return "" if text is None else text.decode(errors="replace")

    def _request_json(
        self, verb: str, path: str, method: str, **arguments: object
    ) -> JsonObject | None:
        def request(api: Any, **options: object) -> Any:
            return getattr(api, method)(namespace=self.namespace, **arguments, **options)

        body = self._send(verb, path, request, missing=(_NOT_FOUND, _CONFLICT, _GONE))
        return None if body is None else json.loads(body)

    def _send(
        self,
        verb: str,
        path: str,
        request: Callable[..., Any],
        *,
        missing: tuple[int, ...],
        attempts: int | None = None,
    ) -> bytes | None:
        """Send a request and return the answer's bytes.

        Returns None for a status of ``missing``: the object does not exist, or another one has its
        name.
        """
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        def is_transient(error: BaseException) -> bool:
            if isinstance(error, ApiException):
                status = error.status or 0
                return status in (0, _UNAUTHORIZED, _TOO_MANY_REQUESTS) or status >= 500
            return isinstance(error, HTTPError | OSError)

        retrying = Retrying(
            stop=stop_after_attempt(attempts or len(PAUSES_SECONDS) + 1),
            wait=wait_chain(*map(wait_fixed, PAUSES_SECONDS)),
            retry=retry_if_exception(is_transient),
            reraise=True,
        )
        try:
            return retrying(self._send_once, request)
        except ApiException as error:
            if error.status in missing:
                return None
            if error.status == _FORBIDDEN:
                raise InvalidInputError(self._forbidden(verb, path)) from None
            outcome = f"it answered {error.status} {error.reason}"
        except (HTTPError, OSError) as error:
            outcome = f"it did not answer ({type(error).__name__})"
        raise KubernetesUnavailableError(
            f"Kubernetes at {self.host} was asked to {verb} {self.namespace}/{path}: {outcome}"
        )

    def _send_once(self, request: Callable[..., Any]) -> bytes:
        from kubernetes.client import ApiException

        try:
            response = request(self._api, _preload_content=False, _request_timeout=TIMEOUT_SECONDS)
        except ApiException as error:
            if error.status == _UNAUTHORIZED:
                # The token has expired; reload it from the same place.
                self._api = self._connect()
            raise
        try:
            data: bytes = response.data
        finally:
            response.release_conn()
        return data

    def _connect(self) -> Any:
        """Return a ``CoreV1Api`` with the credentials of now."""
        try:
            from kubernetes import client, config
        except ImportError:
            raise InvalidInputError(
                "A Spark master on Kubernetes needs the Kubernetes client where Airflow runs; "
                f"{how_to_install('kubernetes')}"
            ) from None
        configuration = client.Configuration()
        try:
            config.load_incluster_config(client_configuration=configuration)
        except config.ConfigException:
            try:
                config.load_kube_config(
                    os.environ.get("KUBECONFIG"),
                    context=self._context,
                    client_configuration=configuration,
                    persist_config=False,
                )
            except config.ConfigException as error:
                if self._context is not None:
                    raise InvalidInputError(f"The kubeconfig cannot be used: {error}") from None
                logger.info("No Kubernetes credentials found; requests to %s have none.", self.host)
        # _send retries, and knows which errors are transient.
        configuration.retries = 0
        api_client = client.ApiClient(configuration)
        # Requests go where Spark submits its driver. Setting the host in the configuration is not
        # enough: the client restores the host of its credentials whenever it renews them.
        api_client.call_api = partial(api_client.call_api, _host=self.host)
        return client.CoreV1Api(api_client)

    def _forbidden(self, verb: str, path: str) -> str:
        resource = "pods/log" if path.endswith("/log") else path.partition("/")[0]
        return (
            f"Kubernetes does not let Airflow {verb} {resource} in the namespace "
            f"{self.namespace}: bind a Role that does to the service account of Airflow's workers."
        )
