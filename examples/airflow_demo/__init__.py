"""A local Airflow for trials of memwal.

``python examples/airflow_demo --home FOLDER`` runs it.
"""
