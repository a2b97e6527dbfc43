"""`duplex serve`: a gateway in the foreground."""

from __future__ import annotations

import argparse

from duplex.cli import logs
from duplex.cli.gateway import in_words, loading, settings
from duplex.cli.options import flags_of


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT."""
    from duplex.server.run import serve

    config = settings(args, flags_of(args), args.config)
    logs.to_stderr(tracebacks=True)
    with in_words(), loading():
        serve(config)
    return 0
