"""Runs a Spark application as spark-submit would, its tasks in this process and without Spark.

``python fake_spark.py APPLICATION.py ARGUMENT...``. With ``$FAKE_SPARK_WAIT``, the name of a file,
the application begins its job when the file is there.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from types import SimpleNamespace


def main() -> None:
    os.environ["PYSPARK_GATEWAY_PORT"] = "1"
    sys.argv = sys.argv[1:]
    # One that a test wrote may use neither, and memwal takes a second to load.
    if "memwal.spark" in Path(sys.argv[0]).read_text():
        replace_spark()
    runpy.run_path(sys.argv[0], run_name="__main__")


def replace_spark() -> None:
    """Have the applications of memwal run their tasks in this process."""
    from memwal.jobs.job import ParallelRunner, run_in_process
    from memwal.spark import application

    context = SimpleNamespace(applicationId="local-42", uiWebUrl="http://127.0.0.1:4040")
    conf = {"spark.master": "local[2]"}
    session = SimpleNamespace(sparkContext=context, conf=conf, stop=lambda: None)

    def begin(name: str) -> SimpleNamespace:
        return session

    def runner(spark: object, **options: object) -> object:
        wait = os.environ.get("FAKE_SPARK_WAIT")
        while wait and not Path(wait).exists():
            time.sleep(0.05)
        return ParallelRunner(run_in_process, lambda: 2)

    vars(application).update(spark_session=begin, spark_runner=runner)


if __name__ == "__main__":
    main()
