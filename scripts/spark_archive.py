"""Archive the classes that Spark loads, so that each later start takes half of the processor time.

Usage: ``python scripts/spark_archive.py ARCHIVE``. A small job runs in a session that is a Spark
Connect server as well, and the JVM writes its classes when it ends. A JVM uses the archive with
``-XX:SharedArchiveFile=ARCHIVE`` if it is the same Java with the same jars, and goes on without it
otherwise.

Drivers and workers of Spark import PySpark from zip files, where Python stores no bytecode. It is
added to those of this environment, so that each of these processes need not compile the sources.
End the processes that use Spark before.
"""

from __future__ import annotations

import compileall
import os
import shutil
import sys
import tempfile
from pathlib import Path
from py_compile import PycInvalidationMode

from memwal.spark.session import spark_session


def main() -> None:
    """Add the bytecode, and run the job."""
    import pyspark

    sources = Path(pyspark.__file__).parent / "python" / "lib"
    for path in (sources / "pyspark.zip", *sources.glob("py4j-*-src.zip")):
        add_bytecode(path)
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


def add_bytecode(path: Path) -> None:
    """Add the bytecode of all modules to a zip file."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(path, folder)
        compileall.compile_dir(
            folder,
            force=True,
            quiet=2,
            legacy=True,
            stripdir=folder,
            # PySpark knows its own frames by the name of the zip file.
            prependdir=str(path),
            # Python takes it without a look at the source.
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )
        part = shutil.make_archive(f"{path}.part", "zip", folder)
    Path(part).replace(path)


if __name__ == "__main__":
    main()
