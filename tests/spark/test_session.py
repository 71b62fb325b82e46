"""What sessions are made with."""

import os
import sys

import pytest
from support.processes import python_environment, run_python

from memwal.spark.session import spark_session


def test_a_local_session_keeps_to_itself(spark):
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.app.name") == "memwal tests"
    assert conf.get("spark.master") == "local[2, 3]"


def test_workers_run_this_interpreter(spark):
    def executable(_):
        import sys

        return sys.executable

    (found,) = spark.sparkContext.parallelize([0], 1).map(executable).collect()
    assert os.path.realpath(found) == os.path.realpath(sys.executable)
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_workers_do_not_repeat_harmless_complaints_of_lance(spark):
    def setting(_):
        import os

        return os.environ.get("LANCE_LOG")

    (found,) = spark.sparkContext.parallelize([0], 1).map(setting).collect()
    assert found == os.environ["LANCE_LOG"]


def test_a_session_that_runs_is_taken(spark):
    assert spark_session("another").sparkContext is spark.sparkContext


SCRIPT = """
import subprocess
from memwal.spark.session import spark_session

spark = spark_session(
    "own", master="local[1]", ui=True, conf={"spark.driver.bindAddress": "127.0.0.2"}
)
conf = spark.sparkContext.getConf()
for name in ("spark.master", "spark.driver.bindAddress", "spark.app.name"):
    print(conf.get(name))
url = spark.sparkContext.uiWebUrl
print(url)
port = url.rpartition(":")[2]
found = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
places = [line.split()[3] for line in found.splitlines()]
print(*(place for place in places if place.endswith(":" + port)))
spark.stop()
"""


@pytest.mark.slow
def test_what_the_caller_says_wins():
    *told, url, listening = run_python(SCRIPT).stdout.splitlines()
    assert told == ["local[1]", "127.0.0.2", "own"]
    assert url.startswith("http://127.0.0.1:")
    assert listening.rpartition(":")[0] in ("127.0.0.1", "[::ffff:127.0.0.1]")


def test_spark_logs_warnings(spark):
    assert spark.sparkContext.getConf().get("spark.log.level") == "WARN"


LEVEL = """
from memwal.spark.session import spark_session

spark = spark_session("own", master="local[1]")
print(spark.sparkContext.getConf().get("spark.log.level"))
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "level"),
    [
        ("log4j2.properties", "rootLogger.level = error\n", "None"),
        ("spark-defaults.conf", "spark.log.level ERROR\n", "ERROR"),
        ("spark-env.sh.template", "", "WARN"),
    ],
)
def test_the_log_of_spark_is_as_the_user_configured_it(tmp_path, file, content, level):
    (tmp_path / file).write_text(content)
    done = run_python(LEVEL, env=python_environment({"SPARK_CONF_DIR": str(tmp_path)}))
    assert done.stdout.splitlines()[-1] == level
