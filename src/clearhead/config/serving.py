"""How runs are served: the address, what a request may cost, and how long anybody is waited for."""

import re
from ipaddress import ip_address
from typing import Self

from pydantic import Field, model_validator

from clearhead.config.generation import EngineConfig

TOKEN = re.compile("[!-~]+")  # what a header can carry
MIN_TOKEN = 16  # characters; a shorter one can be guessed
HOST_NAME = re.compile(r"[0-9a-z]([0-9a-z._-]{0,252}[0-9a-z.])?", re.IGNORECASE)


class ServerConfig(EngineConfig):
    """How `serve` listens, and the limits that it keeps."""

    host: str = Field(
        "127.0.0.1", description="address to listen on; any other than this machine's own requires a token"
    )
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0: any that is free")
    token: str | None = Field(
        None,
        repr=False,
        description="what a request must send as 'Authorization: Bearer TOKEN'; better set by the environment variable "
        "CLEARHEAD_TOKEN, which other users of the machine cannot read",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (), description="another name by which browsers may address this server; repeat the option for several"
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps")

    slots: int = Field(16, ge=1, le=4096, description="texts generated at the same time by each run")
    prompt_tokens: int = Field(
        512, ge=1, description="tokens of new prompts that are read between two steps of the other texts"
    )
    queue_length: int = Field(64, ge=0, description="texts that may wait for a slot; requests beyond get status 429")
    max_tokens: int = Field(4096, ge=1, description="the largest max_tokens that a request may ask for")
    max_n: int = Field(8, ge=1, description="the largest n, texts per prompt, that a request may ask for")
    max_prompts: int = Field(64, ge=1, description="prompts, sentences or texts per request")
    max_stop: int = Field(16, ge=0, description="stop strings per request")
    gather_milliseconds: int = Field(
        5, ge=0, le=1000, description="how long a sentence waits for others to be translated with it"
    )
    stream_milliseconds: int = Field(
        50,
        ge=0,
        le=1000,
        description="tokens of a stream that come within this time are sent together; the first is sent at once",
    )
    memory_gib: float | None = Field(
        None, gt=0, description="drop the least recently used run above this many GiB; none: half of the memory"
    )

    max_body_bytes: int = Field(2**20, ge=1024, le=2**30, description="size of a request's body")
    max_header_bytes: int = Field(16 * 1024, ge=1024, le=2**20, description="size of a request's head")
    max_connections: int = Field(768, ge=1, description="open connections")
    receive_seconds: float = Field(10, gt=0, le=3600, description="time in which a whole request must arrive")
    idle_seconds: float = Field(10, gt=0, le=3600, description="time that a connection may wait for its next request")
    send_seconds: float = Field(60, gt=0, le=3600, description="time in which a client must take what it is sent")
    shutdown_seconds: float = Field(
        5, gt=0, le=3600, description="time that running texts have to end once the server is told to stop"
    )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @model_validator(mode="after")
    def _refuse_bad_names(self) -> Self:
        # Not a field's own check, whose message would print the token.
        if self.token is not None and not TOKEN.fullmatch(self.token):
            raise ValueError("token must consist of ASCII letters, digits and signs, without spaces")
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise ValueError(f"token must have at least {MIN_TOKEN} characters, because a shorter one can be guessed")
        for name, values in (("host", (self.host,)), ("allowed_hosts", self.allowed_hosts)):
            for value in values:
                if not is_host(value):
                    raise ValueError(
                        f"{name}: '{value}' is neither a host name nor an address; leave out http:// and port"
                    )
        return self


def is_loopback(host: str) -> bool:
    """Whether a host name or address leads to this machine itself."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_host(text: str) -> bool:
    """Whether a text is a host name or an address, without a port."""
    if HOST_NAME.fullmatch(text):
        return True
    try:
        return bool(ip_address(text))
    except ValueError:
        return False
