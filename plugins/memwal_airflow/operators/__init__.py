"""Operators: one Spark application per maintenance job."""
