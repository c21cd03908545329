"""`python -m homunculus` is `homunculus`."""

from homunculus.cli import main

main()
