"""A client with a player: the player hears first, and the server learns what was heard."""

from fake_gateway import fake_gateway
from test_client import PCM, session, take

from duplex import clients


class RecordingPlayer:
    def __init__(self):
        self.calls = []
        self.at = None
        self.waiting = 0.0

    def receive(self, delta):
        self.calls.append(("receive", delta.response_index, len(delta.data)))

    def finish(self, response_index):
        self.calls.append(("finish", response_index))

    def cancel(self, response_index):
        self.calls.append(("cancel", response_index))

    def position(self):
        return self.at

    def unplayed_ms(self):
        return self.waiting


async def test_the_player_is_told_of_audio_ends_and_cuts():
    player = RecordingPlayer()
    async with fake_gateway() as gateway, session(gateway, player=player) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send_audio(1, PCM)
        await connection.send(type="response.done", response_index=1)
        await connection.send(type="playback.clear", response_index=1, heard_ms=1, heard_text="")
        await connection.send(type="response.created", response_index=2)
        await connection.send(type="response.cancelled", response_index=2)
        await connection.send_audio(2, PCM)
        await connection.send(type="input.speech_started", at_ms=1)
        await take(client, 6)
    # audio of response 1 that waited in the client was dropped by playback.clear; the player had it before
    assert player.calls[:4] == [("receive", 1, 480), ("finish", 1), ("cancel", 1), ("cancel", 2)]


async def test_the_server_learns_what_was_heard():
    player = RecordingPlayer()
    async with (
        fake_gateway() as gateway,
        session(gateway, player=player, ack_interval_ms=1) as (_, connection),
    ):
        await connection.send(type="response.created", response_index=1)
        player.at, player.waiting = (1, 5.0), 5.0
        await connection.send_audio(1, PCM)
        assert await connection.receive() == {"type": "playback.ack", "cursor": 5.0, "response_index": 1}
        player.at, player.waiting = (1, 10.0), 0.0
        assert await connection.receive() == {"type": "playback.ack", "cursor": 10.0, "response_index": 1}


async def test_a_cancel_says_first_what_was_heard_and_silences_all():
    player = RecordingPlayer()
    async with fake_gateway() as gateway, session(gateway, player=player) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send(type="response.done", response_index=1)
        await connection.send(type="response.created", response_index=2)
        await take(client, 3)
        player.at = (1, 7.0)
        event_id = await client.cancel()
        assert await connection.receive() == {"type": "playback.ack", "cursor": 7.0, "response_index": 1}
        assert await connection.receive() == {
            "type": "response.cancel",
            "response_index": 2,
            "event_id": event_id,
        }
        assert player.calls[-2:] == [("cancel", 2), ("cancel", 1)]


async def test_a_player_that_fails_ends_the_session_by_name():
    class Broken(RecordingPlayer):
        def receive(self, delta):
            raise BufferError("full")

    async with fake_gateway() as gateway, session(gateway, player=Broken()) as (client, connection):
        await connection.send(type="response.created", response_index=1)
        await connection.send_audio(1, PCM)
        await take(client, 1)
        try:
            await anext(client)
        except clients.SessionOver as error:
            message = error.message
    assert message == "BufferError: full"
