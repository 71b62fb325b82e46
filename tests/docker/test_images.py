"""The images, really built and run: by Buildah, without a server, in chroots, on a base made here.

``make images-test``. Root, debootstrap and a quarter of an hour are needed, and some 12 GB below
``TMPDIR``, which are given back. ``MEMWAL_IMAGES_STORE`` names a folder that is kept instead, so
that the next run builds only what has changed.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
USERS = {"memwal": 10001, "memwal-spark": 185, "memwal-airflow": 50000}
MOST_MB = {"memwal": 850, "memwal-spark": 2000, "memwal-airflow": 2500}
BASE = "localhost/memwal-test-bookworm"
# A chroot has the network of this machine, and a name that nobody knows.
LOCAL = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
TABLE = """
import pyarrow as pa
import memwal
schema = pa.schema([("id", pa.int64()), ("city", pa.string())])
table = memwal.create("/tmp/flights.lance", schema, primary_key=["id"],
                      region_spec=memwal.RegionSpec.bucket("id", 2))
with table.writer() as writer:
    writer.upsert(pa.table({"id": range(1000), "city": ["EWR"] * 1000}))
    writer.flush()
    writer.delete(pa.array([7]))
"""

pytestmark = [pytest.mark.images, pytest.mark.timeout(3600)]


class Engine:
    """Buildah with a store of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        configuration = folder / "storage.conf"
        configuration.write_text(
            f'[storage]\ndriver = "overlay"\n'
            f'runroot = "{folder}/run"\ngraphroot = "{folder}/store"\n'
        )
        self.environ = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(configuration),
            "BUILDAH_ISOLATION": "chroot",
            # Caches of steps are there, too.
            "TMPDIR": str(folder / "tmp"),
        }

    def call(self, *command: object) -> str:
        done = subprocess.run(
            [str(word) for word in command],
            env=self.environ, cwd=ROOT, capture_output=True,
            text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def make_base(self) -> None:
        """A Debian 12 of packages, as small as the slim image or nearly."""
        if BASE in self.call("buildah", "images", "--format={{.Name}}"):
            return
        tree = self.folder / "bookworm"
        self.call("debootstrap", "--variant=minbase", "bookworm", tree)
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(tree / leftover)
            (tree / leftover).mkdir()
        container = self.call("buildah", "from", "scratch").strip()
        self.call("buildah", "add", "--quiet", container, tree, "/")
        self.call("buildah", "commit", "--quiet", "--rm", container, BASE)
        shutil.rmtree(tree)

    def build(self, *more: str) -> None:
        certificates = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        trusted = ["--certificates", certificates] if certificates else []
        self.call(
            sys.executable, "scripts/build_images.py", "--engine=buildah", f"--base={BASE}",
            "--tag=test", *trusted, *more,
        )  # fmt: skip

    def image(self, name: str) -> dict[str, Any]:
        found = json.loads(
            self.call("buildah", "inspect", "--type=image", f"localhost/{name}:test")
        )
        return dict(found["OCIv1"])

    def megabytes(self, name: str) -> int:
        (entry,) = json.loads(self.call("buildah", "images", "--json", f"localhost/{name}:test"))
        number, unit = entry["size"].split()
        return round(float(number) * {"MB": 1, "GB": 1000}[unit])


class Container:
    """A container of an image, in which commands are run as the image's user."""

    def __init__(self, engine: Engine, image: str) -> None:
        self._engine = engine
        self.config = engine.image(image)["config"]
        self.name = engine.call(
            "buildah", "from", "--pull-never", f"localhost/{image}:test"
        ).strip()

    def shell(self, script: str) -> str:
        return self._run("bash", "-euc", script)

    def start(self, *command: str) -> str:
        """Run a command as an engine would: behind the entry point."""
        return self._run(*self.config["Entrypoint"], *command)

    def _run(self, *command: str) -> str:
        more = [f"--env={key}={value}" for key, value in LOCAL.items()]
        return self._engine.call("buildah", "run", *more, self.name, "--", *command)

    def remove(self) -> None:
        self._engine.call("buildah", "rm", self.name)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    assert os.geteuid() == 0, "building with chroots needs root"
    kept = os.environ.get("MEMWAL_IMAGES_STORE")
    folder = Path(kept or tempfile.mkdtemp(prefix="memwal-images-"))
    engine = Engine(folder)
    try:
        engine.make_base()
        engine.build()
        yield engine
    finally:
        engine.call("buildah", "rm", "--all")
        if not kept:
            engine.call("buildah", "rmi", "--all", "--force")
            shutil.rmtree(folder)


@pytest.fixture(params=USERS)
def image(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def container(engine: Engine, image: str) -> Iterator[Container]:
    made = Container(engine, image)
    yield made
    made.remove()


def test_an_image_is_labelled_and_small(engine: Engine, image: str) -> None:
    labels = engine.image(image)["config"]["Labels"]
    size = engine.megabytes(image)
    print(f"\n{image}: {size} MB")
    assert labels["org.opencontainers.image.title"] == image
    assert labels["org.opencontainers.image.revision"]
    assert labels["org.opencontainers.image.created"].endswith("Z")
    assert size < MOST_MB[image]


def test_an_image_runs_as_its_user_who_owns_little(container: Container, image: str) -> None:
    assert container.shell("id -u; id -g").split() == [str(USERS[image]), "0"]
    assert container.shell("find / -xdev -perm /6000 -type f 2>/dev/null || true") == ""
    writable = container.shell(
        "find / -xdev -type d -writable -not -path '/proc/*' -not -path '/sys/*' 2>&- || true"
    ).split()
    homes = ("/home/memwal", "/opt/airflow", "/opt/spark", "/var/lib/memwal")
    # The last two are Debian's for groups of its own, which copying the base makes group 0.
    shared = ("/dev", "/tmp", "/var/tmp", "/run/lock", "/var/mail", "/var/local")
    assert [path for path in writable if not path.startswith((*homes, *shared))] == []
    assert any(path.startswith(homes) for path in writable)


def test_an_image_has_nothing_of_its_build(container: Container) -> None:
    tools = "uv pip node npm gcc curl wget git"
    assert container.shell(f"for t in {tools}; do command -v $t || true; done") == ""
    assert container.shell("ls -A /var/lib/apt/lists /root/.cache /src /dist 2>/dev/null || true"
                           ).strip() in {"", "/var/lib/apt/lists:"}  # fmt: skip


def test_the_command_line_answers(container: Container, image: str) -> None:
    command = [] if image == "memwal" else ["memwal"]
    assert container.start(*command, "--version").startswith("memwal ")
    container.shell("python -c 'import prometheus_client, opentelemetry.sdk, psycopg'")
    if image != "memwal":
        container.shell("python -c 'import great_expectations'")


def test_the_command_line_keeps_a_table(engine: Engine) -> None:
    container = Container(engine, "memwal")
    container.shell(f"python - <<'END'\n{TABLE}\nEND")
    container.start("merge", "/tmp/flights.lance")
    status = json.loads(container.start("status", "/tmp/flights.lance", "--json"))
    assert status["backlog_generations"] == 0
    container.start("catalog", "migrate")
    container.remove()


def test_a_spark_driver_merges_a_table(engine: Engine) -> None:
    container = Container(engine, "memwal-spark")
    container.shell(f"python - <<'END'\n{TABLE}\nEND")
    container.shell(
        "SPARK_DRIVER_BIND_ADDRESS=127.0.0.1 /opt/entrypoint.sh driver --master 'local[2]'"
        " local:///opt/memwal/spark_apps/merge.py --table /tmp/flights.lance --result /tmp/result"
    )
    result = json.loads(container.shell("cat /tmp/result"))
    assert result["metrics"]["generations"] > 0
    count = "import memwal; print(memwal.open('/tmp/flights.lance').base().dataset.count_rows())"
    assert container.shell(f'python -c "{count}"') == "999\n"
    container.remove()


def test_airflow_has_the_plugin_and_what_the_chart_configures(engine: Engine) -> None:
    container = Container(engine, "memwal-airflow")
    assert container.start("airflow", "version").strip().splitlines()[-1].startswith("3.3.")
    # As the official chart starts a container, and as its probes call.
    assert container.start("bash", "-c", "exec airflow version") == container.shell(
        "/entrypoint airflow version"
    )
    (plugin,) = json.loads(container.start("airflow", "plugins", "--output=json"))
    assert (plugin["name"], len(plugin["fastapi_apps"])) == ("memwal", 1)
    providers = container.start("airflow", "providers", "list", "--output=plain")
    for name in ("celery", "cncf-kubernetes", "fab", "postgres", "apache-spark"):
        assert f"apache-airflow-providers-{name} " in providers
    page = "from memwal_airflow.web.page import STATIC; print((STATIC / 'index.html').read_text())"
    assert "<script" in container.shell(f'python -c "{page}"')
    assert set(container.shell("ls /opt/memwal/dags").split()) == {
        path.name for path in (ROOT / "dags").glob("*.py")
    }
    assert "17." in container.shell("$JAVA_HOME/bin/java -version 2>&1")
    container.remove()


def test_programs_of_the_services_are_in_their_images(engine: Engine) -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    own = {name: each for name, each in services.items() if "memwal" in each["image"].split(":")[1]}
    assert len(own) > 5
    checked = set()
    for each in own.values():
        image = each["image"].split("}")[1].split(":")[0]
        words = {each["healthcheck"]["test"][1]} if "healthcheck" in each else set()
        if image != "memwal":
            words.add(each["command"][0])
        container = Container(engine, image)
        for word in words:
            container.shell(f"command -v {word}")
            checked.add(word)
        container.remove()
    assert checked == {"airflow", "bash", "spark-class", "/usr/bin/python3"}


def test_another_build_of_a_commit_is_the_same_image(engine: Engine) -> None:
    first = engine.image("memwal")["rootfs"]["diff_ids"]
    engine.build("--only=memwal", "--no-cache")
    assert engine.image("memwal")["rootfs"]["diff_ids"] == first
