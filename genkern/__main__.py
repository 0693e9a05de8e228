"""The command: `genkern`, or `python -m genkern`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from rich.console import Console

from genkern.errors import GenkernError
from genkern.options import parse
from genkern.run import run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: 0, 1 for wrong or missing results, 2 for what a user must put right."""
    console = Console(soft_wrap=True, highlight=False, markup=False)
    signal.signal(signal.SIGTERM, _stop)
    try:
        return run(parse(sys.argv[1:] if argv is None else argv), console)
    except GenkernError as error:
        print(f"genkern: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("genkern: stopped; run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output left (a pager, head): nothing more to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def _stop(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
