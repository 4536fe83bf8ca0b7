"""Commands for TPU slices as managed instance groups of Compute Engine. They are printed only.

A group of one slice has a VM for each host, and a workload policy that holds the topology. gcloud
528 does not know all of these flags; a newer one is needed.
"""

from launch.cloud import durations
from launch.cloud.requests import Request

MODELS = {
    "on_demand": "STANDARD",
    "spot": "SPOT",
    "reserved": "RESERVATION_BOUND",
    "flex_start": "FLEX_START",
}


def commands(request: Request) -> list[list[str]]:
    """Argument lists for gcloud: a policy, a template, then a group for each slice."""
    region = request.zone.rpartition("-")[0]
    policy = [
        *("compute", "resource-policies", "create", "workload-policy", request.name),
        "--type=HIGH_THROUGHPUT",
        f"--accelerator-topology={request.slices.topology}",
        f"--region={region}",
        f"--project={request.project}",
    ]
    return [policy, _template(request), *(_group(request, n) for n in range(request.slices.count))]


def deletion(request: Request) -> list[list[str]]:
    """Argument lists that delete the same, groups first."""
    where, region = f"--zone={request.zone}", f"--region={request.zone.rpartition('-')[0]}"
    end = [f"--project={request.project}", "--quiet"]
    names = [_group_name(request, number) for number in range(request.slices.count)]
    return [
        *(["compute", "instance-groups", "managed", "delete", name, where, *end] for name in names),
        ["compute", "instance-templates", "delete", request.name, *end],
        ["compute", "resource-policies", "delete", request.name, region, *end],
    ]


def _template(request: Request) -> list[str]:
    machine = request.slices.generation.gke_machine.format(chips=request.slices.chips_per_host)
    labels = ",".join(f"{key}={value}" for key, value in request.all_labels.items())
    flags = [
        f"--machine-type={machine}",
        "--maintenance-policy=TERMINATE",
        f"--provisioning-model={MODELS[request.provisioning]}",
        f"--labels={labels}",
        f"--project={request.project}",
    ]
    if request.reservation:
        flags += ["--reservation-affinity=specific", f"--reservation={request.reservation}"]
    if request.provisioning in ("spot", "flex_start"):
        flags.append("--instance-termination-action=DELETE")
    if request.max_run is not None:
        flags.append(f"--max-run-duration={durations.text(request.max_run)}")
    if request.service_account:
        flags += [f"--service-account={request.service_account}", "--scopes=cloud-platform"]
    if request.network:
        flags.append(f"--network={request.network}")
    if request.subnetwork:
        flags.append(f"--subnet={request.subnetwork}")
    if request.internal_ips:
        flags.append("--no-address")
    return ["compute", "instance-templates", "create", request.name, *flags]


def _group(request: Request, number: int) -> list[str]:
    region = request.zone.rpartition("-")[0]
    policy = f"projects/{request.project}/regions/{region}/resourcePolicies/{request.name}"
    return [
        *("compute", "instance-groups", "managed", "create", _group_name(request, number)),
        f"--zone={request.zone}",
        f"--project={request.project}",
        f"--template={request.name}",
        f"--size={request.slices.hosts}",
        f"--workload-policy={policy}",
        "--default-action-on-vm-failure=do-nothing",
    ]


def _group_name(request: Request, number: int) -> str:
    return request.name if request.slices.count == 1 else f"{request.name}-{number}"
