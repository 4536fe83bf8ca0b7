"""One process of a run that is killed again and again: `worker.py FOLDER STORE STEPS SAVE_EVERY`.

Trains a tiny RetroMAE on packed passages with `train.train`, as any run does. What it is doing it
writes, a line each, into the pipe whose number is in MARKS; the engine knows nothing of that, its
functions are wrapped here. A thread that comes to a mark that begins with HOLD stops there, so that
a kill hits this moment, while the other threads continue. With TF_DATA=1 batches are read ahead
by tf.data; else the same ones are made in the loop, which spares the process TensorFlow: seconds.
"""

import functools
import hashlib
import json
import os
import sys
import threading
from pathlib import Path

from t5x_style.distributed import startup

VOCABULARY_SIZE = 300  # of tests.kits.tiny_stores


def mark(*words):
    line = " ".join(map(str, words))
    os.write(int(os.environ["MARKS"]), f"{line}\n".encode())
    if f"{line} ".startswith(f"{os.environ['HOLD']} "):
        os.write(int(os.environ["MARKS"]), f"held {line}\n".encode())
        threading.Event().wait()


def wrap(owner, name, before, after=lambda *_, **__: ()):
    """Marks calls of owner.name; `before` and `after` give the words of the mark, or nothing."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args, **kwargs):
        if words := before(*args, **kwargs):
            mark(*words)
        result = original(*args, **kwargs)
        if words := after(*args, **kwargs):
            mark(*words)
        return result

    setattr(owner, name, wrapped)


def watch():
    """Wraps what a kill may interrupt."""
    import jax

    from t5x_style.checkpoints import checkpoint_directory, checkpointing, checksums
    from t5x_style.training import hooks, trainer

    def updated(_, moment):
        jax.block_until_ready(moment.state.step)  # a step counts once it is computed
        return "step", moment.step

    def record(source, target):
        return (
            ("replace", Path(target).parent.name) if Path(target).name == "integrity.json" else ()
        )

    wrap(trainer.Trainer, "start", lambda *_: ("starting",), lambda run, *_: ("at", run.state.step))
    wrap(hooks.StopWhenNotFinite, "__call__", lambda *_: (), updated)
    wrap(checkpointing.Checkpointer, "save", lambda _, state, *__: ("save", int(state.step)))
    wrap(checksums, "write", lambda f: ("record", f.name), lambda f: ("saved", f.name))
    wrap(checksums.os, "replace", record)
    wrap(checkpoint_directory.shutil, "rmtree", deletion("delete"), deletion("deleted"))


def deletion(word):
    """Of an old checkpoint, in the background; the main thread deletes half-written ones."""

    def words(path, **_):
        is_old = threading.current_thread() is not threading.main_thread()
        return (word, Path(path).name) if is_old else ()

    return words


def arguments(folder, store, steps, save_every):
    """Of `train.train`."""
    import jax.numpy as jnp
    import numpy as np

    from input_pipelines.batches.packed_text import Pipeline
    from input_pipelines.store import example_proto
    from input_pipelines.store.token_store import Passages, TokenStore
    from models.networks import bert
    from models.objectives import retromae
    from t5x_style.checkpoints import checkpointing
    from t5x_style.distributed import partitioning
    from t5x_style.interfaces.contract import Vocabulary
    from t5x_style.interfaces.objective import GroupShape, embedder
    from t5x_style.step import optimizers
    from t5x_style.training import trainer
    from tests.kits import tiny_models

    class PlainStore(TokenStore):
        def read(self, rows):
            records = [example_proto.parse(record) for record in self._records(rows)]
            tokens, starts = (
                np.concatenate([record[name] for record in records]).astype(dtype)
                for name, dtype in (("tokens", np.int32), ("word_starts", bool))
            )
            return Passages(tokens, starts, self.lengths[rows].astype(np.int64))

    class InTheLoop(Pipeline):
        def batches(self, start_step, rows=None):
            return (self.batch(step, rows) for step in range(start_step, steps))

    class Vectors:
        name = "development"

        def evaluate(self, functions, step):
            mark("evaluate", step)
            group = pipeline.batch(0)["text"]
            norms = jnp.linalg.norm(embedder(functions, "passage")(group), axis=-1)
            mark("evaluated", step)
            return {"norm": float(np.asarray(norms).sum())}

    config = bert.BertConfig(
        vocab_size=VOCABULARY_SIZE, hidden=32, layers=2, heads=2, mlp=64, max_positions=32
    )
    shape = GroupShape(rows=8, length=64, segments=5)
    tf_data = os.environ["TF_DATA"] == "1"
    pipeline = (Pipeline if tf_data else InTheLoop)(
        [store if tf_data else PlainStore.open(store)],
        weights=None,
        temperature=1.0,
        seed=1,
        rows=shape.rows,
        length=shape.length,
        segments=shape.segments,
        block=200,
    )
    vocabulary = Vocabulary(VOCABULARY_SIZE, 0, 1, 2, 3, 4, (0, 1, 2, 3, 4), "f" * 64)
    objective = functools.partial(
        retromae.RetroMAE, config, tiny_models.EMBEDDING, vocabulary, shape, 0.3, 0.5, 128
    )
    return {
        "model_dir": str(folder),
        "objective": objective,
        "pipeline": pipeline,
        "optimizer": optimizers.AdamW(1e-3, 5, steps),
        "partitioner": partitioning.Partitioner(),
        "checkpointing": checkpointing.Checkpointing(keep=2),
        "cadence": trainer.Cadence(
            steps, log_every=3, evaluate_every=save_every + 3, save_every=save_every
        ),
        "seed": 3,
        "evaluators": [Vectors()],
        "development_metric": "development/norm",
    }


def digests(state, folder):
    """sha256 of what may not depend on kills, part by part."""
    import jax
    import numpy as np

    from t5x_style.training import metric_writer

    def digest(tree):
        found = hashlib.sha256()
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            found.update(f"{jax.tree_util.keystr(path)} {leaf.dtype} {leaf.shape}".encode())
            found.update(np.asarray(leaf).tobytes())
        return found.hexdigest()

    lines = [
        json.dumps({k: v for k, v in line.items() if not k.startswith(metric_writer.TIMING)})
        for line in metric_writer.read_lines(folder / metric_writer.JSONL)
    ]
    return {
        "step": int(state.step),
        "parameters": digest(state.params),
        "optimizer": digest(state.opt_state),
        "variables": digest(state.variables),
        "key": digest(jax.random.key_data(state.key)),
        "lines": len(lines),
        "metrics": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
    }


def main(folder, store, steps, save_every):
    mark("process")
    startup.start()
    from t5x_style import train
    from t5x_style.training import metric_writer, trainer

    watch()
    metric_writer.draw_curves = lambda *_: None  # spares each process matplotlib
    kept = {}
    wrap(trainer.Trainer, "fit", lambda run, *_: kept.update(run=run))  # marks nothing
    train.train(**arguments(folder, store, steps, save_every))
    if os.environ["TF_DATA"] != "1":
        assert "tensorflow" not in sys.modules
    (folder / "digests.json").write_text(json.dumps(digests(kept["run"].state, folder)))
    mark("end")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
