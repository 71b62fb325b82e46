"""The page in the Airflow UI: an app below ``/memwal`` of the API server.

Airflow loads plugins in every process, and only the API server needs this: nothing is imported
here.
"""
