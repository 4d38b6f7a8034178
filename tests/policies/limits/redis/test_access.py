"""The counters get into every Redis that a URL can name: passwords, databases, sockets, TLS, a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from redis.asyncio import Redis

from backends.errors import ConfigurationError
from policies.limits.counters import Away, Hold
from policies.limits.redis.address import RedisAddress
from tests.support.policy.limits import counting, dollars, hold, pico, slot, until
from tests.support.servers.redis_server import RedisServer


async def counts(url: str) -> bool:
    """Whether counters of that URL count there."""
    async with counting(url) as counters:
        counters.settle(await hold(counters, slot(), dollars(0.5)), (0, pico(0.5)))
        return await counters.spent(["budget"]) == [(pico(0.5), 0)]


async def test_open_url_has_user_password_and_database_uses_them() -> None:
    """And one who has the wrong password gets nothing."""
    async with RedisServer() as server, Redis.from_url(server.url) as redis:
        rights = "~{test:limits}* +@all -@admin -@dangerous"
        await redis.execute_command("ACL", "SETUSER", "gateway", "on", ">p@ss w/rd", *rights.split())
        await redis.execute_command("ACL", "SETUSER", "default", "resetpass", ">other")
        place = f"127.0.0.1:{server.port}/3"

        assert await counts(f"redis://gateway:p%40ss%20w%2Frd@{place}")
        assert await counts(f"redis://:other@127.0.0.1:{server.port}/4")
        async with counting(f"redis://gateway:wrong@{place}") as counters:
            assert await counters.reserve((slot(),)) == Away()
        async with counting(f"redis://{place}") as counters:
            assert await counters.reserve((slot(),)) == Away()
        async with Redis.from_url(f"redis://:other@{place}") as other:
            assert await other.keys() == [b"{test:limits}:budget:budget"]


async def test_open_url_is_a_socket_connects_to_it(tmp_path: Path) -> None:
    """With a database beside it."""
    async with RedisServer(options={"unixsocket": f"{tmp_path}/redis"}):
        assert await counts(f"unix://{tmp_path}/redis?db=2")


async def test_open_url_is_of_tls_checks_the_certificate(tmp_path: Path) -> None:
    """Known authorities only, unless the URL says otherwise."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = await asyncio.create_subprocess_exec(
        *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
        *("-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    async with RedisServer() as plain:
        port = plain.port
    options = {
        "tls-port": str(port),
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate),
        "tls-auth-clients": "no",
    }
    async with RedisServer(options=options):
        assert await counts(f"rediss://localhost:{port}/0?ssl_ca_certs={certificate}")
        assert await counts(f"rediss://localhost:{port}/1?ssl_cert_reqs=none")
        async with counting(f"rediss://localhost:{port}/0") as counters:
            assert await counters.reserve((slot(),)) == Away()


async def test_reserve_cluster_has_the_keys_elsewhere_goes_there_and_follows() -> None:
    """One slot holds all keys of a deployment: the node that has it is asked, also after it was moved."""
    options = {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}
    async with RedisServer(options=options) as one, RedisServer(options=options) as other:
        async with Redis.from_url(one.url) as first, Redis.from_url(other.url) as second:
            slot_number = await first.execute_command("CLUSTER", "KEYSLOT", "{test:limits}:x")
            await first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            await first.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus_port)
            ids = [(await each.execute_command("CLUSTER", "MYID")).decode() for each in (first, second)]

            async def knows(redis: Redis) -> bool:
                info = await redis.execute_command("CLUSTER", "INFO")
                return b"cluster_known_nodes:2" in info and b"cluster_state:ok" in info

            async with asyncio.timeout(10.0):
                while not (await knows(first) and await knows(second)):
                    await asyncio.sleep(0.02)
            # Asked at the wrong door.
            async with counting(other.url) as counters:
                await until(lambda: not counters.statistics().is_away)
                held = await hold(counters, slot(2), dollars(0.5))
                await asyncio.sleep(1.1)
                await first.flushall()
                for node in (second, first):
                    await node.execute_command("CLUSTER", "SETSLOT", slot_number, "NODE", ids[1])
                answer = await counters.reserve((slot(2),))
                if answer == Away():
                    await until(lambda: not counters.statistics().is_away)
                    answer = await counters.reserve((slot(2),))
                counters.settle(held, (0, pico(0.25)))
                assert isinstance(answer, Hold)
                counters.settle(answer, (0,))
                assert await counters.spent(["budget"]) == [(pico(0.25), 0)]

            assert await second.keys() == [b"{test:limits}:budget:budget"]


@pytest.mark.parametrize("url", ["", "http://redis", "redis://host:port", "redis://[::1", "rediss://h?ssl_cert_reqs=x"])
def test_from_url_no_url_of_a_redis_says_so_and_does_not_repeat_it(url: str) -> None:
    """It may have a password in it."""
    with pytest.raises(ConfigurationError, match=r"^stores\.redis\.url is not a redis:// or rediss:// URL$"):
        RedisAddress.from_url(url)
