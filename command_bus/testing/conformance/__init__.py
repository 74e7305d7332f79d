"""Conformance tests: the promises that every transport must keep, for authors of another client, server or topology.

Clients of another server or topology are a `ClientFactory` (`command_bus.transport.redis.connection.factory`). In your test module:

    from command_bus.testing.conformance.suite import test_promise

    @pytest.fixture
    def command_bus_clients():
        return MyClients("my-server:1234")

A whole transport (`command_bus.transport.ports.transport`) is given by another fixture, instead of the clients:

    @pytest.fixture
    def command_bus_sandbox():
        return PromiseSandbox(open_transport=open_mine, open_severable=open_severable_mine)

Promises about lost workers need `open_severable`; without it they are skipped. Without pytest, run the promises, which are coroutines over
a `PromiseSandbox`:

    for promise in PROMISES:
        asyncio.run(promise(PromiseSandbox(clients)))
"""
