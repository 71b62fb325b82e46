"""Regions: manifest, spec, ids, routing of rows, and discovery."""
