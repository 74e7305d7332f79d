"""`python -m command_bus` is the program `command-bus`."""

from __future__ import annotations

from command_bus.cli import main

if __name__ == "__main__":
    main()
