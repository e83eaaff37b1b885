"""A tunnel whose TLS the broker ends: each request in it is judged, gets its keys, and goes on over TLS of its own."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import replace

import h11

from troupe_tasks.egress import asked, exchange, h1side, keys, places, standins
from troupe_tasks.egress import pipe as pipes
from troupe_tasks.egress.audit import Entry
from troupe_tasks.egress.desk import Desk
from troupe_tasks.egress.h1side import H1Answering, H1Asking
from troupe_tasks.egress.h2side import AgentLink, H2Asking
from troupe_tasks.egress.link import Misused
from troupe_tasks.egress.messages import Answering, Ask, Asking, Head
from troupe_tasks.egress.pipe import Plain
from troupe_tasks.egress.places import Swap
from troupe_tasks.egress.policy import ServiceRule, decide
from troupe_tasks.egress.target import Target
from troupe_tasks.egress.tls import Sealed
from troupe_tasks.egress.turns import Turns
from troupe_tasks.egress.upstreams import Upstreams
from troupe_tasks.egress.verdict import Cut, Refusal
from troupe_tasks.egress.wire import Wire

_REFUSED = (401, 403)


class Ended:
    """Serve one such tunnel to place; count says how many requests came through it."""

    def __init__(self, place: Target, *, desk: Desk, upstreams: Upstreams) -> None:
        self.count = 0
        self._place, self._desk, self._upstreams = place, desk, upstreams

    async def run(self, client: Plain, entry: Entry) -> None:
        """Serve until either side has enough; entry gets what goes wrong with the tunnel itself. Raises Cut."""
        sealed = Sealed(
            client, await self._desk.machine.authority.context(self._place), limits=self._desk.limits
        )
        try:
            await self._shake_hands(sealed)
            if sealed.protocol == "h2":
                await self._streams(sealed)
            else:
                turns = Turns(
                    Wire(sealed, role=h11.SERVER, limits=self._desk.limits),
                    self._turn,
                    desk=self._desk,
                    host=self._place.host,
                    port=self._place.port,
                )
                try:
                    await turns.run()
                finally:
                    self.count += turns.count
            entry.is_covered = self.count > 0
        except Refusal as refusal:
            # There is nobody to answer: the TLS is not up, or not kept to.
            entry.status, entry.verdict, entry.why = refusal.status, refusal.verdict, refusal.why
            raise Cut(refusal.why) from None
        except Misused as misused:
            entry.status, entry.verdict, entry.why = 400, "protocol", str(misused)
            await pipes.linger(sealed)
            raise
        except Cut:
            entry.is_covered = self.count > 0
            raise

    async def _shake_hands(self, sealed: Sealed) -> None:
        try:
            async with asyncio.timeout(self._desk.limits.head_s):
                await sealed.handshake()
        except TimeoutError:
            raise Refusal(408, "protocol", "the agent's TLS handshake did not end in time") from None
        except ssl.SSLError as error:
            if sealed.asked_name is not None and (sealed.asked_name or None) != self._name():
                raise Refusal(421, "protocol", "TLS asks for another host than the tunnel") from None
            why = f"no TLS with the agent: {error.reason or type(error).__name__}"
            raise Refusal(400, "protocol", why) from None

    def _name(self) -> str | None:
        return None if self._place.is_address else self._place.host

    async def _streams(self, sealed: Sealed) -> None:
        self._upstreams.speak(h2=True)
        link = AgentLink(sealed, serve=self._stream, limits=self._desk.limits)
        try:
            link.begin()
            await link.pump()
        finally:
            await link.ended()

    async def _stream(self, asking: H2Asking) -> None:
        self.count += 1
        entry = Entry(host=self._place.host, port=self._place.port)
        with contextlib.suppress(Cut):  # told, and the stream ends with this task
            await self._desk.told(entry, asking, self._spoken(asking, entry))

    async def _spoken(self, asking: H2Asking, entry: Entry) -> bool:
        entry.method = dict(asking.fields).get(b":method", b"").decode("ascii", "replace")
        limits = self._desk.limits
        request = asked.spoken(asking.fields, self._place, has_body=asking.has_body, limits=limits)
        await self._serve(request, asking, entry)
        return True

    async def _turn(self, request: h11.Request, asking: H1Asking, entry: Entry) -> bool:
        entry.method = request.method.decode("ascii", "replace")
        await self._serve(asked.inside(request, self._place, limits=self._desk.limits), asking, entry)
        return asking.can_go_on()

    async def _serve(self, request: Ask, asking: Asking, entry: Entry) -> None:
        policy, machine = self._desk.policy(), self._desk.machine
        grant = decide(policy, self._place, tunnel=True)
        entry.rule, entry.origin = grant.rule, grant.origin
        rules = {rule.service: rule for rule in policy.services if self._is_home(rule)}
        seen = machine.stand_ins.seen(request)
        standins.judge(seen, policy.id, at_home=frozenset(rules))
        meant = [rules[one.service] for one in seen]
        async with self._upstreams.lease() as answering:
            put_in = await self._begin(answering, request, meant)

            def answered(head: Head) -> Head:
                entry.status = head.status
                for rule in meant:
                    is_in = rule.service in put_in
                    machine.outcomes.note(policy.id, rule.service, status=head.status, put_in=is_in)
                if put_in and head.status in _REFUSED:
                    entry.why = "the key was put in; the provider refused it"
                cleaned = places.without(head.headers, put_in.values())
                put_in.clear()  # what follows may last for hours, and has no use for a key
                return replace(head, headers=cleaned)

            await exchange.relay(asking, answering, answered=answered)
            if entry.status == 101 and isinstance(asking, H1Asking) and isinstance(answering, H1Answering):
                await h1side.switch(asking, answering)

    async def _begin(self, answering: Answering, request: Ask, rules: list[ServiceRule]) -> dict[str, Swap]:
        """Put the keys in, send the request's beginning, and return what was put in for what. Raises Refusal."""
        put_in: dict[str, Swap] = {}
        agent_id = self._desk.policy().id
        for rule in rules:
            stand_in = rule.stand_in.encode()
            if places.put(request, rule.place, stand_in=stand_in, key=b"") is None:
                continue  # the stand-in is somewhere else, where it stays
            key = await self._desk.machine.keys.read(agent_id, rule.service)
            if not places.usable(key):
                raise keys.unreadable(agent_id, rule.service)
            request = places.put(request, rule.place, stand_in=stand_in, key=key) or request
            put_in[rule.service] = Swap(stand_in, key)
        await exchange.begin(answering, request)
        return put_in

    def _is_home(self, rule: ServiceRule) -> bool:
        return rule.host_rule(self._place.host, self._place.port) is not None
