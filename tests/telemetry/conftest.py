"""Spans of jobs."""

from support.metrics.spans import traced as traced
