import json
import pickle

from memwal.jobs.gc.decision import Decision, GarbageKind, Reason, summarise


def decision(kind: GarbageKind, reason: Reason, *, number: int = 0, objects: int = 1) -> Decision:
    return Decision(
        kind=kind,
        what=f"{kind.value} {number}",
        objects=objects,
        bytes=10 * objects,
        reason=reason,
        message=f"since {reason.value}",
    )


def test_sums_by_kind_and_reason() -> None:
    summary = summarise(
        [
            decision(GarbageKind.FOLDER, Reason.UNNEEDED, objects=7),
            decision(GarbageKind.FOLDER, Reason.UNNEEDED, objects=3),
            decision(GarbageKind.LOG, Reason.UNNEEDED, objects=20),
            decision(GarbageKind.LOG, Reason.REPLAY, objects=2),
            decision(GarbageKind.LOG, Reason.NEWEST_ENTRY),
            decision(GarbageKind.GENERATION, Reason.NOT_MERGED, objects=0),
        ]
    ).to_dict()
    assert [(d["kind"], d["count"], d["bytes"]) for d in summary["would_delete"]] == [
        ("log entries", 20, 200),
        ("folder", 2, 100),
    ]
    assert [(d["kind"], d["reason"], d["count"]) for d in summary["stays"]] == [
        ("log entries", "replay", 2),
        ("log entries", "newest_entry", 1),
        ("generation", "not_merged", 1),
    ]
    assert summary["stays"][2]["why"] == "it is not merged yet"


def test_every_kind_and_reason_is_among_the_examples() -> None:
    many = [decision(GarbageKind.LOG, Reason.GRACE, number=number) for number in range(100)]
    many += [decision(GarbageKind.FOLDER, Reason.UNNEEDED, number=number) for number in range(100)]
    examples = summarise(
        [*many, decision(GarbageKind.STAGING, Reason.TOO_YOUNG)], examples=10
    ).examples
    assert len(examples) == 20
    assert [example.delete for example in examples] == [True] * 10 + [False] * 10
    assert GarbageKind.STAGING in {example.kind for example in examples}
    assert summarise([]).to_dict() == {"would_delete": [], "stays": [], "examples": []}


def test_members_keep_their_fields_when_they_are_sent_to_another_process() -> None:
    """They are pickled by value, which is the first of the fields of a member."""
    for member in (*GarbageKind, *Reason):
        assert pickle.loads(pickle.dumps(member)) is member
        assert json.loads(json.dumps(member)) == member.value
    assert {kind for kind in GarbageKind if kind.count_metric is None} == {GarbageKind.REGION}
    assert len({reason.text for reason in Reason}) == len(Reason)
