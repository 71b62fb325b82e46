"""Stand-ins for Airflow, Spark and a browser."""
