"""Policies of S3, enforced: a gateway with this rule lets each key do what its policy allows.

So much of AWS's language as the policies here use: statements that allow, wildcards in actions and
resources, and conditions that must all hold. Anything else in a policy is an error.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from support.stores.store_gateway import Answer, Forward, Request, refusal

_KEY = re.compile(r"<Key>([^<]*)</Key>")


@dataclass(frozen=True)
class Act:
    """What a request does with one object or with the bucket.

    Attributes
    ----------
    action : str
        As policies name it: ``s3:PutObject``.
    resource : str
        ``bucket`` or ``bucket/key``.
    context : mapping
        What conditions are about; a key that a request does not have is not in it.
    """

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Key of the object; empty for the bucket."""
        return self.resource.partition("/")[2]


def acts_of(request: Request) -> list[Act]:
    """What a request needs to be allowed: one act, or one for each object that it deletes."""
    parts = urlsplit(request.path)
    query = parse_qs(parts.query, keep_blank_values=True)
    resource = unquote(parts.path).strip("/")
    bucket, _, key = resource.partition("/")
    match request.method:
        case "LIST":
            prefix = query.get("prefix", [""])[0]
            return [Act("s3:ListBucket", bucket, {"s3:prefix": prefix})]
        case "GET" | "HEAD":
            return [Act("s3:GetObject", resource) if key else Act("s3:ListBucket", bucket)]
        case "PUT":
            return [Act("s3:PutObject", resource, _of_put(request, made="uploadId" not in query))]
        case "POST" if "delete" in query:
            keys = _KEY.findall(request.body.decode())
            return [Act("s3:DeleteObject", f"{bucket}/{one}") for one in keys]
        case "POST":
            return [Act("s3:PutObject", resource, _of_put(request, made="uploadId" in query))]
        case "DELETE" if "uploadId" in query:
            return [Act("s3:AbortMultipartUpload", resource)]
        case "DELETE":
            return [Act("s3:DeleteObject", resource)]
    raise AssertionError(f"no policy knows {request.method} {request.path}")


def _of_put(request: Request, *, made: bool) -> dict[str, str]:
    context = {"s3:ObjectCreationOperation": str(made).lower()}
    condition = request.headers.get("If-None-Match")
    return context if condition is None else {**context, "s3:if-none-match": condition}


def allows(policy: Mapping[str, Any], act: Act) -> bool:
    """Whether a policy allows something; what it does not allow is denied."""
    return any(_grants(statement, act) for statement in policy["Statement"])


def _grants(statement: Mapping[str, Any], act: Act) -> bool:
    assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition", "Principal"}
    assert statement["Effect"] == "Allow"
    resource = f"arn:aws:s3:::{act.resource}"
    return (
        any(_like(pattern, act.action) for pattern in statement["Action"])
        and any(_like(pattern, resource) for pattern in statement["Resource"])
        and all(_holds(*one, act.context) for one in statement.get("Condition", {}).items())
    )


def _holds(operator: str, wanted: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    match operator:
        case "StringLikeIfExists":
            return all(
                key not in context or any(_like(pattern, context[key]) for pattern in patterns)
                for key, patterns in wanted.items()
            )
        case "Null":
            return all((key not in context) == (value == "true") for key, value in wanted.items())
    raise AssertionError(f"the operator {operator} is not known")


def _like(pattern: str, text: str) -> bool:
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


@dataclass
class Guard:
    """Who may do what: policies by access key. Use ``guard.rule`` as the rule of a gateway.

    Attributes
    ----------
    policies : dict
        By access key; a key without one may do anything.
    done, denied : list of (str, Act)
        What was asked by whom, and allowed or not.
    """

    policies: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    done: list[tuple[str, Act]] = field(default_factory=list)
    denied: list[tuple[str, Act]] = field(default_factory=list)

    def rule(self, request: Request, forward: Forward) -> Answer | None:
        """Pass on what may be done. Of a bulk deletion, either all or nothing is done."""
        who = request.access_key or "nobody"
        acts = acts_of(request)
        policy = self.policies.get(who)
        refused = [] if policy is None else [act for act in acts if not allows(policy, act)]
        self.denied += [(who, act) for act in refused]
        if not refused:
            self.done += [(who, act) for act in acts]
            answer = forward()
            if answer.status == 404 and policy is not None and acts[0].action == "s3:GetObject":
                # That something is absent is told to those who may list.
                look = Act("s3:ListBucket", acts[0].resource.partition("/")[0])
                if not allows(policy, look):
                    self.denied.append((who, look))
                    return refusal(403, "AccessDenied", "Access Denied")
            return answer
        if request.method == "POST" and acts[0].action == "s3:DeleteObject":
            return _none_deleted(acts)
        # Servers like to repeat what they were asked, and with what.
        asked = " ".join(f"{name}: {value}" for name, value in request.headers.items())
        return refusal(403, "AccessDenied", f"Access Denied: {asked}")

    def acts(self, who: str) -> Iterator[Act]:
        """What somebody did."""
        return (act for one, act in self.done if one == who)


def _none_deleted(acts: list[Act]) -> Answer:
    """The answer to a deletion of many objects, none of which was carried out."""
    errors = "".join(
        f"<Error><Key>{act.key}</Key><Code>AccessDenied</Code><Message>Access Denied</Message>"
        "</Error>"
        for act in acts
    )
    body = f"<DeleteResult>{errors}</DeleteResult>".encode()
    return Answer(200, body, (("Content-Type", "application/xml"),))
