"""Connections, credentials and storage options in Airflow."""
