"""The program: ``advisor``, or ``python -m advisor``."""

import sys


def main() -> None:
    """Run the command line. Ctrl-C ends it with one line also while its modules are imported."""
    try:
        from advisor.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("advisor: stopped\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
