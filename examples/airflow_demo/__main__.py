"""``python examples/airflow_demo``: a local Airflow that maintains the tables of a catalog.

Its jobs run on a Spark that stays up beside it; see :mod:`airflow_demo.connect_server`. It runs
until SIGINT or SIGTERM, and is for trials only; see :mod:`airflow_demo.standalone`.
The catalog is that of ``$MEMWAL_CATALOG_URL``, the tables are those of
``$MEMWAL_CATALOG_SNAPSHOT``.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from memwal_airflow.dag_bundle import dags_folder
from memwal_airflow.dag_factory import snapshot_path

from airflow_demo.connect_server import ConnectServer, ConnectServerError
from airflow_demo.standalone import AirflowStandalone, AirflowStandaloneError
from memwal.errors import InvalidInputError

CHECK_SECONDS = 1.0


def main() -> int:
    """Run it; returns 0 after a signal, 1 if a component ended, 2 for invalid arguments."""
    parser = argparse.ArgumentParser(
        prog="python examples/airflow_demo",
        description="Run an Airflow on 127.0.0.1 that maintains the tables of the catalog.",
    )
    parser.add_argument(
        "--home",
        type=Path,
        default=Path("airflow"),
        metavar="FOLDER",
        help="where its settings, database, logs and passwords are (default: %(default)s)",
    )
    parser.add_argument(
        "--dags-folder",
        type=Path,
        default=dags_folder(),
        metavar="FOLDER",
        help="default: the one that came with memwal",
    )
    options = parser.parse_args()
    try:
        snapshot_path()
    except InvalidInputError as error:
        parser.error(str(error))
    if not options.dags_folder.is_dir():
        parser.error(f"there is no folder {options.dags_folder}; give --dags-folder")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    spark = ConnectServer(options.home / "logs" / "spark-connect.log")
    airflow = AirflowStandalone(
        options.home,
        dags_folder=options.dags_folder,
        settings={"memwal": spark.airflow_settings},
    )
    try:
        # Both take some ten seconds to start.
        spark.start()
        with airflow:
            spark.wait()
            print(f"{airflow.url}/plugin/memwal", flush=True)
            print(f"users and their passwords: {airflow.home / 'passwords.json'}", flush=True)
            while True:
                airflow.check()
                spark.check()
                time.sleep(CHECK_SECONDS)
    except KeyboardInterrupt:
        return 0
    except (AirflowStandaloneError, ConnectServerError, InvalidInputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    finally:
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
