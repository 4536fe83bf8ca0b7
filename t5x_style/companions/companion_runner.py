"""Runs a companion of a stage from its command line; see `workflow.recipe_companions`.

A companion's program is a function that gin fills, in a module that ends with

    sys.exit(companion_runner.main(watch, sys.argv[1:]))
"""

from collections.abc import Callable, Sequence

from t5x_style.configuration import gin_checks
from t5x_style.configuration.gin_reader import GinError
from t5x_style.workflow import remote_store, stage_runner, stages


def main(
    program: Callable[..., None], argv: Sequence[str], begin: Callable[[], None] = lambda: None
) -> int:
    """Checks the configuration, fetches what the program reads, and calls it.

    Args:
      program: fills its parameters from gin; runs until its stage has ended.
      argv: flags of gin.
      begin: called before anything is read, such as `startup.start`.

    Returns:
      the exit code; 1 with a message where something is wrong.
    """
    name = f"{program.__module__}.{program.__qualname__}"

    def run(flags: gin_checks.Flags) -> int:
        stage_runner.die_with_parent()
        if not flags.files:
            raise GinError(f"{name} needs its gin files: pass --gin_file=FILE")
        begin()
        config = flags.read()
        gin_checks.check_names(config, (name,))
        gin_checks.check_code(config)
        gin_checks.check_job(config, name)
        with remote_store.named_here(flags, stages.inputs_of(config)) as here:
            gin_checks.parse(here.read())
            gin_checks.configured(program)()
        return 0

    return stage_runner.guarded(run, argv)
