"""Maintained indexes: kinds, parameters, files, segments, catch-up and balance."""
