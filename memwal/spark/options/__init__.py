"""Options of loads and writes, as Spark passes them."""
