"""Archive the classes that Spark loads, so that each later start takes half of the processor time.

Usage: ``python scripts/spark_archive.py ARCHIVE``. A small job runs in a session that is a Spark
Connect server as well, and the JVM writes its classes when it ends. A JVM uses the archive with
``-XX:SharedArchiveFile=ARCHIVE`` if it is the same Java with the same jars, and goes on without it
otherwise.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from memwal.spark.session import spark_session


def main() -> None:
    """Run the job."""
    archive = Path(sys.argv[1]).resolve()
    part = archive.with_suffix(".part")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={part} -Xlog:disable"
    spark = spark_session(
        "classes",
        master="local[2]",
        conf={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.port": "0",
        },
    )
    numbers = spark.range(10).mapInArrow(lambda batches: batches, "id long")
    numbers.groupBy("id").count().orderBy("id").toArrow()
    spark.createDataFrame([(1, "a")], "id long, text string").toPandas()
    gateway = spark.sparkContext._gateway
    spark.stop()
    # The JVM ends, and writes the archive, when nobody can write to it any more.
    gateway.proc.stdin.close()
    gateway.proc.wait(120)
    part.replace(archive)


if __name__ == "__main__":
    main()
