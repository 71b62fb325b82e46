"""YAML that somebody wrote: plain values, and nothing that YAML can do besides."""

from __future__ import annotations

from typing import Any

from memwal.extras import needs
from memwal.given_data import check_data


def read_yaml(text: str) -> Any:
    """What a YAML text says. Each value stands where it is: there are no names for them.

    A few lines of names that stand for one another would be more than fits into memory, already
    while they are read.

    Raises
    ------
    ValueError
        It is no YAML, or has tags, names of values, or what :func:`check_data` refuses.
    MissingExtraError
        PyYAML is not installed.
    """
    with needs("quality"):
        import yaml

    class Plain(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("names of values (*name) are not known here; write the value out")
            return super().compose_node(parent, index)

    try:
        loader = Plain(text)
        try:
            found = loader.get_single_data()
        finally:
            loader.dispose()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:
        # Its constructors trust what they are given, and raise whatever comes of it.
        raise ValueError(str(error) or type(error).__name__) from error
    check_data(found)
    return found
