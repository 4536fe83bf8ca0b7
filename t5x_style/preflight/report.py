"""Report of preflight, for people and as JSON."""

import dataclasses
from typing import Any

from t5x_style.accelerators.generations import GIB
from t5x_style.preflight import collectives
from t5x_style.preflight.program import Cost, Memory

Record = dict[str, Any]
SHOWN = 5  # collectives of a kind of link, by bytes
_WHERE = {"ici": "", "dcn": " between slices"}


def record(cost: Cost, assumed: list[str]) -> Record:
    """The JSON object of one training; sizes in bytes, times in seconds."""
    memory, roofline = cost.memory, cost.roofline
    return {
        "topology": str(cost.topology),
        "devices": cost.topology.all_devices,
        "mesh": cost.mesh,
        "rows": cost.rows,
        "assumptions": assumed,
        "parameters": cost.parameters,
        "fits": cost.fits,
        "hbm_bytes": {
            "arguments": memory.arguments,
            "temporaries": memory.temporaries,
            "outputs": memory.outputs,
            "program": memory.program,
            "total": memory.total,
            "limit": memory.limit,
            "over": max(0, memory.total - memory.limit),
        },
        "largest_arrays": _records(cost),
        "flops_per_step": cost.flops,
        "after_update_flops_per_step": cost.after_update_flops,
        "model_flops_per_step": cost.model_flops,
        "hbm_traffic_bytes": cost.hbm_traffic,
        **_sent(cost),
        "roofline_seconds": roofline.bound,
        "roofline_terms_seconds": {
            "compute": roofline.compute,
            "hbm": roofline.hbm,
            "ici": roofline.ici,
            "dcn": roofline.dcn,
        },
        "compile_seconds": round(cost.seconds, 1),
    }


def _sent(cost: Cost) -> Record:
    """Collectives, in sums and those between slices; null where there is no program."""
    found = cost.collectives
    if found is None:
        return dict.fromkeys(("collectives", "sent_bytes", "between_slices"))
    return {
        "collectives": collectives.by_kind(found),
        "sent_bytes": {link: collectives.sent_bytes(found, link) for link in collectives.LINKS},
        "between_slices": [dataclasses.asdict(one) for one in found if one.link == "dcn"],
    }


def _records(cost: Cost) -> list[Record] | None:
    if cost.largest_arrays is None:
        return None
    return [dataclasses.asdict(one) for one in cost.largest_arrays]


def text(cost: Cost, assumed: list[str]) -> str:
    """The same for a reader."""
    mesh = ", ".join(f"{name} {size}" for name, size in cost.mesh.items())
    rows = ", ".join(f"{count:,} of {group}" for group, count in cost.rows.items())
    lines = [
        f"{cost.topology}: {cost.topology.all_devices} devices, mesh {mesh}; rows: {rows}",
        *(f"assumed: {one}" for one in assumed),
        f"parameters: {cost.parameters:,}",
        *_memory(cost),
        *_largest(cost),
        *_flops(cost),
        *_collectives(cost),
        *_roofline(cost),
        f"compiled in {cost.seconds:.0f} s",
    ]
    return "\n".join(f"  {line}" for line in lines)


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _memory(cost: Cost) -> list[str]:
    memory = cost.memory
    sums = (
        f"HBM a device: arguments {_gib(memory.arguments)}, temporaries "
        f"{_gib(memory.temporaries)}, outputs {_gib(memory.outputs)}, program "
        f"{_gib(memory.program)}: {_gib(memory.total)} of {_gib(memory.limit)}"
    )
    if cost.fits:
        return [f"{sums}: fits"]
    over = _gib(memory.total - memory.limit)
    return [f"{sums}: DOES NOT FIT, by {over}", f"to make it fit: {_remedies(cost, memory)}"]


def _largest(cost: Cost) -> list[str]:
    if cost.largest_arrays is None:
        return []
    made = (f"  {one.bytes / 1e6:,.1f} MB {one.type} {one.label}" for one in cost.largest_arrays)
    return ["largest arrays that it makes, on a device:", *made]


def _remedies(cost: Cost, memory: Memory) -> str:
    remedies = ["fewer rows", "ENCODER's remat = 'full' if it is not"]
    if not cost.requires_full_batch:
        remedies.insert(0, "a larger train.train.micro_batches (same result, less memory)")
    if memory.arguments > memory.limit / 4:
        remedies.insert(
            0, "--gin_file=gin_configs/hardware/mesh.gin --gin.FSDP=8, to share the state"
        )
    return "; ".join(remedies)


def _flops(cost: Cost) -> list[str]:
    lines = [
        f"FLOPs a step, all devices: {cost.flops:.3e} as run, {cost.model_flops:.3e} of the model "
        "(three times the loss); matrix products only"
    ]
    if cost.after_update_flops:
        share = cost.after_update_flops / cost.flops
        lines.append(
            f"of these after the update, as to refresh an index: {cost.after_update_flops:.3e}, "
            f"{share:.1%}"
        )
    if cost.unknown_loops:
        lines.append(f"{cost.unknown_loops} loops end when data say so: counted as one trip")
    return lines


def _collectives(cost: Cost) -> list[str]:
    if cost.collectives is None:
        return ["collectives: unknown, the compiler made no program"]
    lines = []
    for one in collectives.by_kind(cost.collectives):
        lines.append(
            f"{one['kind']}{_WHERE[one['link']]}: {one['count']} times, arrays of "
            f"{one['bytes'] / 1e6:,.1f} MB a device in all, {one['sent_bytes'] / 1e6:,.1f} MB sent"
        )
    for link in collectives.LINKS:
        largest = [one for one in cost.collectives if one.link == link][:SHOWN]
        lines += [
            f"  {one.count} x {one.bytes / one.count / 1e6:,.1f} MB {one.kind}{_WHERE[link]} "
            f"{one.label}"
            for one in largest
        ]
    if any(one.at_least for one in cost.collectives):
        lines.append("  (those in loops that end when data say so are counted once)")
    return lines or ["collectives: none"]


def _roofline(cost: Cost) -> list[str]:
    roofline = cost.roofline
    terms = [f"compute {roofline.compute * 1e3:.2f} ms"]
    if roofline.hbm is not None and cost.hbm_traffic is not None:
        terms.append(f"HBM {roofline.hbm * 1e3:.2f} ms for {cost.hbm_traffic / 1e9:.1f} GB")
    if roofline.ici is not None:
        terms.append(f"ICI {roofline.ici * 1e3:.2f} ms")
    if roofline.dcn is not None and cost.topology.count > 1:
        terms.append(f"DCN {roofline.dcn * 1e3:.2f} ms")
    return [
        f"roofline: {', '.join(terms)}: no step under {roofline.bound * 1e3:.2f} ms "
        "(a bound from peak figures, not a measurement)"
    ]
