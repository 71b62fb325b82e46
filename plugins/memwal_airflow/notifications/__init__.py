"""Notifications of events through Airflow's connections."""
