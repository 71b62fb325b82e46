"""Temporary credentials of AWS for a role, a web identity or a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memwal.errors import InvalidInputError, StoreAccessError

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
        # Its message may quote what was sent; its type says what went wrong.
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
