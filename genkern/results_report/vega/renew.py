"""Replaces the chart library by another release of it from npm: python genkern/results_report/vega/renew.py 6.2.0 6.4.1

Writes vega.min.js and vega-lite.min.js, and LICENCES.txt with the licence of each package that is built into them.
Needs npm. Vega-Lite has no other run-time dependency than Vega; Vega's are listed in its package.json.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Packages of the command lines of d3 and Vega-Lite, which are not part of the built files.
_NOT_BUILT_IN = (
    *("@types", "ansi-", "cliui", "commander", "emoji-regex", "escalade", "get-caller-file", "get-east-asian-width"),
    *("iconv-lite", "rw", "safer-buffer", "string-width", "strip-ansi", "wrap-ansi", "y18n", "yargs"),
)


def main(vega: str, vega_lite: str) -> None:
    """Install both releases into a temporary folder, and copy what the page needs."""
    with tempfile.TemporaryDirectory() as folder:
        packages = [f"vega@{vega}", f"vega-lite@{vega_lite}"]
        subprocess.run(
            ["npm", "install", "--prefix", folder, "--omit=dev", "--ignore-scripts", "--no-audit", *packages],
            check=True,
        )
        modules = Path(folder) / "node_modules"
        for name in ("vega", "vega-lite"):
            shutil.copyfile(modules / name / "build" / f"{name}.min.js", HERE / f"{name}.min.js")
        (HERE / "LICENCES.txt").write_text(licences(modules), encoding="utf-8")


def licences(modules: Path) -> str:
    """Return the licences of the packages that are built in; packages with equal texts share one."""
    by_text: dict[str, list[str]] = {}
    for package in sorted(modules.iterdir()):
        if package.name.startswith((".", *_NOT_BUILT_IN)):
            continue
        facts = json.loads((package / "package.json").read_text(encoding="utf-8"))
        file = next((each for each in sorted(package.iterdir()) if each.name.lower().startswith("licen")), None)
        text = file.read_text(encoding="utf-8").strip() if file else f"Licence: {facts['license']}"
        by_text.setdefault(text, []).append(f"{facts['name']} {facts['version']} ({facts['license']})")
    head = "The charts of this page are drawn by Vega and Vega-Lite, which contain these packages.\n\n"
    return head + "\n\n".join(f"{', '.join(names)}\n\n{text}" for text, names in by_text.items()) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: renew.py VEGA_RELEASE VEGA_LITE_RELEASE")
    main(*sys.argv[1:])
