"""Kubernetes' own schemas, from the package kubernetes-validate."""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from referencing import Registry, Resource

VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""From the oldest that the chart allows."""

NEWEST = VERSIONS[-1]

_BASE = "https://kubernetes.io/api"


def problem(manifest: Mapping[str, Any], version: str) -> str | None:
    """What a Kubernetes of this version would not understand of an object; None if nothing.

    Objects of the Prometheus operator are none of its own, and are taken as they are.
    """
    return _problem(json.dumps(manifest), version)


def problem_of_part(part: Mapping[str, Any], definition: str, version: str) -> str | None:
    """The same of a part, such as ``io.k8s.api.core.v1.Container``."""
    schema = {"$ref": f"{_BASE}/_definitions.json#/$defs/{definition}"}
    return _first(Draft202012Validator(schema, registry=_registry(version)), part)


# Most objects are the same in many releases.
@cache
def _problem(text: str, version: str) -> str | None:
    manifest = json.loads(text)
    kind, api = manifest["kind"], manifest["apiVersion"]
    if api == "monitoring.coreos.com/v1":
        return None
    return _first(_validator(kind, api, version), manifest)


def _first(validator: Draft202012Validator, instance: Mapping[str, Any]) -> str | None:
    error = best_match(validator.iter_errors(instance))
    return None if error is None else f"{error.json_path}: {error.message[:300]}"


@cache
def _validator(kind: str, api: str, version: str) -> Draft202012Validator:
    group, _, of_group = api.rpartition("/")
    name = f"{kind.lower()}-{group.partition('.')[0]}-{of_group}" if group else f"{kind}-{api}"
    return Draft202012Validator(_load(name.lower(), version), registry=_registry(version))


@cache
def _registry(version: str) -> Registry[Any]:
    return Registry().with_resource(
        f"{_BASE}/_definitions.json", Resource.from_contents(_load("_definitions", version))
    )


def _load(name: str, version: str) -> Any:
    folder = files("kubernetes_validate").joinpath("kubernetes-json-schema")
    path = folder.joinpath(f"v{version}.0-local-strict", f"{name}.json")
    return json.loads(path.read_text(encoding="utf-8"))
