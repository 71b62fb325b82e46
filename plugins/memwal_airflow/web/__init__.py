"""The page in the Airflow UI: an app below ``/memwal``, imported by the API server only."""
