"""What is written within one turn of the loop is sent at once, in order, and none of it is lost or held."""

import asyncio
from typing import cast

from clearhead.server.http.gathered_transport import LARGE, GatheredTransport


class Recorder:
    def __init__(self) -> None:
        self.calls = list[bytes | str]()

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.calls


def test_a_turn_is_one_send_and_closing_keeps_what_was_written() -> None:
    async def main() -> None:
        recorder = Recorder()
        transport = GatheredTransport(cast(asyncio.Transport, recorder), asyncio.get_running_loop())
        for part in (b"head", b"", b"body"):
            transport.write(part)
        assert recorder.calls == []
        await asyncio.sleep(0)
        assert recorder.calls == [b"headbody"]
        transport.write(b"")
        await asyncio.sleep(0)
        transport.write(b"more")
        transport.write(bytes(LARGE))
        assert recorder.calls[1:] == [b"more" + bytes(LARGE)], "much does not wait"
        transport.write(b"last")
        assert not transport.is_closing()
        transport.close()
        assert transport.is_closing()
        transport.write(b"dropped")
        transport.abort()
        await asyncio.sleep(0)
        assert recorder.calls[2:] == [b"last", "close", "abort"]

    asyncio.run(main())
