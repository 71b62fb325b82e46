"""``memwal rights``: what each role may do with a table's objects."""

from __future__ import annotations

from typing import Annotated

import typer

from memwal.cli.options import AsJson
from memwal.cli.output import print_json, print_table
from memwal.errors import InvalidInputError
from memwal.rights import Role, rights_of, s3_policy


def rights(
    roles: Annotated[
        list[Role] | None,
        typer.Argument(
            metavar="[ROLE]...",
            help=f"What is done with the table: {', '.join(Role)}. Several roles have what any "
            "of them has; without one, each is shown.",
        ),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            metavar="URI",
            help="Print the policy that gives these rights on the table at an address in S3.",
        ),
    ] = None,
    conditions: Annotated[
        bool,
        typer.Option(
            " /--without-conditions",
            help="Leave the condition s3:if-none-match out of the policy, for servers that do not "
            "know it; then a writer could overwrite what another one wrote.",
        ),
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Show which rights on a table's objects a role needs, or write a policy that gives them.

    It asks neither the table nor the store. Keys are those below the table's root, and * in them
    stands for anything. create is a put that is refused when the name is taken.
    """
    if policy is not None:
        if not roles:
            raise InvalidInputError(f"name the roles that the policy is for: {', '.join(Role)}")
        print_json(s3_policy(policy, roles, conditions=conditions))
        return
    found = {"+".join(roles): rights_of(roles)} if roles else {r: rights_of([r]) for r in Role}
    if as_json:
        print_json({role: {r.act: r.keys for r in rights} for role, rights in found.items()})
        return
    lines = [
        (role, right.act.value, key)
        for role, rights in found.items()
        for right in rights
        for key in right.keys
    ]
    print_table(("role", "act", "keys"), lines)
