"""Tokens, and the file that holds their digests."""

import stat

import pytest

from actgent import AccessToken, ConfigurationError
from actgent.web.tokens import TokenStore, new_token, read_tokens, token_digest, write_tokens

ROW = '[[token]]\nname = "ci"\nowner = "ada"\nscopes = ["chat"]\ndigest = "sha256:' + "0" * 64 + '"\n'


async def test_the_file_holds_digests_alone(tmp_path):
    """What is written comes back, is readable by its owner alone, and opens nothing."""
    secret, token = new_token('odd "name" \\', owner="ada", scopes=("chat", "impersonate:*"), expires=2e9)
    file = tmp_path / "tokens.toml"
    write_tokens(file, [token])
    assert read_tokens(file) == [token]
    assert secret not in file.read_text()
    assert secret not in repr(token)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert TokenStore(file=file).find(secret, now=1e9) == token
    assert TokenStore(file=file).find(token.digest, now=1e9) is None


async def test_a_token_ends_at_its_date():
    """At its expiry a token is one that nobody knows."""
    secret, token = new_token("a", owner="ada", scopes=("read",), expires=100)
    store = TokenStore([token])
    assert store.find(secret, now=99.9) == token
    assert store.find(secret, now=100) is None


async def test_a_changed_file_is_read_again(tmp_path, autojump_clock):
    """A token that is taken out is refused a second later; a broken file leaves all as it was."""
    import trio

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
    ("text", "said"),
    [
        (ROW.replace("name", "nmae"), "did you mean 'name'"),
        (ROW.replace('owner = "ada"\n', ""), "token 1 has no owner"),
        (ROW.replace("chat", "cht"), "did you mean 'chat'"),
        (ROW.replace('["chat"]', "[]"), "at least one scope"),
        (ROW.replace("sha256:0", "0"), "actgent token new"),
        (ROW + "expires = 2027-01-01\n", "time zone"),
        (ROW.replace("ada", "a\\nb"), "printable"),
        ("token = 5", r"\[\[token\]\]"),
        ("[[", "no TOML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, text, said):
    """Each mistake is named with its token and the remedy."""
    file = tmp_path / "tokens.toml"
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        read_tokens(file)


def test_scopes_hold_others():
    """Who may chat or approve may read, an admin may all, and nobody acts for others without being told so."""
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
    assert [back_end.may_act_for(owner) for owner in ("ada", "bob", "eve", "*")] == [True, True, False, False]


def test_a_file_that_cannot_be_replaced_stays(tmp_path):
    """Where the new file cannot be written nothing is left beside the old one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tokens.toml").mkdir()
    with pytest.raises(OSError, match="tokens"):
        write_tokens(folder / "tokens.toml", [])
    assert [each.name for each in folder.iterdir()] == ["tokens.toml"]
