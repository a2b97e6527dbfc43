"""The `duplex` command.

Nothing heavy is imported before a command runs: `duplex --help` needs the parser alone.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from duplex.cli.errors import CommandError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit code is 0, 1 for a failure, 2 for a request that cannot be served."""
    from duplex.cli.options import build_parser

    words = sys.argv[1:] if argv is None else list(argv)
    args = build_parser(words).parse_args(words)
    module = importlib.import_module(f"duplex.cli.{args.command}")
    try:
        return int(module.run(args))
    except CommandError as error:
        print(f"duplex {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        # what we print to has gone (`duplex watch … | head`): nothing is left to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
