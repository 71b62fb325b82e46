"""Running maintenance tasks on Apache Spark."""
