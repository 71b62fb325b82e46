"""An Airflow for this machine, for trying memwal out.

``python examples/airflow_demo --home FOLDER`` runs it.
"""
