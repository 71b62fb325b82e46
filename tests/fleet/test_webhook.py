"""Messages to a webhook that fails, is slow, and whose address nobody may see."""

import re
import traceback
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.airflow.webhook_server import WebhookServer, running_webhook
from support.oracles.secrecy import Secrecy

from memwal.errors import InvalidInputError
from memwal.fleet.alerts import DeliveryError, Webhook, deliver, slack_body
from memwal.fleet.conditions import Condition, ConditionKind


def event(
    kind: ConditionKind = ConditionKind.REGION_SKIPPED, *, over: bool = False, text: str = "torn"
) -> Condition:
    return Condition(
        kind=kind,
        table="flights",
        owner="air team",
        topic="region",
        subject="r",
        mark="m",
        over=over,
        since=datetime(2026, 1, 1, tzinfo=UTC),
        text=text,
    )


@pytest.fixture
def webhook(webhook_server: WebhookServer, secrecy: Secrecy) -> Webhook:
    return Webhook(f"{webhook_server.address}/services/{secrecy.marker}", timeout=240)


def test_a_message_arrives(
    webhook_server: WebhookServer, webhook: Webhook, secrecy: Secrecy
) -> None:
    webhook.send([event(), event(ConditionKind.BACKLOG_CRITICAL), event(over=True)])
    (message,) = webhook_server.received
    assert message["path"] == f"/services/{secrecy.marker}"
    lines = message["body"]["text"].splitlines()
    assert [line.split()[0] for line in lines] == [
        ":rotating_light:",
        ":warning:",
        ":white_check_mark:",
    ]
    assert all(name in lines[0] for name in ("flights", "air team", "torn"))
    secrecy.check(webhook, repr(webhook))


def test_what_may_work_later_is_tried_again(
    webhook_server: WebhookServer, webhook: Webhook
) -> None:
    waits: list[float] = []
    webhook_server.answers += [(503, {}), (429, {"Retry-After": "7"})]
    deliver(webhook.post, [event()], sleep=waits.append)
    assert waits == [1.0, 7.0]
    assert len(webhook_server.received) == 3
    webhook_server.answers += [(429, {"Retry-After": "86400"}), (500, {}), (500, {})]
    with pytest.raises(DeliveryError, match="500"):
        deliver(webhook.post, [event()], sleep=waits.append)
    assert waits[2:] == [30.0, 2.0]


@pytest.mark.parametrize("status", [301, 307, 400, 403, 404])
def test_a_refusal_is_not_tried_again(
    webhook_server: WebhookServer, webhook: Webhook, secrecy: Secrecy, status: int
) -> None:
    webhook_server.answers.append((status, {"Location": f"{webhook_server.address}/elsewhere"}))
    with pytest.raises(DeliveryError, match=str(status)) as caught:
        webhook.send([event()])
    assert len(webhook_server.received) == 1
    secrecy.check("".join(traceback.format_exception(caught.value)))


def test_nobody_waits_for_a_slow_one(webhook_server: WebhookServer, secrecy: Secrecy) -> None:
    webhook = Webhook(f"{webhook_server.address}/services/{secrecy.marker}", timeout=0.1)
    webhook_server.ready.clear()
    with pytest.raises(DeliveryError) as caught:
        deliver(webhook.post, [event()], sleep=lambda seconds: None)
    secrecy.check("".join(traceback.format_exception(caught.value)))


def test_a_server_that_is_gone(secrecy: Secrecy) -> None:
    with running_webhook() as gone:
        webhook = Webhook(f"{gone.address}/{secrecy.marker}")
    with pytest.raises(DeliveryError) as caught:
        deliver(webhook.post, [event()], sleep=lambda seconds: None)
    secrecy.check("".join(traceback.format_exception(caught.value)))


def test_a_message_calls_nobody_and_stays_short() -> None:
    text = slack_body([event(text="<!channel> & <http://evil|here> " + "x" * 1000)])["text"]
    assert "<" not in text
    assert "&lt;!channel&gt; &amp;" in text
    assert len(text) < 500
    many = slack_body([event()] * 57)["text"].splitlines()
    assert len(many) == 21
    assert "37" in many[-1]


def test_an_address_comes_from_a_file(tmp_path: Path, secrecy: Secrecy) -> None:
    path = tmp_path / "webhook"
    path.write_text(f"https://hooks.example.com/{secrecy.marker}\n")
    assert Webhook.from_file(path).url.endswith(secrecy.marker)
    for content in (secrecy.marker, f"ftp://{secrecy.marker}", f"http://[{secrecy.marker}", ""):
        path.write_text(content)
        with pytest.raises(InvalidInputError) as caught:
            Webhook.from_file(path)
        secrecy.check("".join(traceback.format_exception(caught.value)))
    with pytest.raises(InvalidInputError, match=re.escape(str(tmp_path / "none"))):
        Webhook.from_file(tmp_path / "none")
