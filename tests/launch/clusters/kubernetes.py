"""A model of what Kubernetes does to the command and the variables of a container.

As its sources have it (third_party/forked/golang/expansion, `makeEnvironmentVariables` of the
kubelet): a variable's value may refer to those before it, a command to all of them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Process:
    """What a container is started with."""

    command: list[str]
    environment: dict[str, str]


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes a value, if there is one, and `$$` a dollar; by bytes, as there."""
    source, found, place = text.encode(), bytearray(), 0
    while place < len(source):
        following = source[place + 1 : place + 2]
        if source[place : place + 1] != b"$" or not following:
            found += source[place : place + 1]
            place += 1
        elif following == b"$":
            found += b"$"
            place += 2
        elif following == b"(" and (end := source.find(b")", place)) > 0:
            name = source[place + 2 : end].decode()
            found += variables.get(name, f"$({name})").encode()
            place = end + 1
        else:
            found += b"$" + chr(following[0]).encode()  # a byte is taken for a character
            place += 2
    return found.decode()


def processes(manifest: Mapping[str, Any]) -> Iterator[Process]:
    """Of each container of a JobSet."""
    for replicated in manifest["spec"]["replicatedJobs"]:
        for container in replicated["template"]["spec"]["template"]["spec"]["containers"]:
            environment: dict[str, str] = {}
            for variable in container["env"]:
                environment[variable["name"]] = expand(variable["value"], environment)
            command = [expand(word, environment) for word in container["command"]]
            yield Process(command, environment)
