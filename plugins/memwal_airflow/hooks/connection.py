"""Storage options from Airflow's connections: ``memwal``, and those of the cloud providers.

A profile or a role does not exist on Spark's executors, so it is exchanged for temporary
credentials when the connection is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from memwal.errors import InvalidInputError, StoreAccessError
from memwal.storage.credentials import parse_options
from memwal.util.records import JsonMapping, JsonObject
from memwal.util.safe_json import read_json

if TYPE_CHECKING:
    from airflow.sdk import Connection

SECRET_OPTIONS: Final = "secret_options"  # noqa: S105 - the name of a field
TEST_URI: Final = "test_uri"

# Fields of the form that say how to get credentials, and are no storage options.
_IDENTITY = {
    "aws_profile": "profile",
    "aws_role_arn": "role_arn",
    "aws_role_external_id": "external_id",
    "aws_web_identity_token_file": "web_identity_token_file",
}
# Fields of the extra of Amazon's provider that are no storage options.
_AWS_ONLY = frozenset(
    {
        "assume_role_kwargs",
        "assume_role_method",
        "assume_role_with_web_identity_federation",
        "aws_account_id",
        "aws_iam_role",
        "botocore_kwargs",
        "config_kwargs",
        "external_id",
        "host",
        "profile_name",
        "role_arn",
        "s3_config_file",
        "s3_config_format",
        "service_config",
        "session_kwargs",
        "verify",
    }
)
_AWS_RENAMED = {"region_name": "aws_region", "endpoint_url": "aws_endpoint"}
_WEB_IDENTITY_FILE = "assume_role_with_web_identity_token_file"
_GOOGLE_PREFIX = "extra__google_cloud_platform__"
_GOOGLE_ONLY = frozenset({"project", "scope", "num_retries", "quota_project_id", "is_anonymous"})
_GOOGLE_REFUSED = ("key_secret_name", "credential_config_file", "impersonation_chain", "idp_issuer")
_AZURE_PARTS = {
    "accountname": "azure_storage_account_name",
    "accountkey": "azure_storage_access_key",
    "sharedaccesssignature": "azure_storage_sas_token",
    "blobendpoint": "azure_endpoint",
}
_AZURE_RENAMED = {
    "sas_token": "azure_storage_sas_token",
    "shared_access_key": "azure_storage_access_key",
    "account_key": "azure_storage_access_key",
}


def storage_options(connection: Connection) -> dict[str, str]:
    """Return the storage options of a connection.

    Its type is ``memwal``, ``aws``, ``google_cloud_platform`` or ``wasb``; in one of any other
    type, the extra holds the options themselves. Raises InvalidInputError for a field that is
    invalid or not supported (no message shows a value), and StoreAccessError if a role or a
    profile gave no credentials.
    """
    match connection.conn_type:
        case "memwal":
            return _memwal_options(connection)
        case "aws":
            return _aws_options(connection)
        case "google_cloud_platform":
            return _google_options(connection)
        case "wasb":
            return _azure_options(connection)
    return parse_options(connection.extra_dejson, _describe_extra(connection))


def _memwal_options(connection: Connection) -> dict[str, str]:
    fields = _without_empty(connection.extra_dejson)
    fields.pop(TEST_URI, None)
    secret_options = fields.pop(SECRET_OPTIONS, None)
    identity_fields: dict[str, Any] = {
        name: str(fields.pop(key)) for key, name in _IDENTITY.items() if key in fields
    }
    identity = AwsIdentity(**identity_fields)
    options = parse_options(fields, _describe_extra(connection))
    if secret_options is not None:
        options |= parse_options(
            _parse_secret_options(secret_options, connection),
            f"{SECRET_OPTIONS} of {_describe(connection)}",
        )
    return _with_credentials(options, identity, connection)


def _aws_options(connection: Connection) -> dict[str, str]:
    fields = _without_empty(connection.extra_dejson)
    role_arguments = _object_field(fields, "assume_role_kwargs", connection)
    method = fields.get("assume_role_method", "assume_role")
    token_file = fields.pop(_WEB_IDENTITY_FILE, None)
    federation = fields.get("assume_role_with_web_identity_federation", "file")
    if method == "assume_role_with_saml" or federation != "file":
        raise InvalidInputError(
            f"{_describe(connection)} takes its role with SAML or from Google, which memwal does "
            "not; use assume_role, or a web identity token in a file"
        )
    identity = AwsIdentity(
        profile=fields.get("profile_name"),
        role_arn=fields.get("role_arn"),
        external_id=fields.get("external_id") or role_arguments.get("ExternalId"),
        web_identity_token_file=token_file,
        seconds=role_arguments.get("DurationSeconds"),
    )
    services = _object_field(fields, "service_config", connection)
    endpoint = _object_field(services, "s3", connection).get("endpoint_url")
    options = {
        "aws_access_key_id": connection.login,
        "aws_secret_access_key": connection.password,
        **{_AWS_RENAMED.get(k, k): v for k, v in fields.items() if k not in _AWS_ONLY},
        **({"aws_endpoint": endpoint} if endpoint else {}),
    }
    return _with_credentials(
        parse_options(_without_empty(options), _describe_extra(connection)), identity, connection
    )


def _google_options(connection: Connection) -> dict[str, str]:
    fields = {
        name.removeprefix(_GOOGLE_PREFIX): value
        for name, value in _without_empty(connection.extra_dejson).items()
    }
    refused = [name for name in _GOOGLE_REFUSED if name in fields]
    if refused:
        raise InvalidInputError(
            f"{_describe(connection)} has {', '.join(refused)}, which memwal cannot use; give "
            "key_path or keyfile_dict"
        )
    key = fields.pop("keyfile_dict", None)
    path = fields.pop("key_path", None)
    options = {
        "google_service_account_key": json.dumps(key) if isinstance(key, dict) else key,
        "google_service_account": path,
        "google_skip_signature": True if fields.get("is_anonymous") in (True, "true") else None,
        **{name: value for name, value in fields.items() if name not in _GOOGLE_ONLY},
    }
    return parse_options(_without_empty(options), _describe_extra(connection))


def _azure_options(connection: Connection) -> dict[str, str]:
    fields = _without_empty(connection.extra_dejson)
    tenant = fields.pop("tenant_id", None)
    identity = fields.pop("managed_identity_client_id", None)
    fields.pop("workload_identity_tenant_id", None)
    parts = _azure_parts(str(fields.pop("connection_string", "")))
    host = (connection.host or "").removeprefix("https://").partition("/")[0]
    if tenant is not None:
        account: dict[str, object] = {
            "azure_storage_account_name": host.partition(".")[0],
            "azure_storage_tenant_id": tenant,
            "azure_storage_client_id": connection.login,
            "azure_storage_client_secret": connection.password,
        }
    else:
        account = {
            "azure_storage_account_name": connection.login or host.partition(".")[0],
            "azure_storage_access_key": connection.password,
            "azure_storage_client_id": identity,
        }
    options = {
        **_without_empty(account),
        **parts,
        **{_AZURE_RENAMED.get(name, name): value for name, value in fields.items()},
    }
    if "azure_storage_sas_token" in options:
        # A signature is a right of its own; with a key beside it, the key would be used.
        options["azure_storage_sas_token"] = str(options["azure_storage_sas_token"]).lstrip("?")
    return parse_options(options, _describe_extra(connection))


def _azure_parts(text: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(";"))
    named = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return {option: named[name] for name, option in _AZURE_PARTS.items() if named.get(name)}


def _with_credentials(
    options: dict[str, str], identity: AwsIdentity, connection: Connection
) -> dict[str, str]:
    if options.get("aws_endpoint", "").startswith("http://"):
        options.setdefault("allow_http", "true")
    if identity.is_given:
        options |= temporary_options(identity, options, what=_describe(connection))
    return options


def _parse_secret_options(text: object, connection: Connection) -> object:
    if not isinstance(text, str):
        return text
    try:
        return read_json(text)
    except ValueError:
        # The message of the parser quotes its input; so would the cause.
        raise InvalidInputError(
            f"{SECRET_OPTIONS} of {_describe(connection)} are not JSON; write an object such as "
            '{"timeout": "60s"}'
        ) from None


def _without_empty(fields: JsonMapping) -> JsonObject:
    """Return the fields with a value; a form sends the others as null or empty."""
    return {name: value for name, value in fields.items() if value is not None and value != ""}


def _object_field(fields: JsonMapping, name: str, connection: Connection) -> JsonMapping:
    """Return a field whose value is an object; empty if the field is missing."""
    value = fields.get(name) or {}
    if not isinstance(value, Mapping):
        raise InvalidInputError(f"{name} in {_describe_extra(connection)} must be an object")
    return value


def _describe(connection: Connection) -> str:
    return f"connection {connection.conn_id!r}"


def _describe_extra(connection: Connection) -> str:
    return f"the extra of {_describe(connection)}"


_SESSION = "memwal"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwsIdentity:
    """AWS identity of a connection, besides its keys."""

    profile: str | None = None  # Of ``~/.aws`` on the machine that reads the connection.
    role_arn: str | None = None  # Assumed with the keys, the profile or a web identity.
    external_id: str | None = None  # Required by the role.
    web_identity_token_file: str | None = None  # Needs a role.
    seconds: int | None = None  # Lifetime of the credentials; None for AWS's default, an hour.

    @property
    def is_given(self) -> bool:
        """True if temporary credentials must be requested."""
        return any((self.profile, self.role_arn, self.web_identity_token_file))


def temporary_options(
    identity: AwsIdentity, options: Mapping[str, str], *, what: str
) -> dict[str, str]:
    """Return the storage options of temporary credentials for an identity.

    The request uses the keys and the region of ``options``; ``what`` is the source of the identity
    in messages. Raises InvalidInputError without boto3, or for a token file without a role, and
    StoreAccessError if AWS gives no credentials.
    """
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise InvalidInputError(
            f"{what} names a role or a profile, which needs boto3: install it where Airflow runs"
        ) from None
    if identity.web_identity_token_file and not identity.role_arn:
        raise InvalidInputError(f"{what} has a web identity token and no role: give aws_role_arn")
    try:
        session = boto3.Session(
            profile_name=identity.profile,
            aws_access_key_id=options.get("aws_access_key_id"),
            aws_secret_access_key=options.get("aws_secret_access_key"),
            aws_session_token=options.get("aws_session_token"),
            region_name=options.get("aws_region"),
        )
        region = {"aws_region": session.region_name} if session.region_name else {}
        if identity.role_arn is not None:
            return _assume_role(session, identity) | region
        credentials = session.get_credentials()
        if credentials is None:
            raise StoreAccessError(f"the profile of {what} has no credentials")
        frozen = credentials.get_frozen_credentials()
        values = {
            "AccessKeyId": frozen.access_key,
            "SecretAccessKey": frozen.secret_key,
            "SessionToken": frozen.token,
        }
        return _storage_options(values) | region
    except OSError as error:
        raise StoreAccessError(
            f"cannot read the web identity token of {what}: {error.strerror}"
        ) from None
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "an error")
        raise StoreAccessError(
            f"AWS gave no credentials for the role of {what}: {code}; check the role, who may "
            "assume it, and its external id"
        ) from None
    except BotoCoreError as error:
        # Its message may quote the request; its type is safe to show.
        raise StoreAccessError(
            f"no credentials could be obtained for {what}: {type(error).__name__}; check the "
            "profile, the keys and the network path to AWS's token service"
        ) from None


def _assume_role(session: Any, identity: AwsIdentity) -> dict[str, str]:
    request: dict[str, object] = {"RoleArn": identity.role_arn, "RoleSessionName": _SESSION}
    if identity.seconds is not None:
        request["DurationSeconds"] = int(identity.seconds)
    # Any region knows the role; without a region there is no endpoint.
    service = session.client("sts", region_name=session.region_name or "us-east-1")
    if identity.web_identity_token_file is not None:
        with open(identity.web_identity_token_file, encoding="utf-8") as file:
            token = file.read().strip()
        answer = service.assume_role_with_web_identity(WebIdentityToken=token, **request)
    else:
        if identity.external_id is not None:
            request["ExternalId"] = identity.external_id
        answer = service.assume_role(**request)
    return _storage_options(answer["Credentials"])


def _storage_options(credentials: Mapping[str, Any]) -> dict[str, str]:
    options = {
        "aws_access_key_id": credentials["AccessKeyId"],
        "aws_secret_access_key": credentials["SecretAccessKey"],
        "aws_session_token": credentials.get("SessionToken"),
    }
    return {name: value for name, value in options.items() if value}
