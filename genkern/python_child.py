"""Child processes that run Python: their command lines and their sys.path, without the current folder in front.

`python -m MODULE` and `python -c CODE` put the current folder first on sys.path, so a file random.py there would be
imported in the place of Python's own. PYTHONSAFEPATH prevents that from Python 3.11 on, this module in Python 3.10 too.
This file is also the program that a child runs, `python python_child.py MODULE ARGUMENTS`: a plain command line, which
survives profilers that are shell scripts. At its top it imports nothing but sys.
"""

from __future__ import annotations

import sys

# With -c Python puts "" first on sys.path, after it has imported `site`.
_WITHOUT_CURRENT_FOLDER = "import sys; sys.path[:] = filter(None, sys.path); "


def leave_current_folder() -> None:
    """Take the current folder, which `python -m genkern` puts first, from the front of sys.path.

    If genkern itself is there (a checkout that is not installed), the folder stays on sys.path behind the standard
    library: before site-packages, so that another genkern there is not imported in its place.
    """
    import os

    try:
        here = os.getcwd()
    except OSError:
        return
    if getattr(sys.flags, "safe_path", False) or sys.path[:1] not in ([""], [here]):
        return
    del sys.path[0]
    if os.path.realpath(here) == os.path.realpath(_root()) and here not in sys.path:
        library = os.path.dirname(os.__file__)
        standard = (i for i, path in enumerate(sys.path) if path in (library, os.path.join(library, "lib-dynload")))
        sys.path.insert(max(standard, default=len(sys.path) - 1) + 1, here)


def _root() -> str:
    """Return the folder in which Python finds genkern."""
    import os

    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def module_argv(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line that runs `module` as `python -m MODULE ARGUMENTS` does, without the current folder."""
    import os

    return sys.executable, os.path.abspath(__file__), module, *arguments


def code_argument(code: str) -> str:
    """Return the text after `python -c` that runs `code` without the current folder on sys.path."""
    return _WITHOUT_CURRENT_FOLDER + code


def child_environment() -> dict[str, str]:
    """Return this process's environment, in which another Python finds the modules that this one finds.

    Relative entries of sys.path are made absolute. "", the current folder of an interactive Python, is left out; if
    genkern itself is there, its folder comes last.
    """
    import os

    paths = [os.path.abspath(path) for path in sys.path if path]
    if (root := _root()) not in paths:
        paths.append(root)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _run_module() -> None:
    """Run the module that the first argument names as __main__, with the other arguments."""
    # Python puts the folder of a script first, which here is that of genkern's own modules.
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]
    sys.path[:] = filter(None, sys.path)
    from runpy import run_module

    del sys.argv[0]
    run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run_module()
