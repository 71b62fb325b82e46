"""Commands of the program ``memwal``, one module per group."""
