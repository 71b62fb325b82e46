"""memwal metrics."""

from __future__ import annotations

import json

import yaml


def test_rules_are_yaml(cli):
    answer = cli("metrics", "rules")
    assert answer.code == 0
    assert {group["name"] for group in yaml.safe_load(answer.stdout)["groups"]} >= {
        "memwal-tables",
        "memwal-writers",
    }


def test_the_dashboard_is_json(cli):
    answer = cli("metrics", "dashboard")
    assert answer.code == 0
    assert json.loads(answer.stdout)["uid"] == "memwal-fleet"


def test_a_port_that_cannot_be(cli, tmp_path):
    answer = cli("metrics", "serve", "--host", "no-such-host.invalid", "--port", 0)
    assert answer.code == 2
    assert "no-such-host.invalid" in answer.stderr
