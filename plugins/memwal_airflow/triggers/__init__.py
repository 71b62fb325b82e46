"""Triggers that poll a table in Airflow's triggerer."""
