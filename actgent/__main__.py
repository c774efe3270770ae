"""`python -m actgent`: the command `actgent`."""

from .cli import main

main()
