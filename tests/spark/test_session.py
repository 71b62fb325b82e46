"""What sessions are made with."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

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
    assert found == os.environ.get("LANCE_LOG", "error,lance::index=off")


def test_a_session_that_runs_is_taken(spark):
    assert spark_session("another").sparkContext is spark.sparkContext


@pytest.mark.slow
def test_what_the_caller_says_wins():
    script = """
    import pathlib, subprocess, sys
    from memwal.spark.session import spark_session

    spark = spark_session(
        "own", master="local[1]", ui=True, conf={"spark.driver.bindAddress": "127.0.0.2"}
    )
    conf = spark.sparkContext.getConf()
    print(conf.get("spark.master"), conf.get("spark.driver.bindAddress"), conf.get("spark.app.name"))
    print(spark.sparkContext.uiWebUrl)
    runtime = spark.sparkContext._jvm.java.lang.Runtime.getRuntime()
    listening = subprocess.run(["ss", "-Hltn"], capture_output=True, text=True, check=True).stdout
    port = spark.sparkContext.uiWebUrl.rpartition(":")[2]
    print(*(line.split()[3] for line in listening.splitlines() if line.split()[3].endswith(":" + port)))
    spark.stop()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    told, url, listening = done.stdout.splitlines()
    assert told == "local[1] 127.0.0.2 own"
    assert url.startswith("http://127.0.0.1:")
    assert listening.rpartition(":")[0] in ("127.0.0.1", "[::ffff:127.0.0.1]")
