"""Names that announce a secret: of variables, options, fields and headers."""

from __future__ import annotations

import re

#: A part of a name that ends so announces a secret.
_SECRETS = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "token", "apikey"),
    *("credential", "credentials", "secretkey", "accesskey", "storepass", "keypass", "userpass"),
)
#: Such a part only by itself: "bypass" is none.
_SHORT = frozenset(("pass", "pwd", "pat", "jwt", "bearer"))
#: What is said *about* a secret is none: the last part of `TOKEN_LIMIT` and `--password-file`.
_ABOUT = frozenset(
    "algorithm authentication checking column count dir enabled endpoint env expiration expires "
    "expiry field file format helper host id index kind length limit limits name names notice path "
    "policy port prompt prompts provider ref required size stdin store strength timeout ttl type "
    "types uri url urls version".split()
)
#: Nor is what is counted, or a piece of a language model's text.
_COUNTED = frozenset("bos cls eos mask max min n num pad sep special stop total unk".split())
#: An option that begins so takes no secret: `--ask-pass`.
_ASKING = frozenset(
    "allow ask check disable enable generate hide no print prompt require reset rotate show skip "
    "use verify with without".split()
)
#: Keys that are no secrets in `NAME_KEY`; of lower case names only those below are.
_OPEN_KEYS = frozenset("cache foreign group partition primary public row sort".split())
_SECRET_KEYS = frozenset(
    "access account api app auth client encryption license master secret service session shared "
    "signing storage subscription".split()
)
#: Headers that hold secrets whatever their names say.
_HEADERS = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie"))


def is_secret(name: str) -> bool:
    """Whether the value of a variable, an option or a field of that name is a secret."""
    parts = _parts(name)
    if not parts or parts[-1] in _ABOUT or parts[0] in _COUNTED or name in ("PWD", "OLDPWD"):
        return False
    if any(part.endswith(_SECRETS) or part in _SHORT for part in parts):
        return True
    if parts[-1] not in ("key", "keys"):
        return False
    before = parts[-2] if len(parts) > 1 else ""
    return before not in _OPEN_KEYS if name.isupper() else before in _SECRET_KEYS


def takes_secret(option: str) -> bool:
    """Whether the word behind an option is a secret. With a single dash the name has to be exact:
    `-psecret` may be an option with its value."""
    found = re.fullmatch(r"(--?)([A-Za-z][\w.-]*)", option)
    if found is None or _parts(option)[0] in _ASKING:
        return False
    is_exact = found[2] in _SECRETS or found[2] in _SHORT or "-" in found[2]
    return (is_exact or found[1] == "--") and is_secret(option)


def is_secret_header(name: str) -> bool:
    return name.lower() in _HEADERS or ("-" in name and is_secret(name))


def _parts(name: str) -> list[str]:
    """The words of a name: of NAMES_LIKE_THIS, --like-this, like.this and likeThis."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
