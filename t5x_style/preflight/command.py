"""The command: flags, one training or a whole recipe, text and JSON.

    python -m t5x_style.preflight --gin_file=gin_configs/recipes/retromae_paper.gin \\
        --topology=v5e:8x8 --json

Takes the flags of `t5x_style.train`, or of `launch.recipe` for a recipe, of which it checks all
training stages, and:

    --topology=v5e:8x8       the slice
    --vocabulary_size=30522  for a tokenizer that does not exist yet; in a recipe, the stage that
                             makes it states the size
    --stage=pretrain         only this stage of a recipe
    --vary=NAME=1,2,3        the FLOPs with these values of a macro, too; nothing more is compiled
    --json                   the last line of the output is one JSON object

Exit code 0: it fits. 1: it does not, or an error, printed in a few lines.
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

import jax

from t5x_style.accelerators.slices import Slices
from t5x_style.configuration import command_flags, gin_checks
from t5x_style.configuration.gin_reader import closest
from t5x_style.preflight import configuration, program, report, topology
from t5x_style.preflight.configuration import VocabularySize
from t5x_style.workflow import fingerprints, recipe_planning, recipe_reader, stage_runner, stages
from t5x_style.workflow.plans import StageError
from t5x_style.workflow.store import StoreError


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command of `sys.argv` and exits."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        prog="python -m t5x_style.preflight", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    command_flags.add_preflight(parser)
    options, rest = parser.parse_known_args(words)
    # No device of this machine is touched, whatever it has.
    jax.config.update("jax_platforms", "cpu")
    # JAX would keep such programs, and then cannot read them without a TPU.
    jax.config.update("jax_enable_compilation_cache", False)
    sys.exit(stage_runner.guarded(lambda flags: run(flags, options), rest))


def run(flags: gin_checks.Flags, options: argparse.Namespace) -> int:
    """Checks what the flags describe; returns the exit code."""
    slice_ = topology.parse(options.topology)
    stated = None
    if options.vocabulary_size is not None:
        stated = VocabularySize(options.vocabulary_size, "--vocabulary_size")
    if recipe_reader.is_recipe(flags.read()):
        result = _check_recipe(flags, slice_, stated, options)
    elif options.stage:
        raise gin_checks.GinError(f"--stage={options.stage}: the gin files describe no recipe.")
    else:
        result = _check(flags, slice_, stated, options.vary)
        _require_used(stated, [result])
    if options.json:
        print(json.dumps(result), flush=True)
    return 0 if result["fits"] else 1


def _check(
    flags: gin_checks.Flags, slice_: Slices, vocabulary: VocabularySize | None, vary: str | None
) -> report.Record:
    training, assumed = configuration.resolve(flags, str(slice_), vocabulary)
    cost = program.examine(training, slice_)
    print(report.text(cost, assumed), flush=True)
    return report.record(cost, assumed) | _varied(flags, slice_, vocabulary, vary)


def _varied(
    flags: gin_checks.Flags, slice_: Slices, vocabulary: VocabularySize | None, vary: str | None
) -> report.Record:
    """{"varied": {value: FLOPs}} of the values of `--vary`, printed on the way."""
    if vary is None:
        return {}
    name, _, values = vary.partition("=")
    if not name or not values:
        raise gin_checks.GinError(f"--vary={vary}: expected NAME=VALUE,VALUE")
    found = {}
    for value in values.split(","):
        others = tuple(one for one in flags.overrides if one[0] != name)
        changed = dataclasses.replace(flags, overrides=(*others, (name, value)))
        training, _ = configuration.resolve(changed, str(slice_), vocabulary)
        total, after_update = program.products(training)
        found[value] = {"flops_per_step": total, "after_update_flops_per_step": after_update}
        share = f", {after_update / total:.1%} of them after the update" if after_update else ""
        print(f"with {name} = {value}: {total:.3e} FLOPs a step{share}", flush=True)
    return {"varied": found}


def _require_used(stated: VocabularySize | None, records: Sequence[report.Record]) -> None:
    if stated is not None and not any(record["assumptions"] for record in records):
        raise configuration.MissingError(
            "--vocabulary_size: every tokenizer exists or is described by the recipe; leave it out"
        )


def _check_recipe(
    flags: gin_checks.Flags,
    slice_: Slices,
    stated: VocabularySize | None,
    options: argparse.Namespace,
) -> report.Record:
    recipe = recipe_reader.load(flags)
    known = _known(recipe, flags)
    stages: dict[str, report.Record] = {}
    for item in _trainings(recipe, flags, options.stage):
        stage_flags = recipe_planning.stage_flags(recipe, item, flags, known)
        vocabulary = stated or _made_by_recipe(recipe, item, flags, known)
        print(item.name, flush=True)
        stages[item.name] = _check(stage_flags, slice_, vocabulary, options.vary)
    _require_used(stated, list(stages.values()))
    fits = all(one["fits"] for one in stages.values())
    return {
        "topology": str(slice_),
        "devices": slice_.all_devices,
        "fits": fits,
        "stages": stages,
    }


def _trainings(
    recipe: recipe_reader.Recipe, flags: gin_checks.Flags, only: str | None
) -> list[recipe_reader.Stage]:
    """The stages that train; or one of them, by name."""
    found = [one for one in recipe.stages if one.job == configuration.JOB]
    names = [one.name for one in found]
    if not found:
        raise recipe_reader.RecipeError(f"No stage of the recipe runs {configuration.JOB}.")
    if only is not None and only not in names:
        raise recipe_reader.RecipeError(f"--stage={only}: no such training{closest(only, names)}")
    return [one for one in found if only in (None, one.name)]


def _known(recipe: recipe_reader.Recipe, flags: gin_checks.Flags) -> recipe_planning.Known:
    """Stages that are done; inputs of the recipe need not be on this machine."""
    known = recipe_planning.Known()
    for item in recipe.stages:
        try:
            decision = stages.decide(recipe_planning.plan(recipe, item, flags, known))
        except (fingerprints.InputError, StageError, StoreError):
            decision = None
        if decision is None or decision.status != "done" or decision.version is None:
            known.pending.add(item.name)
        else:
            known.done[item.name] = decision.version
    return known


def _made_by_recipe(
    recipe: recipe_reader.Recipe,
    item: recipe_reader.Stage,
    flags: gin_checks.Flags,
    known: recipe_planning.Known,
) -> VocabularySize | None:
    """The size set for this stage's missing tokenizer in the stage that makes it."""
    config = recipe_planning.stage_flags(recipe, item, flags, known).read()
    missing = set(configuration.missing_tokenizers(config).values())
    makers = [
        one.stage
        for one in item.needs()
        if recipe_planning.output_path(recipe, one, known) in missing
    ]
    for maker in [one for one in recipe.stages if one.name in makers]:
        made = recipe_planning.stage_flags(recipe, maker, flags, known).read()
        job = maker.job
        binding = made.bindings.get(("", job, "vocabulary_size"))
        size = binding and made.expand(binding.value, binding.where)
        if isinstance(size, int):
            return VocabularySize(size, f"stage {maker.name} of the recipe")
    return None
