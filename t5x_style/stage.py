"""Run a job of any package as a stage; gin files bind it as `stage.run`.

    python -m t5x_style.stage --gin_file=... --gin.MODEL_DIR=...

The gin file says which job: `stage.run.job = @prepare.prepare`. See `workflow.stages`.
"""

import importlib

from t5x_style.workflow.stage_runner import main as main
from t5x_style.workflow.stages import run as run

if __name__ == "__main__":
    # through the import system: gin must meet this module under its own name, not as __main__
    importlib.import_module("t5x_style.stage").main()
