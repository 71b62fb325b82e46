"""Make a table, load the DAG files, and read the table, by Spark if it is there."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

import memwal
from memwal.catalog import Catalog

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))


def main(folder: Path) -> None:
    """Do it in an empty folder."""
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("city", pa.string())])
    table = memwal.create(str(folder / "flights.lance"), schema, primary_key="id")
    table.upsert({"id": [1, 2], "city": ["EWR", "JFK"]})
    os.environ["MEMWAL_CATALOG_SNAPSHOT"] = str(folder / "tables.json")
    os.environ["AIRFLOW_HOME"] = str(folder / "airflow")
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    catalog = Catalog(
        f"sqlite:///{folder / 'catalog.db'}", snapshot_path=os.environ["MEMWAL_CATALOG_SNAPSHOT"]
    )
    catalog.migrate()
    catalog.register("flights", uri=table.uri)
    catalog.close()
    from support.airflow.dag_bag import load_dag_bag

    bag = load_dag_bag(TESTS.parent / "dags")
    if bag.import_errors or "memwal__flights" not in bag.dags:
        sys.exit(f"DAGs {sorted(bag.dags)}, errors {bag.import_errors}")
    if (found := count(table)) != 2:
        sys.exit(f"{found} rows, not 2")


def count(table: memwal.Table) -> int:
    """Return the number of rows that a query finds."""
    if find_spec("pyspark") is None:
        return table.scan(filter="id > 0").count_rows()
    import memwal.spark
    from memwal.spark.session import spark_session

    spark = spark_session("older versions", master="local[1]")
    memwal.spark.register(spark)
    rows = spark.read.format("memwal").load(table.uri).filter("id > 0").count()
    spark.stop()
    return int(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
