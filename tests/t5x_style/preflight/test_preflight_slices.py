"""Preflight for several slices, and for chips of two devices."""

import dataclasses
import json
from pathlib import Path

import pytest
from gin import config as gin_config

from t5x_style.accelerators.generations import GENERATIONS
from t5x_style.preflight import collectives, hlo, largest, slice_transfers, topology, traffic
from tests.t5x_style.preflight.preflight_runs import flags, run

REPOSITORY = Path(__file__).resolve().parents[3]

# A gradient summed inside a slice of four devices, between three slices, and put together again.
PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=4

ENTRY %main (a: f32[64,8]) -> f32[64,8] {
  %a = f32[64,8]{1,0:T(8,128)} parameter(0)
  %gradient = f32[64,8]{1,0:T(8,128)S(1)} negate(%a), metadata={op_name="jit(step)/grad"}
  %part = f32[16,8]{1,0:T(8,128)} reduce-scatter(%gradient), replica_groups={{0,1,2,3}}
  %flat = f32[1,128]{1,0:T(1,128)} bitcast(%part)
  %first = token[] after-all()
  %send = (f32[1,128]{1,0:T(1,128)}, u32[], token[]) send(%flat, %first), TARGET
  %recv = (f32[1,128]{1,0:T(1,128)}, u32[], token[]) recv(%first), channel_id=1
  %sent = token[] send-done(%send), channel_id=2, is_host_transfer=true
  %there = (f32[1,128]{1,0:T(1,128)}, token[]) recv-done(%recv), channel_id=1
  %sum = f32[1,128]{1,0:T(1,128)} get-tuple-element(%there), index=0
  %back = f32[16,8]{1,0:T(8,128)} bitcast(%sum)
  ROOT %all = f32[64,8]{1,0:T(8,128)S(1)} all-gather(%back), replica_groups={{0,1,2,3}}
}
"""
PART = 16 * 8 * 4  # bytes of a device's part of the gradient


def parsed(kind="ALL_REDUCE", target='"{1,2,3}x{0:3}"'):
    attributes = f'_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"'
    attributes = f"is_host_transfer=true, frontend_attributes={{{attributes}}}"
    return hlo.parse(PROGRAM.replace("TARGET", attributes))


def across(module):
    (found,) = [one for one in collectives.collect(module, 4) if one.link == "dcn"]
    return found


def test_a_gradient_crosses_slices_in_the_parts_of_the_devices():
    found = across(parsed())
    assert found == collectives.Collective(
        "all-reduce", "dcn", 1, PART, 2 * PART * 2 // 3, "jit(step)/grad", False
    )
    everything = collectives.collect(parsed(), 4)
    assert collectives.sent_bytes(everything, "ici") == 2 * (4 * PART) * 3 // 4
    assert [(one["link"], one["kind"]) for one in collectives.by_kind(everything)] == [
        ("ici", "all-gather"), ("ici", "reduce-scatter"), ("dcn", "all-reduce")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "target", "whole", "sent"),
    [
        ("ALL_GATHER", '"{1,2,3}x{0:3}"', 3 * PART, 2 * PART),
        ("REDUCE_SCATTER", '"{1,2}x{0:3}"', PART, PART // 2),
        ("ALL_TO_ALL", "{{100000,100003,200000,200003},{100001,200001}}", PART, PART // 2),
        ("ONE_TO_ONE", "{{100003->200000},{200003->100000}}", PART, PART),
    ],
)
def test_what_each_transfer_sends_to_other_slices(kind, target, whole, sent):
    found = across(parsed(kind, target))
    assert (found.kind, found.bytes, found.sent_bytes) == (slice_transfers.KINDS[kind], whole, sent)


def test_transfers_of_another_form_are_refused():
    with pytest.raises(slice_transfers.TransferError, match="found 'BROADCAST'"):
        across(parsed("BROADCAST"))
    with pytest.raises(slice_transfers.TransferError, match="expected _xla_megascale_target"):
        across(parsed(target='"all"'))


def test_a_transfer_reads_and_writes_its_array_once():
    # a in; the gradient stays on the chip: its parts out; sent, received; gathered from there
    assert traffic.hbm_bytes(parsed()) == 4 * PART + PART + PART + PART + PART
    made = [(one.type, one.bytes) for one in largest.largest(parsed())]
    assert made[:2] == [("f32[16,8]", PART), ("f32[1,128]", PART)]


def test_two_devices_share_a_chip_of_tpu7x():
    for name, generation in GENERATIONS.items():
        devices = 2 if name == "tpu7x" else 1
        chip, device = dataclasses.astuple(generation.chip), dataclasses.astuple(generation.device)
        assert device == tuple(figure / devices for figure in chip)


# --- compiled -------------------------------------------------------------------------------------


@pytest.fixture
def compiled(for_tpus, monkeypatch):
    """Runs the command for a slice; returns the record and the text."""
    monkeypatch.chdir(REPOSITORY)

    def examined(name, *words):
        code, out, err = run(*words, f"--topology={name}", "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[-1]), out

    yield examined
    gin_config.clear_config()


def test_a_training_on_two_slices(compiled):
    found, out = compiled("2x v5e:2x2", *flags(), "--vocabulary_size=200")
    assert (found["topology"], found["devices"]) == ("2x v5e:2x2", 8)
    assert found["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1}
    # Each device sums its quarter of the gradient with that of the other slice.
    assert found["sent_bytes"]["dcn"] >= 2 * found["parameters"] // 4
    crossing = found["between_slices"]
    assert sum(one["sent_bytes"] for one in crossing) == found["sent_bytes"]["dcn"]
    assert {one["kind"] for one in crossing} == {"all-reduce"}
    assert any("scatter-add" in one["label"] for one in crossing)  # of the word table's gradient
    terms = found["roofline_terms_seconds"]
    assert terms["dcn"] == pytest.approx(found["sent_bytes"]["dcn"] / 3.125e9)
    assert terms["ici"] == pytest.approx(found["sent_bytes"]["ici"] / 200e9)
    assert "all-reduce between slices: " in out and f"DCN {terms['dcn'] * 1e3:.2f} ms" in out


def test_a_mesh_that_leaves_its_slice_is_refused(for_tpus, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    mesh = ["--gin_file=gin_configs/hardware/mesh.gin", "--gin.FSDP=8"]
    code, _, err = run(*flags(*mesh), "--topology=2x v5e:2x2", "--vocabulary_size=200")
    gin_config.clear_config()
    assert code == 1
    assert "expected fsdp x tensor to divide 4, the devices of each of 2 slices, found 8" in err
    assert "Nearest meshes: data=2, fsdp=4, tensor=1; " in err


@pytest.mark.slow
def test_a_training_on_chips_of_two_devices(compiled):
    found, out = compiled("tpu7x:2x2x1", *flags(), "--vocabulary_size=200")
    assert found["devices"] == 8 and found["sent_bytes"]["dcn"] == 0
    assert found["hbm_bytes"]["limit"] == int(94.75 * 2**30)
    terms = found["roofline_terms_seconds"]
    assert terms["compute"] == pytest.approx(found["flops_per_step"] / 4 / 2307e12)
    assert terms["hbm"] == pytest.approx(found["hbm_traffic_bytes"] / 3690e9)
    assert "DCN" not in out


@pytest.mark.slow
def test_the_papers_pretraining_on_two_pods(compiled):
    recipe = "--gin_file=gin_configs/recipes/retromae_paper.gin"
    found, _ = compiled("2x v5e:16x16", recipe, "--stage=pretrain", "--gin.ROWS=2048")
    stage = found["stages"]["pretrain"]
    assert stage["fits"] and stage["devices"] == 512
    # Each of a slice's 256 devices exchanges its part of the gradients, in bfloat16 at the least.
    assert stage["sent_bytes"]["dcn"] >= 2 * stage["parameters"] / 256
    # The largest are 3 columns of the word table's 768, padded to the 128 of a tile.
    assert stage["between_slices"][0]["bytes"] == 30592 * 128 * 4
    terms = stage["roofline_terms_seconds"]
    assert terms["dcn"] == pytest.approx(stage["sent_bytes"]["dcn"] / 3.125e9)


def test_the_limit_of_tpu7x_is_of_a_device(for_tpus):
    """As is that of the others, which have one device a chip: what libtpu refuses names it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(topology.devices("tpu7x:2x2x1")), ("all",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("all"))
    large = jax.ShapeDtypeStruct((8 * 2**30,), jnp.float32, sharding=rows)  # 4 GiB a device
    traced = jax.jit(lambda *parts: [part + 1 for part in parts]).trace(*[large] * 16)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"exceeds available HBM \(94.75G\)"):
        traced.lower().compile()
