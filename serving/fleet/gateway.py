"""Stands before a Triton server's HTTP port and hands on what has been checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from http import HTTPStatus

from serving.errors import ServerError
from serving.fleet.http_check import MAX_HEAD_BYTES, BadRequestError, Head, check_body, parse_head

_PATIENCE_S = 30.0
"""For the rest of a request that has begun."""

_NO_ANSWER = 502


class HttpGateway:
    """Takes HTTP requests at one address, checks them, and hands them on to a port of this machine.

    Runs in a thread of its own. Each connection has one of its own to the server, so that requests
    keep their order and none is ever sent twice.

    Args:
        listener: a socket that is bound to the address; closed by `stop`.
        port: the server's port on loopback.
    """

    def __init__(self, listener: socket.socket, port: int) -> None:
        self._listener = listener
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="http-gateway", daemon=True)
        self._stopping = asyncio.Event()
        self._ready = threading.Event()

    def start(self) -> None:
        """Begins to listen.

        Raises:
            ServerError: if that fails.
        """
        self._thread.start()
        if not self._ready.wait(10.0):
            raise ServerError("the gateway for HTTP did not start")

    def stop(self) -> None:
        """Ends all connections and waits for the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(10.0)
        self._listener.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        server = await asyncio.start_server(
            self._accept, sock=self._listener, limit=MAX_HEAD_BYTES, backlog=1024
        )
        self._ready.set()
        async with server:
            await self._stopping.wait()
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # Closed connections are done with in the loop's next rounds.
        await asyncio.sleep(0.01)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # Whoever is at the other end has gone, or we are about to.
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await _Conversation(reader, writer, self._port).run()
        finally:
            self._tasks.discard(task)
            writer.close()


class _Conversation:
    """The requests of one client, one after the other."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._port = port
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        try:
            while await self._answer_one():
                pass
        finally:
            self._close_server()

    async def _answer_one(self) -> bool:
        """Answers a request; returns whether another one may follow."""
        try:
            head = await self._read_head()
            if head is None:
                return False
            if head.headers.get("expect", "").lower() == "100-continue":
                self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            async with asyncio.timeout(_PATIENCE_S):
                body = await self._reader.readexactly(head.length)
            check_body(head, body)
        except BadRequestError as error:
            # What follows on this connection may be the rest of the body.
            await self._send_error(error.status, str(error))
            return False
        try:
            await self._hand_on(head, body)
        except (OSError, EOFError, ValueError) as error:
            await self._send_error(_NO_ANSWER, f"the server gives no answer: {error}")
            return False
        return head.keeps_connection

    async def _read_head(self) -> Head | None:
        # A robot may be silent between two requests for as long as it likes, but not within one.
        first = await self._reader.read(1)
        if not first:
            return None
        try:
            async with asyncio.timeout(_PATIENCE_S):
                rest = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError as error:
            raise BadRequestError(431, "the head of the request is too long") from error
        return parse_head(first + rest)

    async def _hand_on(self, head: Head, body: bytes) -> None:
        if self._server is None:
            self._server = await asyncio.open_connection(
                "127.0.0.1", self._port, limit=MAX_HEAD_BYTES
            )
        reader, writer = self._server
        writer.write(head.to_bytes() + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        length, closes = _length_and_end(answer)
        if head.method != "HEAD" and length:
            answer += await reader.readexactly(length)
        if closes:
            self._close_server()
        self._writer.write(answer)
        await self._writer.drain()

    async def _send_error(self, status: int, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        phrase = HTTPStatus(status).phrase
        self._writer.write(
            f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
            + body
        )
        await self._writer.drain()
        # Closed at once, a client that is still sending would see no answer.
        self._writer.write_eof()
        with contextlib.suppress(OSError):
            async with asyncio.timeout(1.0):
                while await self._reader.read(65536):
                    pass

    def _close_server(self) -> None:
        if self._server is not None:
            self._server[1].close()
            self._server = None


def _length_and_end(head: bytes) -> tuple[int, bool]:
    """Returns an answer's size, and whether the connection ends with it.

    Raises:
        ValueError: if it does not say its size.
    """
    lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    if "transfer-encoding" in headers:
        raise ValueError("an answer of unknown size")
    return int(headers.get("content-length", "0")), headers.get("connection", "") == "close"
