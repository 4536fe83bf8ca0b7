"""Estimate the cost of a run on a slice that we do not have: `python -m t5x_style.preflight`.

    python -m t5x_style.preflight --gin_file=... --topology=v5e:8x8 [--json]

Resolves a training's configuration as `t5x_style.train` does, checks divisibility, and compiles the
very step that the trainer runs, ahead of time, for the chips of a topology: libtpu does this on any
CPU. No data is read and none needs to exist. `command` lists flags, output and exit codes.
"""
