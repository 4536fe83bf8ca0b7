"""The parser of the installed gcloud, in a process of gcloud's Python; no command is run.

As a program it reads a JSON list of argument lists and the folder of the SDK, and prints a JSON
list: "" for what the parser accepts, else its message.
"""

import functools
import io
import json
import os
import shutil
import subprocess
import sys

SKIP = "needs gcloud with its alpha commands"


@functools.cache
def found():
    """(Python, folder of the SDK) of the installed gcloud; None where it is not there."""
    if shutil.which("gcloud") is None:
        return None
    form = "--format=value(basic.python_location,installation.sdk_root)"
    shown = subprocess.run(["gcloud", "info", form], capture_output=True, text=True, check=True)
    python, root = shown.stdout.split()
    return (python, root) if os.path.isdir(f"{root}/lib/surface/compute/tpus") else None


def refusals(command_lines):
    """What the parser says to each argument list; "" where it accepts it."""
    python, root = found()
    done = subprocess.run(
        [python, "-S", __file__, root],
        input=json.dumps(command_lines),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
    )
    return json.loads(done.stdout.splitlines()[-1])


def main(root):
    sys.path[:0] = [f"{root}/lib", f"{root}/lib/third_party"]
    said = sys.stderr = io.StringIO()  # gcloud keeps the stream that it finds when imported
    from googlecloudsdk import gcloud_main

    parser = gcloud_main.CreateCLI([])._CLI__parser  # it has no public way to parse alone
    answers = []
    for arguments in json.load(sys.stdin):
        said.seek(0)
        said.truncate()
        try:
            parser.parse_args(arguments)
            answers.append("")
        except Exception as error:  # of gcloud itself, which reports it in another way
            answers.append(f"{type(error).__name__}: {error}")
        except SystemExit as end:
            answers.append(said.getvalue().strip() or f"exit code {end.code}")
    sys.stderr = sys.__stderr__
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1])
