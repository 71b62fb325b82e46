"""Renderings that are stored beside their tests: ``pytest --renew FILE`` writes them anew."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stored:
    """Holds what is rendered against what is stored.

    Attributes
    ----------
    folder : Path
        Where renderings are stored.
    renew : bool
        Whether to store what is rendered in place of holding it against what is stored.
    """

    folder: Path
    renew: bool

    def __call__(self, name: str, text: str) -> None:
        """Hold a rendering against the stored one of this name, or store it."""
        path = self.folder / name
        if self.renew:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text, f"read the difference; then renew {path} with --renew"
