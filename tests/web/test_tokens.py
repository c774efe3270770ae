"""Tokens, and the file with their digests."""

import os
import stat
import time
from contextlib import suppress

import httpx2
import pytest
import trio

from actgent import AccessToken, ConfigurationError
from actgent.web import access_tokens
from actgent.web.access_tokens import TokenStore, new_token, read_tokens, token_digest, write_tokens

ROW = '[[token]]\nname = "ci"\nowner = "ada"\nscopes = ["chat"]\ndigest = "sha256:' + "0" * 64 + '"\n'


async def test_token_file_has_only_digests(tmp_path):
    """The file can be read back, is readable only by its owner, and contains no usable token."""
    secret, token = new_token('odd "name" \\', owner="ada", scopes=("chat", "impersonate:*"), expires=2e9)
    file = tmp_path / "tokens.toml"
    write_tokens(file, [token])
    assert read_tokens(file) == [token]
    assert secret not in file.read_text()
    assert secret not in repr(token)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert TokenStore(file=file).find(secret, now=1e9) == token
    assert TokenStore(file=file).find(token.digest, now=1e9) is None


async def test_token_expires():
    """A token is unknown from its expiry on."""
    secret, token = new_token("a", owner="ada", scopes=("read",), expires=100)
    store = TokenStore([token])
    assert store.find(secret, now=99.9) == token
    assert store.find(secret, now=100) is None


async def test_changed_token_file_is_reloaded(tmp_path, autojump_clock):
    """A removed token is rejected a second later. A broken file changes nothing."""
    file = tmp_path / "tokens.toml"
    secret, token = new_token("a", owner="ada", scopes=("read",))
    write_tokens(file, [token])
    store = TokenStore(file=file)
    file.write_text("[[token]]\n")
    await trio.sleep(2)
    assert store.find(secret, now=0) == token
    write_tokens(file, [])
    assert store.find(secret, now=0) == token
    await trio.sleep(1)
    assert store.find(secret, now=0) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (ROW.replace("name", "nmae"), "did you mean 'name'"),
        (ROW.replace('owner = "ada"\n', ""), "token 1 must have the key owner"),
        (ROW.replace("chat", "cht"), "did you mean 'chat'"),
        (ROW.replace('["chat"]', "[]"), "at least one scope"),
        (ROW.replace("sha256:0", "0"), "actgent token new"),
        (ROW + "expires = 2027-01-01\n", "time zone"),
        (ROW.replace("ada", "a\\nb"), "printable"),
        ("token = 5", r"\[\[token\]\]"),
        ("[[", "is not valid TOML"),
    ],
)
def test_invalid_token_file_is_rejected(tmp_path, text, answer):
    """Each mistake is named with its token and the remedy."""
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=answer):
        read_tokens(file)


def test_scopes_imply_others():
    """`chat` and `approve` imply `read`, and `admin` implies all. Only `impersonate` allows acting for other owners."""
    allows = {
        scope: {
            each for each in ("read", "chat", "approve", "journal", "metrics", "admin") if token.allows(each)
        }
        for scope in ("read", "chat", "approve", "metrics", "admin", "impersonate:bob")
        for token in [AccessToken(name="a", owner="ada", scopes=(scope,), digest=token_digest(scope))]
    }
    assert allows == {
        "read": {"read"},
        "chat": {"read", "chat"},
        "approve": {"read", "approve"},
        "metrics": {"metrics"},
        "admin": {"read", "chat", "approve", "journal", "metrics", "admin"},
        "impersonate:bob": set(),
    }
    back_end = AccessToken(name="a", owner="ada", scopes=("impersonate:bob",), digest="")
    assert [back_end.can_impersonate(owner) for owner in ("ada", "bob", "eve", "*")] == [
        True,
        True,
        False,
        False,
    ]


def test_token_file_keeps_its_permissions(tmp_path):
    """A service of another user, in the group of the file, still reads a revocation."""
    file = tmp_path / "tokens.toml"
    write_tokens(file, [])
    group = 12345 if os.geteuid() == 0 else os.getgid()
    os.chown(file, -1, group)
    file.chmod(0o640)
    write_tokens(file, [new_token("a", owner="ada", scopes=("read",))[1]])
    seen = file.stat()
    assert (stat.S_IMODE(seen.st_mode), seen.st_gid) == (0o640, group)


def test_failed_write_keeps_the_token_file(tmp_path):
    """If the new file cannot be written, no temporary file remains."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokens.toml").mkdir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write_tokens(folder / "tokens.toml", [])
    assert [each.name for each in folder.iterdir()] == ["tokens.toml"]


async def stream_of(served, name, ended):
    async with served.client(name) as client:
        await client.put(f"/v1/sessions/of-{name}", json={"agent": "clerk"})
        with suppress(httpx2.HTTPError):
            async with client.stream("GET", f"/v1/sessions/of-{name}/events") as stream:
                async for _ in stream.aiter_bytes():
                    ended.append("begun")
        ended.append("ended")


async def test_stream_ends_with_its_token(serving, tmp_path, monkeypatch):
    """The streams of a revoked or expired token end, and its requests are rejected. Streams of other tokens continue."""
    monkeypatch.setattr(access_tokens, "POLL_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(access_tokens, "RELOAD_INTERVAL_SECONDS", 0.0)
    file, made = tmp_path / "tokens.toml", {}
    for name in ("kept", "gone", "short"):
        expires = time.time() + 3 if name == "short" else None
        made[name] = new_token(name, owner=name, scopes=("chat",), expires=expires)
    write_tokens(file, [token for _, token in made.values()])
    ends = {name: [] for name in made}
    async with serving(tokens=file) as served, trio.open_nursery() as nursery:
        served.tokens.update({name: secret for name, (secret, _) in made.items()})
        for name, ended in ends.items():
            nursery.start_soon(stream_of, served, name, ended)
        with trio.fail_after(120):
            while not all(ends.values()):
                await trio.testing.wait_all_tasks_blocked(0.01)
            write_tokens(file, [token for name, (_, token) in made.items() if name != "gone"])
            while {name for name, ended in ends.items() if "ended" in ended} != {"gone", "short"}:
                await trio.testing.wait_all_tasks_blocked(0.01)
            for name, status in (("kept", 200), ("gone", 401), ("short", 401)):
                async with served.client(name) as client:
                    assert (await client.get("/v1/agents")).status_code == status
        nursery.cancel_scope.cancel()
