"""A server that answers PING as a test says, and a port on which none listens."""

from __future__ import annotations

import socketserver
import ssl
import threading


class ScriptedServer(socketserver.ThreadingTCPServer):
    """A server on a free port of this machine that answers PING with the replies given, the last one for ever."""

    daemon_threads = True
    block_on_close = True
    allow_reuse_address = True

    def __init__(
        self,
        *replies: bytes,
        port: int = 0,
        context: ssl.SSLContext | None = None,
        knows_us: bool = False,
        hello: bytes = b"+OK\r\n",
    ) -> None:
        super().__init__(("127.0.0.1", port), _Conversation)
        self.replies = list(replies)
        self.asked: list[bytes] = []
        self.context = context
        self.knows_us = knows_us
        self.hello = hello
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __exit__(self, *args: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def reply(self, command: bytes) -> bytes:
        self.asked.append(command)
        if command == b"AUTH" and not self.knows_us:
            return b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        if command == b"HELLO":
            return self.hello
        if command != b"PING":
            return b"+OK\r\n"
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class _Conversation(socketserver.StreamRequestHandler):
    server: ScriptedServer
    timeout = 5

    def setup(self) -> None:
        if self.server.context is not None:
            self.request = self.server.context.wrap_socket(self.request, server_side=True, suppress_ragged_eofs=True)
        super().setup()

    def handle(self) -> None:
        while header := self.rfile.readline():
            words = []
            for _ in range(int(header[1:])):
                self.rfile.readline()
                words.append(self.rfile.readline().strip())
            self.wfile.write(self.server.reply(words[0]))

    def finish(self) -> None:
        super().finish()
        self.request.close()


def free_port() -> int:
    with ScriptedServer(b"+PONG\r\n") as gone:
        return gone.port
