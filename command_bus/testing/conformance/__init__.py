"""Conformance tests: the promises that every transport must keep, for authors of another client, server or topology.

A transport is a `ClientFactory` (`command_bus.transport.redis.connection.factory`), which makes clients of some server. In your
test module:

    from command_bus.testing.conformance.suite import test_promise

    @pytest.fixture
    def command_bus_clients():
        return MyClients("my-server:1234")

Without pytest, run the promises, which are coroutines over a `PromiseSandbox`:

    for promise in PROMISES:
        asyncio.run(promise(PromiseSandbox(clients)))
"""
