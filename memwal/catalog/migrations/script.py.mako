"""${message}"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Bring the schema from the revision before to this one."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Take the schema back."""
    ${downgrades if downgrades else "pass"}
