"""What a server's options allow."""

import pytest

from clearhead.config.serving import ServerConfig
from clearhead.errors import UsageError

SECRET = "a-secret-of-enough-characters"


def test_only_a_loopback_address_is_local() -> None:
    hosts = {"127.0.0.1": True, "127.9.9.9": True, "localhost": True, "LOCALHOST.": True, "::1": True}
    hosts |= {"0.0.0.0": False, "::": False, "192.168.0.1": False, "localhost.example.com": False, "a": False}
    hosts |= {"127.0.0.1.nip.io": False}
    assert {host: ServerConfig(host=host).is_local for host in hosts} == hosts


@pytest.mark.parametrize("host", ["", "http://a", "a:80", "a b", "a/b", "*", "a\n", "[::1]", "-a", "a" * 300])
def test_what_is_no_host_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="neither a host name nor an address"):
        ServerConfig(host=host)
    with pytest.raises(UsageError, match="neither a host name nor an address"):
        ServerConfig(allowed_hosts=(host,))


@pytest.mark.parametrize(
    "token", ["xyzzy", "with a space in the middle", "ümlaut-ümlaut-ümlaut", "", "line\nline-line-line"]
)
def test_a_token_that_cannot_serve_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(UsageError, match="token must") as caught:
        ServerConfig(token=token)
    assert not token or token not in str(caught.value)


def test_a_token_is_never_shown() -> None:
    config = ServerConfig(token=SECRET)
    assert SECRET not in repr(config)
    assert SECRET not in str(config)
    with pytest.raises(UsageError) as caught:
        ServerConfig(token=SECRET, slots=0)
    assert SECRET not in str(caught.value)
    with pytest.raises(UsageError) as caught:
        ServerConfig(token=SECRET, host="a b")
    assert SECRET not in str(caught.value)
