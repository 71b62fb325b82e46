"""Regions of a table: manifests, specs, ids, routing of rows, and discovery."""
