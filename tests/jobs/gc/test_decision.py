from __future__ import annotations

from memwal.jobs.gc.decision import WHY, Decision, Kind, Reason, summarise


def decision(kind: Kind, reason: Reason, *, number: int = 0, objects: int = 1) -> Decision:
    return Decision(
        kind=kind,
        what=f"{kind.value} {number}",
        objects=objects,
        bytes=10 * objects,
        goes=reason is Reason.UNNEEDED,
        reason=reason,
        words=f"since {reason.value}",
    )


def test_sums_by_kind_and_reason() -> None:
    found = summarise(
        [
            decision(Kind.FOLDER, Reason.UNNEEDED, objects=7),
            decision(Kind.FOLDER, Reason.UNNEEDED, objects=3),
            decision(Kind.LOG, Reason.UNNEEDED, objects=20),
            decision(Kind.LOG, Reason.REPLAY, objects=2),
            decision(Kind.LOG, Reason.NEWEST_ENTRY),
            decision(Kind.GENERATION, Reason.NOT_MERGED, objects=0),
        ]
    ).to_dict()
    assert [(one["kind"], one["count"], one["bytes"]) for one in found["would_delete"]] == [
        ("log entries", 20, 200),
        ("folder", 2, 100),
    ]
    assert [(one["kind"], one["reason"], one["count"]) for one in found["stays"]] == [
        ("log entries", "replay", 2),
        ("log entries", "newest_entry", 1),
        ("generation", "not_merged", 1),
    ]
    assert found["stays"][2]["why"] == WHY[Reason.NOT_MERGED]


def test_every_kind_and_reason_is_among_the_examples() -> None:
    many = [decision(Kind.LOG, Reason.GRACE, number=number) for number in range(100)]
    many += [decision(Kind.FOLDER, Reason.UNNEEDED, number=number) for number in range(100)]
    found = summarise([*many, decision(Kind.STAGING, Reason.TOO_YOUNG)], examples=10).examples
    assert len(found) == 20
    assert [one.goes for one in found] == [True] * 10 + [False] * 10
    assert Kind.STAGING in {one.kind for one in found}
    assert summarise([]).to_dict() == {"would_delete": [], "stays": [], "examples": []}


def test_every_reason_has_words() -> None:
    assert set(WHY) == set(Reason)
