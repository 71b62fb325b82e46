"""Run by Alembic for every command; the connection is the caller's, in its transaction."""

from __future__ import annotations

from alembic import context

from memwal.catalog.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    # SQLite cannot alter most of a table; later revisions copy it instead.
    render_as_batch=True,
)
context.run_migrations()
