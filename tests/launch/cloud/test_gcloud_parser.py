"""Every command that the launcher makes passes through the installed gcloud's own parser."""

import itertools

import pytest

from launch.cloud import instance_groups, queued_resources, remote_job
from launch.cloud.requests import Request
from t5x_style.accelerators import slices
from t5x_style.accelerators.generations import GENERATIONS, PROVISIONING
from tests.launch.cloud import gcloud_parser
from tests.launch.cloud.planted_errors import PLANTED

pytestmark = pytest.mark.skipif(not gcloud_parser.installed(), reason=gcloud_parser.SKIP)
SERVED = [one.name for one in GENERATIONS.values() if one.accelerator]
DAY = 86_400


@pytest.fixture(name="refusals", scope="module")
def make_refusals():
    """What gcloud's parser says to argument lists."""
    if gcloud_parser.found() is None:
        pytest.skip(gcloud_parser.SKIP)
    parser = gcloud_parser.Parser()
    yield parser.refusals
    parser.close()


def legal_requests():
    """Every topology, provisioning and number of slices that queued resources have."""
    for name, how, count in itertools.product(SERVED, PROVISIONING, (1, 2)):
        if how not in GENERATIONS[name].provisioning:
            continue
        for topology in GENERATIONS[name].topologies:
            options = {"max_run": 7 * DAY} if how == "flex_start" else {}
            yield Request(
                "my-run", slices.parse(f"{count}x {name}:{topology}"), "us-west4-a", "my-project",
                how, **options,
            )  # fmt: skip


def with_all_options():
    """Requests with every option that goes with each provisioning."""
    for how, count in itertools.product(PROVISIONING, (1, 2)):
        yield Request(
            "my-run",
            slices.parse(f"{count}x v6e:4x4"),
            "us-west4-a",
            "my-project",
            how,
            reservation="mine" if how == "reserved" else "",
            valid_until=DAY + 60,
            max_run=DAY if how == "flex_start" else None,
            network="net",
            subnetwork="sub",
            internal_ips=True,
            service_account="me@my-project.iam.gserviceaccount.com",
            run_dir="gs://bucket/mine",
            labels={"team": "search"},
        )


def commands(request):
    """All argument lists for one request."""
    place = request.place
    host_file = queued_resources.on_host(place, "code.tar.gz")
    return [
        queued_resources.create(request),
        queued_resources.describe(place),
        queued_resources.list_all(place.zone, place.project),
        queued_resources.nodes(place),
        queued_resources.delete(place),
        queued_resources.ssh(place, "echo 'a b' $HOME"),
        queued_resources.ssh(place, "", node="1", worker="3"),
        queued_resources.scp(place, ["code.tar.gz", "more"], host_file),
        queued_resources.scp(place, [host_file], "here", node="0", worker="0"),
    ]


def test_gcloud_accepts_every_command_of_every_legal_request(refusals):
    requests = [*legal_requests(), *with_all_options()]
    kinds = {}
    for one in requests:
        kinds[one.slices.generation.name, one.provisioning, one.slices.count] = one
    assert len(requests) > 150 and len(kinds) == 2 * (3 + 4 + 3 + 4)
    lines = [queued_resources.create(one) for one in requests]
    lines += [line for one in kinds.values() for line in commands(one)]
    said = refusals(lines)
    assert {" ".join(line): text for line, text in zip(lines, said, strict=True) if text} == {}


def test_gcloud_accepts_the_commands_for_buckets(refusals):
    lines = [
        remote_job.writing_note("here.json", "gs://bucket/mine", "job", "asked"),
        remote_job.reading_note("gs://bucket/mine", "job"),
        ["storage", "rsync", "--recursive", "gs://bucket/mine", "here"],
        ["config", "get", "compute/zone"],
    ]
    assert refusals(lines) == ["", "", "", ""]


def test_the_parser_refuses_what_it_does_not_know(refusals):
    """Else the tests above could not fail."""
    (request,) = [one for one in legal_requests()][:1]
    wrong = [[*line, "--no-such-flag"] for line in commands(request)]
    assert all("no-such-flag" in said for said in refusals(wrong))
    arguments = [word for word in queued_resources.create(request) if "--node-id" not in word]
    assert "node-id" in refusals([arguments])[0]


def test_planted_errors_pass_through_gcloud_and_not_through_our_table(refusals):
    assert len(PLANTED) >= 30
    said = refusals([one.arguments for one in PLANTED.values()])
    assert {name: text for name, text in zip(PLANTED, said, strict=True) if text} == {}


def test_gcloud_528_lacks_one_choice_of_instance_groups(refusals):
    """They are printed for a newer one."""
    for how, lacks in {"spot": 0, "flex_start": 1, "reserved": 0}.items():
        request = Request(
            "my-run", slices.parse("2x v6e:4x4"), "us-west4-a", "my-project", how,
            reservation="ours" if how == "reserved" else "",
            max_run=DAY if how == "flex_start" else None, internal_ips=True, network="n",
            subnetwork="s", service_account="a@b.iam.gserviceaccount.com",
            service="instance_groups",
        )  # fmt: skip
        lines = [*instance_groups.commands(request), *instance_groups.deletion(request)]
        refused = [one for one in refusals(lines) if one]
        assert len(refused) == lacks, refused
        assert all("Invalid choice: 'FLEX_START'" in one for one in refused)
