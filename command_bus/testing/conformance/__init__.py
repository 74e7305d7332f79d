"""What every transport must keep, as tests: for authors of another client, another server or another topology.

A transport is put under the bus as a `ClientFactory` (`command_bus.transport.redis.connection.factory`): it makes clients that speak to some
server. In a test module of yours:

    from command_bus.testing.conformance.suite import test_promise

    @pytest.fixture
    def command_bus_clients():
        return MyClients("my-server:1234")

The promises themselves are coroutines over a `Stage`, for those who do not use pytest:

    for promise in PROMISES:
        asyncio.run(promise(Stage(clients)))
"""
