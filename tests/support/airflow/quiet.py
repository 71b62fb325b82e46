"""An Airflow that does what the test asks of it, and little else."""

QUIET = {
    # A new Airflow runs the fleet's DAG at once: five tasks, which take half a minute of processor.
    "AIRFLOW__MEMWAL__FLEET_SCHEDULE": "none",
    # The embedded Airflow reads its DAG files every 5 s, which keeps a tenth of a processor busy.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "30",
}
"""For the environment of an embedded Airflow whose tables are registered before it starts."""
