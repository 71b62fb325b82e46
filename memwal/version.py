"""The version of memwal, and a warning when another project is installed into its folder.

The distribution is named ``lance-memwal``, because PyPI has another project ``memwal``. Both
install the package ``memwal``, so each replaces files of the other.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"

DISTRIBUTION = "lance-memwal"
"""Name of the distribution, which ``pip`` and ``importlib.metadata`` know."""


def namesake(site: str = os.path.dirname(os.path.dirname(__file__))) -> str | None:
    """Name the other project whose package ``memwal`` is in the same folder, and the remedy.

    None if memwal has the folder ``memwal`` for itself. ``site`` is the folder above it. Lists one
    folder, which takes less than a millisecond; ``importlib.metadata`` takes 50.
    """
    try:
        names = os.listdir(site)
    except OSError:
        # The package is in a zip file.
        return None
    for name in names:
        if name.startswith("memwal-") and name.endswith(".dist-info"):
            project = name.removesuffix(".dist-info").replace("-", " ")
            return (
                f"another project, {project}, is installed in {os.path.join(site, 'memwal')} as "
                f"well, and the two replace files of each other; first uninstall both "
                f"(pip uninstall memwal {DISTRIBUTION}), then install {DISTRIBUTION} again"
            )
    return None
