"""Diagnostics inside training: on which texts, for which objectives, without changing a bit."""

import dataclasses
import functools
import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.losses import contrastive
from models.objectives import bi_encoder, labse, mlm
from t5x_style.checkpoints import checkpointing
from t5x_style.distributed import partitioning
from t5x_style.evaluation.embedding_report import Report
from t5x_style.evaluation.embedding_sample import EmbeddingSample, by_side, match_groups
from t5x_style.interfaces.objective import GroupShape, ModelFunction, Objective, dense_functions
from t5x_style.step import jitted_functions
from t5x_style.training import hooks, metric_writer, progress, trainer
from tests.kits import tiny_models
from tests.kits.toys.toy_objective import Toy, ToyPipeline
from tests.t5x_style.training import test_trainer
from tests.t5x_style.training.test_trainer import CADENCE, TEXT, TOY

SHAPE = GroupShape(rows=8, length=24, segments=1)
OTHER = GroupShape(rows=16, length=24, segments=2)
TINY = (tiny_models.CONFIG, tiny_models.EMBEDDING, tiny_models.VOCABULARY)


def toy(rows: int, segments: int = 1) -> Objective:
    return Toy(GroupShape(rows, 12, segments), 32, 8, 16, rngs=nnx.Rngs(0))


def mesh(*shape: int) -> partitioning.Partitioner:
    return partitioning.Partitioner(
        partitioning.MeshShape(*shape), devices=jax.devices()[: int(np.prod(shape))]
    )


class Counting(ToyPipeline):
    """Remembers which rows were asked for."""

    def batch(self, step: int, rows: Any = None) -> Any:
        assert step == 0
        asked_rows.append(rows.tolist())
        return super().batch(step, rows)


asked_rows: list[list[int]] = []


def measured(rows: int, partitioner: partitioning.Partitioner, pipeline: Any = None) -> Report:
    module = toy(rows)
    pipeline = pipeline or ToyPipeline(GroupShape(rows, 12, 1), 32)
    graph, params, variables = nnx.split(module, nnx.Param, ...)
    jitted = jitted_functions.jitted_functions(graph, module.functions())
    functions = jitted_functions.bound(jitted, params, variables)
    return EmbeddingSample(module, pipeline, partitioner).measure(functions, 0)


def group_of(objective: Objective) -> dict[str, str]:
    (specs,) = objective.batch_specs()
    return match_groups(by_side(objective.functions()), specs)


def test_groups_go_to_the_functions_that_embed_them() -> None:
    plain = contrastive.ContrastiveConfig()
    pooled = dataclasses.replace(tiny_models.EMBEDDING, pooling="pooler", similarity="cosine")
    pairs = bi_encoder.BiEncoder(*TINY, SHAPE, OTHER, plain, rngs=nnx.Rngs(0))
    assert group_of(pairs) == {"query": "query", "passage": "passage"}
    same = bi_encoder.BiEncoder(*TINY, SHAPE, SHAPE, plain, rngs=nnx.Rngs(0))
    assert group_of(same) == {"query": "query", "passage": "passage"}
    translations = labse.LaBSE(
        TINY[0], pooled, TINY[2], SHAPE, SHAPE, plain, rngs=nnx.Rngs(0)
    )  # fmt: skip
    assert group_of(translations) == {"query": "source", "passage": "target"}
    text = mlm.Mlm(*TINY, SHAPE, 0.3, 16, rngs=nnx.Rngs(0))
    assert group_of(text) == {"passage": "text"}


def test_functions_without_a_group_are_left_out() -> None:
    spec = SHAPE.spec()
    both = by_side(dense_functions(lambda group: group["tokens"], SHAPE, SHAPE))
    assert match_groups(both, {"query": spec, "known": {"row": spec["cls_at"]}}) == {
        "query": "query"
    }
    assert match_groups(both, {"known": {"row": spec["cls_at"]}}) == {}
    score = ModelFunction(lambda group: group, spec, "[B, S] float32", "score")
    assert by_side({"score": score}) == by_side({"embed_passage": score}) == {}
    sparse = ModelFunction(lambda group: {}, spec, "", "embed", "passage", ("sparse",))
    assert by_side({"embed_passage": sparse}) == {}
    assert match_groups({}, {"text": spec}) == {}


def test_the_same_figures_on_any_mesh() -> None:
    one = measured(16, mesh(1, 1, 1))
    assert set(one.figures) == {"score_std", "mean_cosine", "effective_rank", "uniformity"}
    for other in (mesh(2, 1, 1), mesh(2, 2, 2)):
        assert measured(16, other).figures == pytest.approx(one.figures, rel=1e-5)


def test_a_large_batch_is_read_in_pieces_up_to_512_texts() -> None:
    """And the same rows of it, whatever the mesh."""
    shape = GroupShape(1200, 12, 1)
    found = {}
    for name, partitioner in (("one", mesh(1, 1, 1)), ("eight", mesh(8, 1, 1))):
        asked_rows.clear()
        found[name] = measured(1200, partitioner, Counting(shape, 32))
        assert {row for piece in asked_rows for row in piece} == set(range(512))
        assert max(map(len, asked_rows)) <= 8 * 32
    assert found["eight"].figures == pytest.approx(found["one"].figures, rel=1e-5)


def test_a_last_piece_is_filled_with_rows_that_count_once() -> None:
    """40 rows in pieces of 32 on one device; at once on eight."""
    shape = GroupShape(40, 12, 1)
    asked_rows.clear()
    pieces = measured(40, mesh(1, 1, 1), Counting(shape, 32))
    assert asked_rows == [[*range(32)], [*range(32, 40), *range(24)]]
    whole = measured(40, mesh(8, 1, 1), ToyPipeline(shape, 32))
    assert pieces.figures == pytest.approx(whole.figures, rel=1e-5)


def test_packed_rows_count_with_all_their_segments() -> None:
    sample = EmbeddingSample(
        toy(24, segments=64), ToyPipeline(GroupShape(24, 12, 64), 32), mesh(8, 1, 1)
    )
    assert sample._plan().rows.tolist() == [[*range(8)]]  # 8 rows hold up to 512 texts


def curves(folder: Any, prefix: str) -> list[dict[str, float]]:
    """The logged lines with such metrics, without times."""
    lines = metric_writer.read_lines(folder / "metrics.jsonl")
    return [
        {k: v for k, v in line.items() if not k.startswith(metric_writer.TIMING)}
        for line in lines
        if any(name.startswith(prefix) for name in line)
    ]


def parameters(run: trainer.Trainer) -> str:
    found = hashlib.sha256()
    for leaf in jax.tree.leaves((run.state.params, run.state.opt_state, run.state.variables)):
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()


def test_training_is_the_same_with_diagnostics_and_without(tmp_path: Any) -> None:
    run, _ = test_trainer.train(tmp_path / "with")
    steps = [line["step"] for line in curves(tmp_path / "with", "embeddings/")]
    assert steps == [0, 4, 8, 12]  # also without evaluate_at_start
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks.Diagnose, "__call__", lambda self, moment: None)
        other, _ = test_trainer.train(tmp_path / "without")
    assert curves(tmp_path / "without", "embeddings/") == []
    assert parameters(run) == parameters(other)
    for prefix in ("train/", "eval/"):
        found, expected = (curves(tmp_path / name, prefix) for name in ("with", "without"))
        assert found == expected and found


@pytest.mark.parametrize("step", [3, 7])  # before and after the first checkpoint
def test_a_resumed_training_logs_step_0_once(tmp_path: Any, step: int) -> None:
    test_trainer.train(tmp_path / "whole")
    with pytest.raises(test_trainer.Killed):
        test_trainer.train(tmp_path / "cut", pipeline=test_trainer.killed_at(step))
    test_trainer.train(tmp_path / "cut")
    found, expected = (curves(tmp_path / name, "embeddings/") for name in ("cut", "whole"))
    assert found == expected and [line["step"] for line in found] == [0, 4, 8, 12]


class Copies(ToyPipeline):
    """All rows hold the same tokens."""

    def batch(self, step: int, rows: Any = None) -> Any:
        batch = super().batch(step, rows)
        batch["text"]["tokens"] = np.broadcast_to(
            np.arange(12, dtype=np.int32), batch["text"]["tokens"].shape
        )
        return batch


def fit(folder: Any, make: Any = TOY, pipeline: Any = None) -> None:
    run = test_trainer.build(folder, make, pipeline)
    run.start()
    log = metric_writer.MetricLog(folder, 0)
    assert run.fit(log, progress.TrainingProgress("toy", 0, CADENCE.steps), {})
    run.checkpointer.close()


def test_step_0_is_shown_in_one_line_and_a_problem_once(tmp_path: Any, capsys: Any) -> None:
    fit(tmp_path / "plain")
    shown = capsys.readouterr()
    lines = [line for line in shown.out.splitlines() if "embeddings" in line]
    assert len(lines) == 1 and lines[0].startswith("[toy] step 0, embeddings: score std ")
    assert "mean cosine" in lines[0] and "effective rank" in lines[0]
    assert "warning" not in shown.err
    fit(tmp_path / "copies", pipeline=Copies(TEXT, 32))
    shown = capsys.readouterr()
    assert shown.err.count("[toy] warning: all texts equal: the 16 passage texts") == 1
    assert "[toy] step 0, embeddings: no figures" in shown.out
    assert curves(tmp_path / "copies", "embeddings/") == []


def test_an_objective_that_embeds_nothing_is_left_out(tmp_path: Any, capsys: Any) -> None:
    class Silent(Toy):
        def functions(self) -> dict[str, ModelFunction]:
            return {}

    fit(tmp_path, functools.partial(Silent, TEXT, 32, 8, 16))
    assert curves(tmp_path, "embeddings/") == []
    assert "embeddings" not in capsys.readouterr().out
    assert curves(tmp_path, "train/")


@pytest.mark.slow
def test_a_contrastive_training_says_what_its_start_is_like(tmp_path: Any, capsys: Any) -> None:
    """The whole way, on two devices, with packed rows; the warning comes before the first step."""
    query, passage = GroupShape(4, 24, 2), GroupShape(8, 24, 2)
    flat = dataclasses.replace(tiny_models.CONFIG, initializer_range=1e-4)
    vectors = dataclasses.replace(tiny_models.EMBEDDING, normalise=True, similarity="cosine")

    class Pairs:
        fingerprint = "pairs"

        def specs(self) -> Any:
            module = make(rngs=nnx.Rngs(0))
            return tiny_models.specs_of(module)

        def batch(self, step: int, rows: Any = None) -> Any:
            rows = np.arange(4) if rows is None else rows
            parts = tiny_models.segments(16, seed=step, longest=11)
            asked = [[(100 + 2 * r + s, parts[2 * r + s][1][:5]) for s in (0, 1)] for r in rows]
            own = [2 * r + k for r in rows for k in (0, 1)]
            shown = [[(100 + r, parts[r][1]), (100 + r, parts[15 - r][1])] for r in own]
            group = {k: np.array(v) for k, v in tiny_models.group(shown, 24, 2).items()}
            group["document_id"] = np.array([[r, 15 - r] for r in own], np.int32)
            group["relevance"] = np.tile(np.array([[1, 0]], np.int32), (len(own), 1))
            query = {k: np.asarray(v) for k, v in tiny_models.group(asked, 24, 2).items()}
            return {"query": query, "passage": group}

        def batches(self, start_step: int, rows: Any) -> Any:
            for step in range(start_step, 100):
                yield self.batch(step, rows)

    def make(*, rngs: nnx.Rngs) -> Objective:
        return bi_encoder.BiEncoder(
            flat, vectors, TINY[2], query, passage, contrastive.ContrastiveConfig(), rngs=rngs
        )

    run = trainer.Trainer(
        make, Pairs(), dataclasses.replace(test_trainer.OPTIMIZER, no_decay=()), mesh(2, 1, 1),
        checkpointing.Checkpointer(tmp_path / "kept", checkpointing.Checkpointing(keep=1)),
        dataclasses.replace(CADENCE, steps=2), seed=3,
    )  # fmt: skip
    run.start()
    log = metric_writer.MetricLog(tmp_path, 0)
    assert run.fit(log, progress.TrainingProgress("pairs", 0, 2), {})
    run.checkpointer.close()
    start, end = curves(tmp_path, "embeddings/")
    assert start["step"] == 0 and end["step"] == 2
    assert {"embeddings/alignment", "embeddings/possible_gain"} <= start.keys()
    assert all(jnp.isfinite(value) for value in start.values())
    shown = capsys.readouterr()
    assert "[pairs] warning: the contrastive loss has almost no gradient at step 0" in shown.err
    assert "order of 16 candidates" in shown.err
    assert "step 0, embeddings: score std" in shown.out
