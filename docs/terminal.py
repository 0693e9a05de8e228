"""Draw a command and its captured terminal output as an SVG picture.

    python docs/terminal.py CAPTURE PICTURE.svg "genkern -i sizes.yaml --compare"

CAPTURE is the output of the command with colours (FORCE_COLOR=1, COLUMNS=100). Long captures are not cut.
"""

from __future__ import annotations

import argparse
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

_COLUMNS = 100


def picture(capture: str, command: str) -> str:
    """Return the SVG of a terminal window that shows the command, then its output."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    console.print(Text.from_ansi(capture))
    # A fixed id keeps the picture the same for the same capture.
    drawn = console.export_svg(title="genkern", theme=MONOKAI, unique_id="genkern")
    # Without the fonts that rich's pictures load from the network.
    return re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("capture", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("command")
    options = parser.parse_args()
    # Progress bars are drawn while the cursor is hidden, and are gone at the end.
    capture = re.sub(r"\x1b\[\?25l.*?\x1b\[\?25h\s*", "", options.capture.read_text(encoding="utf-8"), flags=re.DOTALL)
    options.picture.write_text(picture(capture, options.command) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
