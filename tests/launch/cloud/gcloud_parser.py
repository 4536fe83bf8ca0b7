"""The parser of the installed gcloud, in a process of gcloud's Python; no command is run.

As a program it is given the folder of the SDK. It reads lines, each a JSON list of argument lists,
and answers each with a JSON list: "" for what the parser accepts, else its message.
"""

import functools
import io
import json
import os
import shutil
import subprocess
import sys

SKIP = "needs gcloud with its alpha commands"


def installed():
    """Whether there is a gcloud, of whatever kind."""
    return shutil.which("gcloud") is not None


@functools.cache
def found():
    """(Python, folder of the SDK) of the installed gcloud; None where it lacks TPUs."""
    form = "--format=value(basic.python_location,installation.sdk_root)"
    shown = subprocess.run(["gcloud", "info", form], capture_output=True, text=True, check=True)
    python, root = shown.stdout.split()
    return (python, root) if os.path.isdir(f"{root}/lib/surface/compute/tpus") else None


class Parser:
    """The process: starting it takes longer than a hundred command lines."""

    def __init__(self):
        python, root = found()
        self._process = subprocess.Popen(
            [python, "-S", __file__, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
        )

    def refusals(self, command_lines):
        """What gcloud says to each argument list; "" where it accepts it."""
        self._process.stdin.write(json.dumps(command_lines) + "\n")
        self._process.stdin.flush()
        answers = json.loads(self._process.stdout.readline())
        assert len(answers) == len(command_lines)
        return answers

    def close(self):
        self._process.stdin.close()
        assert self._process.wait() == 0
        self._process.stdout.close()


def main(root):
    """Answers until its input ends."""
    sys.path[:0] = [f"{root}/lib", f"{root}/lib/third_party"]
    said = sys.stderr = io.StringIO()  # gcloud keeps the stream that it finds when imported
    from googlecloudsdk import gcloud_main

    parser = gcloud_main.CreateCLI([])._CLI__parser  # it has no public way to parse alone
    for line in sys.stdin:
        print(json.dumps([refusal(parser, said, one) for one in json.loads(line)]), flush=True)


def refusal(parser, said, arguments):
    """What the parser says, on the stream `said` or as an error."""
    said.seek(0)
    said.truncate()
    try:
        parser.parse_args(arguments)
    except SystemExit as end:
        return said.getvalue().strip() or f"exit code {end.code}"
    except Exception as error:  # of gcloud's own, which its command line would report
        return f"{type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":
    main(sys.argv[1])
