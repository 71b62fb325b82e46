"""The pages of the documentation, run and checked."""
