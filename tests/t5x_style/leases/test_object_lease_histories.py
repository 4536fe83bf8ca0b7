"""Random histories of one lease on object storage, against a model of who may publish."""

import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from t5x_style.leases.lease import LeaseLost
from t5x_style.leases.object_leases import FENCED, ObjectLeases
from t5x_style.storage import errors
from tests.kits.toys.direct_objects import DirectObjects
from tests.kits.toys.stored_objects import ObjectStore

NAME, RECORD = "train", "gs://bucket/stage.json"
EXPIRY = 60.0
LOST = st.integers(0, 2)  # answers of the next write that are lost


class StillHeld(Exception):
    """Somebody waits for a lease whose holder is alive."""


class Client(DirectObjects):
    """Stops before it looks at the record, or before it writes it, and something else happens."""

    stops = {}  # name of a method -> what happens before the next call of it

    def _stop(self, method, path):
        if path == RECORD and method in self.stops:
            self.stops.pop(method)()

    def stat(self, path):
        self._stop("stat", path)
        return super().stat(path)

    def write_if(self, path, data, generation, metadata=None):
        self._stop("write_if", path)
        return super().write_if(path, data, generation, metadata)


class Histories(RuleBasedStateMachine):
    """Holders come, stop, wake up and publish; answers are lost; time passes for who waits."""

    @initialize()
    def begin(self):
        store = ObjectStore()
        store.create_bucket("bucket")
        self.client, self.now, self.waited = Client(store), 0.0, 0.0
        self.leases = ObjectLeases(
            "gs://bucket/leases",
            beat=3600,
            expiry=EXPIRY,
            clock=lambda: self.now,
            sleep=self.sleep,
            client=self.client,
        )
        self.held, self.alive = [], set()  # every lease that was ever taken, and who beats
        self.current = None  # token of who holds the lease
        self.published, self.fence = None, 0  # what readers see, and the highest token in it
        self.number = 0

    def sleep(self, seconds):
        self.now += seconds
        self.waited += seconds
        if self.waited > 1.5 * EXPIRY:
            raise StillHeld
        for token in self.alive:
            assert self.leases.renew(NAME, token) == (token == self.current)

    @rule(lost=LOST)
    def take(self, lost):
        """Somebody wants the lease, and waits for it."""
        self.client.lose = lost
        self.waited = 0.0
        busy = self.current in self.alive
        try:
            lease = self.leases.acquire(NAME, lambda holder: None, lambda: None)
        except StillHeld:
            assert busy
            return
        assert not busy
        assert lease.token == len(self.held) + 1
        known = "none" if not self.held else "silent" if self.current else "released"
        assert lease.before == known
        self.held.append(lease)
        self.current = lease.token
        self.alive.add(lease.token)

    @rule(data=st.data())
    @precondition(lambda self: self.alive)
    def stop(self, data):
        """A holder is suspended: no heartbeat any more."""
        self.alive.discard(data.draw(st.sampled_from(sorted(self.alive))))

    @rule(data=st.data(), lost=LOST)
    @precondition(lambda self: self.held)
    def publish(self, data, lost):
        """Any holder that ever was publishes; only the current one may."""
        self.client.lose = lost
        lease = data.draw(st.sampled_from(self.held))
        self.number += 1
        try:
            lease.publish(RECORD, {"number": self.number})
        except LeaseLost:
            assert lease.token != self.current
        else:
            assert lease.token == self.current
            self.published, self.fence = {"number": self.number}, lease.token

    @rule(lost=LOST)
    @precondition(lambda self: self.current)
    def fence_now(self, lost):
        """The current holder fences the record."""
        self.client.lose = lost
        self.held[self.current - 1].fence(RECORD)
        if self.published is None:
            self.published = {FENCED: self.current}
        self.fence = max(self.fence, self.current)

    @rule(
        method=st.sampled_from(["stat", "write_if"]),
        fences=st.booleans(),
        publishes=st.booleans(),
        lost=LOST,
    )
    @precondition(lambda self: self.current)
    def publish_while_followed(self, method, fences, publishes, lost):
        """The holder is stopped after it has renewed its lease, and another one follows."""
        stopped = self.held[self.current - 1]
        self.alive.discard(stopped.token)
        self.number += 1
        number = self.number

        def meanwhile():
            self.take(lost)
            if fences:
                self.fence_now(lost)
            if publishes:
                self.publish_as_current()

        self.client.stops = {method: meanwhile}
        try:
            stopped.publish(RECORD, {"number": number})
        except LeaseLost:
            assert fences or publishes
        else:
            # Not fenced, so not yet looked at by the follower: as if published before it came.
            assert not fences and not publishes
            self.published, self.fence = {"number": number}, stopped.token
        assert self.current == stopped.token + 1

    def publish_as_current(self):
        self.number += 1
        self.held[self.current - 1].publish(RECORD, {"number": self.number})
        self.published, self.fence = {"number": self.number}, self.current

    @rule(data=st.data(), lost=LOST)
    @precondition(lambda self: self.held)
    def release(self, data, lost):
        """Any holder lets go; that frees the lease only if it is its own."""
        self.client.lose = lost
        lease = data.draw(st.sampled_from(self.held))
        self.alive.discard(lease.token)
        lease.release()
        if lease.token == self.current:
            self.current = None

    @invariant()
    def readers_see_what_was_published(self):
        if not hasattr(self, "held"):
            return
        self.client.lose = 0
        try:
            data, _ = self.client.read(RECORD)
        except errors.Missing:
            assert self.published is None
            return
        assert json.loads(data) == self.published
        assert int(self.client.stat(RECORD).metadata["kennel-token"]) == self.fence

    def teardown(self):
        for lease in getattr(self, "held", []):
            lease._released.set()


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=40,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
