"""Spans of jobs."""

from __future__ import annotations

from support.metrics.spans import traced as traced
