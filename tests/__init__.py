"""The test suite. `check` is its run-time type checker: beartype, but an int may stand where a float is asked for."""

from typing import Any


def check(function: Any) -> Any:
    from beartype import BeartypeConf, beartype  # absent on some GPU machines, where shapes go unchecked

    return beartype(conf=BeartypeConf(is_pep484_tower=True))(function)
