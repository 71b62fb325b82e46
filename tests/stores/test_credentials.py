"""Credentials that really end, while writers live and jobs run: nothing is ever asked with old ones
by whoever can ask for new ones."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from support.data.tables import keys, rows, state
from support.processes import python_environment, run_python
from support.stores.own_certificate import own_certificate
from support.stores.s3_emulator import REGION, S3Emulator
from support.stores.store_gateway import Gateway, Sessions
from support.stores.token_service import token_service

import memwal
from memwal.errors import StoreAccessError
from memwal.jobs.verify import verify

pytestmark = pytest.mark.slow

# Two of these are waited for below. The clients of AWS renew ten seconds or more before the end.
_LIFE = 4.0
_LONGER = _LIFE + 0.5


@pytest.fixture
def sessions(gateway: Gateway) -> Iterator[Sessions]:
    """The keys that the gateway takes."""
    found = Sessions()
    gateway.rule = found.rule
    return found


@pytest.fixture
def uri(emulator: S3Emulator) -> str:
    return f"s3://{emulator.create_bucket()}/lake/t.lance"


def options(gateway: Gateway, **more: str) -> dict[str, str]:
    return {
        "aws_endpoint": gateway.endpoint,
        "allow_http": "true",
        "aws_region": REGION,
        "client_max_retries": "0",
        **more,
    }


def create(uri: str, storage_options: Mapping[str, str]) -> memwal.Table:
    return memwal.create(
        uri,
        rows({}).schema,
        primary_key=["id"],
        region_spec="bucket:id:2",
        maintained_indexes=["id_idx"],
        storage_options=storage_options,
    )


def test_writers_readers_and_jobs_outlive_their_credentials(
    uri: str, gateway: Gateway, sessions: Sessions
) -> None:
    memwal.register_credentials("short-lived", lambda: sessions.issue(_LIFE))
    table = create(uri, options(gateway, memwal_credentials_from="short-lived"))

    with table.writer() as writer:
        writer.upsert(rows({n: n for n in range(20)}))
        held = table.scan()
        assert held.to_table().num_rows == 0
        writer.flush()
        base = table.base().dataset
        time.sleep(_LONGER)
        writer.upsert(rows({1: 100}))
        writer.delete(keys(2))
        assert writer.scan().to_table().num_rows == 19
        assert base.count_rows() == 0, "a data set that was opened with keys that have ended"
        writer.flush()
        time.sleep(_LONGER)
    assert table.checkpoint().warnings == ()
    assert table.build_snapshot().commits == 1
    time.sleep(_LONGER)
    assert state(table.lookup(keys(1, 2, 3)).to_table()) == {1: 100, 3: 3}
    assert verify(table.location).findings == ()

    assert sessions.issued > 3
    assert sessions.refused == []


def test_a_merge_outlives_its_credentials(uri: str, gateway: Gateway, sessions: Sessions) -> None:
    memwal.register_credentials("short-lived", lambda: sessions.issue(_LIFE))
    table = create(uri, options(gateway, memwal_credentials_from="short-lived"))
    with table.writer() as writer:
        for n in range(3):
            writer.upsert(rows(dict.fromkeys(range(30), n)))
            writer.flush()

    def slow(request: object, forward: Callable[[], object]) -> object:
        time.sleep(0.25)
        return sessions.rule(request, forward)  # type: ignore[arg-type]

    gateway.rule = slow  # type: ignore[assignment]
    issued, begun = sessions.issued, time.monotonic()
    assert table.merge().warnings == ()

    assert time.monotonic() - begun > _LIFE, "too short to show anything"
    assert sessions.issued > issued
    assert sessions.refused == []
    gateway.rule = sessions.rule
    assert set(state(table.base().dataset.to_table()).values()) == {2}


def test_fixed_credentials_end_and_say_so(uri: str, gateway: Gateway, sessions: Sessions) -> None:
    fixed = {k: v for k, v in sessions.issue(30).items() if k.startswith("aws_")}
    table = create(uri, options(gateway, **fixed))
    table.upsert(rows({1: 1}))
    short = {k: v for k, v in sessions.issue(_LIFE).items() if k.startswith("aws_")}
    again = memwal.open(uri, storage_options=options(gateway, **short))
    writer = again.writer()
    writer.upsert(rows({2: 2}))

    time.sleep(_LONGER)
    with pytest.raises(StoreAccessError):
        writer.upsert(rows({3: 3}))
    with pytest.raises(StoreAccessError):
        again.merge()
    writer.abort()

    with table.writer() as writer:
        writer.claim()
        assert state(writer.scan().to_table()) == {1: 1, 2: 2}


LIFE_OF_A_PROCESS = """
    import json, sys, time
    import memwal
    from support.data.tables import rows, state

    uri, options, wait = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
    table = memwal.open(uri, storage_options=options)
    with table.writer() as writer:
        writer.upsert(rows({1: 1}))
        for n in range(2):
            writer.flush()
            time.sleep(wait)
            writer.upsert(rows({2: n}))
            assert state(writer.scan().to_table()) == {1: 1, 2: n}
    assert table.checkpoint().warnings == ()
    assert state(table.base().dataset.to_table()) == {1: 1, 2: 1}
    print("done")
"""


def live(uri: str, storage_options: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Write, read and merge in a process with an environment of its own, for several lives."""
    given = {name: python_environment()[name] for name in ("PATH", "PYTHONPATH")}
    done = run_python(
        LIFE_OF_A_PROCESS,
        uri,
        json.dumps(dict(storage_options)),
        _LONGER,
        env={**given, "HOME": "/nonexistent", **environment},
    )
    assert done.stdout == "done\n", done.stderr[-3000:]


@pytest.fixture
def standing(uri: str, gateway: Gateway, sessions: Sessions) -> str:
    """A table, made by somebody with keys of their own."""
    keys = {k: v for k, v in sessions.issue(60).items() if k.startswith("aws_")}
    create(uri, options(gateway, **keys))
    return uri


def test_a_web_identity(
    standing: str, gateway: Gateway, sessions: Sessions, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("the-projected-token")
    # obstore asks a service for tokens by https only.
    tls = own_certificate(tmp_path / "own.pem")
    with token_service(sessions, seconds=_LIFE, identity="the-projected-token", tls=tls) as service:
        live(
            standing,
            options(gateway),
            {
                "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
                "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/lake",
                "AWS_ENDPOINT_URL_STS": service.endpoint,
                "SSL_CERT_FILE": str(tmp_path / "own.pem"),
                "AWS_REGION": REGION,
            },
        )
        assert service.refused == 0
    assert sessions.issued > 3
    assert sessions.refused == []


def test_a_container(standing: str, gateway: Gateway, sessions: Sessions, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-pod-token")
    with token_service(sessions, seconds=_LIFE, identity="the-pod-token") as service:
        live(
            standing,
            options(gateway),
            {
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{service.endpoint}/v1/credentials",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            },
        )
    assert sessions.issued > 3
    assert sessions.refused == []


def test_keys_of_the_environment(standing: str, gateway: Gateway, sessions: Sessions) -> None:
    given = sessions.issue(120)
    live(
        standing,
        options(gateway),
        {name.upper(): value for name, value in given.items() if name.startswith("aws_")},
    )
    assert sessions.refused == []


def test_a_profile_whose_process_gives_new_ones(
    standing: str, gateway: Gateway, sessions: Sessions, tmp_path: Path
) -> None:
    with token_service(sessions, seconds=_LIFE, identity="me") as service:
        script = tmp_path / "give.py"
        script.write_text(
            "import json, urllib.request\n"
            f"asked = urllib.request.Request({service.endpoint!r})\n"
            "asked.add_header('Authorization', 'me')\n"
            "keys = json.load(urllib.request.urlopen(asked))\n"
            "keys['SessionToken'] = keys.pop('Token')\n"
            "print(json.dumps({'Version': 1, **keys}))\n"
        )
        (tmp_path / "config").write_text(
            f"[profile lake]\ncredential_process = {sys.executable} {script}\n"
        )
        environment = {"AWS_CONFIG_FILE": str(tmp_path / "config")}
        live(standing, options(gateway), {**environment, "AWS_PROFILE": "lake"})
        live(standing, options(gateway, aws_profile="lake"), environment)
    assert sessions.refused == []


def test_a_file_that_somebody_writes_anew(
    standing: str, gateway: Gateway, sessions: Sessions, tmp_path: Path
) -> None:
    file = tmp_path / "keys.json"
    with sessions.kept_in(file, _LIFE):
        live(standing, options(gateway, memwal_credentials_from=f"file:{file}"), {})
    assert sessions.refused == []
