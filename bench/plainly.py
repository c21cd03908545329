"""What is wrong, in one line, as `homunculus` says it."""

from collections.abc import Callable

from homunculus.errors import HomunculusError


def run(main: Callable[[], None]) -> None:
    """A script, from its arguments to its end."""
    try:
        main()
    except HomunculusError as error:
        raise SystemExit(f"error: {error}") from None
