"""Secrets on command lines are masked: what is known by a name, a program's option or a shape.

Owns which parts of a command line are secrets. A mask says that there was something; the rest
stays readable. What a shell has yet to expand (`$TOKEN`) is no secret. The time is linear in the
length of the text: every pattern consumes what it looks at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ckptfs.commands.words import (
    BODY,
    COMMENT,
    WORD,
    Simple,
    Token,
    quoted_word,
    simple_commands,
    tokens,
)
from ckptfs.commands.wrappers import command_at, program_name

MASK = "***"

#: How many commands within words of commands are looked into.
_DEPTH = 4


def masked(text: str) -> str:
    """A command line, or any text, with a mask in the place of each secret."""
    text = re.sub(_PAIR, _masked_pair, re.sub(_PRIVATE_KEY, MASK, text))
    return _masked(text, _DEPTH)


#: A pair of JSON whose quotes a shell takes away: `{"password":"secret"}`.
_PAIR = (
    r"""(?P<head>(?P<q>["'])(?P<name>[\w-]{1,64})(?P=q)\s?:\s?)(?P<v>["'])[^"'\n$]{1,512}(?P=v)"""
)


def _masked_pair(found: re.Match[str]) -> str:
    if not is_secret(found["name"]):
        return found[0]
    return f"{found['head']}{found['v']}{MASK}{found['v']}"


def masked_prose(text: str) -> str:
    """The same for a text that is no command: quotes mean nothing in it, and neither do places."""
    return _known_by_name(_known_by_shape(re.sub(_PRIVATE_KEY, MASK, text)))


def _masked(text: str, depth: int) -> str:
    found = tokens(text)
    changed = dict(_known_by_place(simple_commands(found), text))
    parts, end = [], 0
    for token in found:
        raw = text[token.start : token.end]
        if token.start in changed:
            new = _typed(changed[token.start], raw)
        elif token.kind == WORD:
            inside = _masked_inside(token.value, depth)
            new = raw if inside == token.value else _typed(inside, raw)
        elif token.kind in (COMMENT, BODY):
            new = raw[0] + _masked_inside(_assigned_in_lines(raw[1:]), depth)
        else:
            new = raw
        parts += [text[end : token.start], new]
        end = token.end
    return "".join(parts) + text[end:]


def _masked_inside(text: str, depth: int) -> str:
    """The text of one word, comment or here-document; it may have commands in it, too."""
    if depth and re.search(r"\s", text):
        text = _masked(text, depth - 1)
    return _known_by_name(_known_by_shape(text))


def _typed(value: str, raw: str) -> str:
    """A masked word, quoted as the word was if that is necessary."""
    if re.fullmatch(r"(?a)[\w@%+=:,./*-]*", value) or not re.search(r"""['"\\]""", raw):
        return value
    if raw.startswith('"'):
        return '"' + re.sub(r'(["\\`])', r"\\\1", value) + '"'
    return quoted_word(value)


# -- known by the place in a command ---------------------------------------------------------------


class _Client(NamedTuple):
    """A program with short options for passwords, by their letters."""

    #: `-pPASSWORD`
    attached: str = ""
    #: `-p PASSWORD` or `-pPASSWORD`
    apart: str = ""
    #: `-u USER:PASSWORD`
    pair: str = ""
    #: The verb that the options belong to.
    verb: str = ""
    #: How many words the options may take up; behind them a command has options of its own.
    reach: int = 1 << 30


def _clients(names: str, client: _Client) -> dict[str, _Client]:
    return dict.fromkeys(names.split(), client)


_CLIENTS: Mapping[str, _Client] = {
    **_clients("mysql mysqladmin mysqlcheck mysqldump mysqlimport mysqlsh", _Client(attached="p")),
    **_clients("mysqlshow mariadb mariadb-admin mariadb-dump", _Client(attached="p")),
    **_clients("7z 7za 7zr 7zz rar unrar", _Client(attached="p")),
    **_clients("mongo mongodump mongoexport mongoimport mongorestore mongosh", _Client(apart="p")),
    **_clients("buildah docker helm nerdctl podman skopeo az", _Client(apart="p", verb="login")),
    **_clients("mosquitto_pub mosquitto_sub sqlcmd bcp zip unzip", _Client(apart="P")),
    **_clients("ldapadd ldapdelete ldapmodify ldapsearch ldapwhoami", _Client(apart="w")),
    **_clients("redis-cli", _Client(apart="a")),
    **_clients("sshpass", _Client(apart="p", reach=2)),
    **_clients("curl psql lftp smbclient", _Client(pair="uU")),
    **_clients("http https xh xhs", _Client(pair="a")),
}
#: Programs that run a command which stands somewhere among their arguments.
_RUNNERS = frozenset("docker docker-compose kubectl nerdctl oc parallel podman ssh xargs".split())
_NONE = _Client()


def _known_by_place(commands: Sequence[Simple], text: str) -> Iterator[tuple[int, str]]:
    """The words that are secrets by what stands in front of them: where they begin, and what they
    are when masked."""
    for command, following in zip(commands, [*commands[1:], Simple([], "")], strict=False):
        values = command.values
        client, begin = _client_in(values)
        sets = program_name(values[0]) in _CONFIGURING and not _SETTING.isdisjoint(values)
        feeds = values[0] in ("echo", "printf") and command.ends == "|"
        feeds = feeds and _reads_password(following.values)
        for at, word in enumerate(command.words[1:], 1):
            before, value = values[at - 1], word.value
            used = client if begin < at <= begin + client.reach else _NONE
            is_all = not value.startswith("-") and (
                feeds or _is_announced(before, value) or (sets and _is_setting(before))
            )
            new = MASK if is_all else _of_client(used, before, value) or _of_word(value)
            if new is not None and not _is_reference(word, text, new):
                yield word.start, new
        if (new := _of_word(values[0])) and not _is_reference(command.words[0], text, new):
            yield command.words[0].start, new


#: Programs that are told names and values: `aws configure set aws_secret_access_key SECRET`.
_CONFIGURING = frozenset("aws gcloud git heroku npm pip pnpm poetry set setenv setx yarn".split())
_SETTING = frozenset(("config", "set", "setenv", "setx"))


def _is_setting(word: str) -> bool:
    """Whether a word is the name of a setting, and no word of a sentence."""
    return is_secret(word) and re.search(r"[_.]|[A-Z]{2}", word) is not None


def _is_announced(before: str, value: str) -> bool:
    """Whether a word is a secret by the word in front of it."""
    return takes_secret(before) or (before.lower() == "bearer" and _is_like_token(value))


def _of_word(value: str) -> str | None:
    """A word that says itself that there is a secret in it, masked to its end."""
    if value.startswith("pass:") and len(value) > 5:  # as openssl wants it
        return "pass:" + MASK
    return _assigned(value) or _header(value) or _form(value)


def _client_in(values: Sequence[str]) -> tuple[_Client, int]:
    """The client that a command runs, and where it stands."""
    begin = command_at(values)
    names = [program_name(value) for value in values[begin:]]
    known = set(names)
    candidates = names if names and names[0] in _RUNNERS else names[:1]
    for at, name in enumerate(candidates, begin):
        client = _CLIENTS.get(name)
        if client and (not client.verb or client.verb in known):
            return client, at
    return _NONE, 0


def _of_client(client: _Client, before: str, value: str) -> str | None:
    short = value[:2] if value.startswith("-") else ""
    if len(value) > 2 and short[1:] and short[1] in client.attached + client.apart:
        return short + MASK
    if len(before) == 2 and before[0] == "-" and before[1] in client.apart:
        return MASK
    if not client.pair:
        return None
    options = rf"--(?:proxy-)?(?:user|auth)=|-[a-zA-Z#]*[{client.pair}]"
    attached = re.match(options, value)
    if attached is None and not re.fullmatch(options.replace("=", ""), before):
        return None
    pair = re.match(r"([^:,%]*[:,%]).", value[attached.end() if attached else 0 :], re.DOTALL)
    return (attached[0] if attached else "") + pair[1] + MASK if pair else None


def _assigned(value: str) -> str | None:
    """`PASSWORD=secret`, `--password=secret`, `--env=PASSWORD=secret`: to the end of the word."""
    at = 0
    while found := re.compile(r"(-{0,2}[A-Za-z_][\w.-]*+)\+?=").match(value, at):
        name, at = found[1], found.end()
        if is_secret(name) and at < len(value) and not _is_file(value[at:]):
            is_query = not name.isupper() and re.search(r"&[\w.-]++=", value[at:])
            return None if is_query else value[:at] + MASK
    return None


def _is_file(value: str) -> bool:
    """Whether a value is the name of a file that holds a secret."""
    return re.fullmatch(_FILE, value) is not None


_FILE = r"""(?x) (?: ~ | \.{1,2} | \$\w+ | \$\{\w+\} )? / [\w./@~-]*+
    (?<= \.json | .\.pem | .\.key | .\.crt | .\.p12 | .\.pfx | .\.txt | .\.yml | \.yaml )"""


def _form(value: str) -> str | None:
    """`user=joe&password=my secret`: each field to its end."""
    fields = value.split("&")
    if len(fields) < 2 or not all(re.match(r"[\w.-]+=", field) for field in fields):
        return None
    new = "&".join(_assigned(field) or field for field in fields)
    return None if new == value else new


def _assigned_in_lines(text: str) -> str:
    """The same for the lines of a file that a command writes, to the end of each line."""
    return "\n".join(_assigned(line) or line for line in text.split("\n"))


def _header(value: str) -> str | None:
    """`Authorization: Bearer TOKEN`, `-HX-Api-Key: KEY`: to the end of the word."""
    found = re.match(r"(?:-H|--header=)?([A-Za-z][\w-]*+):(?!:)[ \t]*", value)
    if found is None or not is_secret_header(found[1]):
        return None
    scheme = re.compile(_SCHEME).match(value, found.end())
    end = scheme.end() if scheme else found.end()
    return value[:end] + MASK if end < len(value) else None


_SCHEME = r"(?i)(?:apikey|basic|bearer|digest|key|negotiate|token)[ \t]+"


def _reads_password(values: Sequence[str]) -> bool:
    """Whether a command reads a password from its input."""
    names = {program_name(value) for value in values}
    asks = "sudo" in names and any(re.fullmatch(r"-[A-Za-z]*S[A-Za-z]*", word) for word in values)
    return asks or "chpasswd" in names or any(word.endswith("-stdin") for word in values)


def _is_reference(word: Token, text: str, new: str) -> bool:
    """Whether what would be masked is a variable, which a shell replaces only when it runs."""
    if not new.endswith(MASK) or "'" in text[word.start : word.end]:
        return False
    return _is_expanded(word.value[len(new) - len(MASK) :])


# -- known by a shape ------------------------------------------------------------------------------

_PRIVATE_KEY = (
    r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?"
    r"(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_TOKEN = r"""(?x)
    gh[pousr]_[A-Za-z0-9]++ | github_pat_\w++ | gl(?:pat|dt|rt|ptt|cbt|soat)-[\w.-]++
  | xox[a-z]-[\w-]++ | xapp-[\w-]++ | A(?:KIA|SIA)[0-9A-Z]{8,}+ | dop_v1_\w++ | ya29\.[\w-]++
  | (?<![\w-]) (?:
        sk-(?:admin|ant|live|or|proj|svcacct|test)-[\w-]++
      | sk-(?=[A-Za-z]*+[0-9])[A-Za-z0-9]{12,}+
      | [rs]k_(?:live|test)_\w++ | AIza[\w-]{16,}+ | SG\.[\w.-]{16,}+ | pypi-[\w-]{16,}+
      | (?:npm|hf)_[A-Za-z0-9]{20,}+ | eyJ[\w-]{10,}+(?:\.[\w-]*+)*+
    )
"""
#: `ALTER USER joe PASSWORD 'secret'`, `... IDENTIFIED BY 'secret'`
_SQL = r"(?i)\b((?:password|identified[ ]+by)[ ]+)(?:'[^']++'?|\"[^\"]++\"?)"
_BEARER = r"(?i)\b(bearer|basic)([ \t]+)([\w.~+/=-]{6,}+)"


def _known_by_shape(text: str) -> str:
    text = re.sub(_TOKEN, MASK, text)
    text = re.sub(_SQL, rf"\1'{MASK}'", text)
    text = re.sub(r"://([^\s'\"<>]++)", _url, text)
    return re.sub(_BEARER, _bearer, text)


def _bearer(found: re.Match[str]) -> str:
    return found[1] + found[2] + MASK if _is_like_token(found[3]) else found[0]


def _is_like_token(word: str) -> bool:
    """Whether a word is no word of a language."""
    mixed = re.search(r"\d|[a-z][A-Z]|[=+/_]", word)
    return len(word) >= 20 or (mixed is not None and not word.startswith("$"))


def _url(found: re.Match[str]) -> str:
    """The rest of a URL from `://` on: a password, or a token in the place of a user."""
    rest = found[1]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    user, colon, password = authority.partition(":")
    if "@" in authority:
        end = authority.rindex("@")
    elif authority.startswith("["):  # an address of IPv6
        return found[0]
    elif "@" in rest and password and not password.isdigit():
        end = rest.rindex("@")  # the password has characters in it that should be escaped
    else:
        return found[0]
    if colon and len(user) < end:
        if _is_expanded(rest[len(user) + 1 : end]):
            return found[0]
        return f"://{user}:{MASK}{rest[end:]}"
    is_token = end >= 20 and _is_like_token(rest[:end])
    return f"://{MASK}{rest[end:]}" if is_token else found[0]


def _is_expanded(value: str) -> bool:
    """Whether a value is all a variable or the output of a command, or the beginning of `$(`."""
    return re.fullmatch(r"(?s)\$(?:\w*|\{\w+\}|\(.*\))", value) is not None


# -- known by a name in front of it ----------------------------------------------------------------

#: A name, and what stands between it and its value: `=`, a quote and a colon, or blanks.
_NAMED = (
    r"(?<![\w.-])(?P<name>-{0,2}\.*+[A-Za-z_][\w.-]*+)"
    r"(?:(?P<equals>=)(?!=)|(?P<field>\\*+[\"']?[ \t]*+[:=](?!=)[ \t]*+)|(?P<blank>[ \t]++))"
)
_BARE: Mapping[str, str] = {
    "equals": r"(?:[^\s\"'&;|()<>,`]|,(?![\w.-]++=))++",
    "field": r"[^\s\"',;:}\]][^\s\"',;}\]]*+(?=[ \t]*(?:[\n\"',}\]]|\\+[\"'n]|\Z))",
    "blank": r"[^\s\"'&;|()<>`-][^\s\"'&;|()<>`]*+",
}


def _known_by_name(text: str) -> str:
    """`"password": "secret"`, `token=secret&...`, `--password secret`, wherever it stands."""
    parts, end = [], 0
    for found in re.finditer(_NAMED, text):
        if found.start() < end or not _announces(found):
            continue
        if value := _value_at(text, found):
            parts += [text[end : value.start], value.masked]
            end = value.end
    return "".join(parts) + text[end:]


class _Value(NamedTuple):
    start: int
    end: int
    masked: str


def _announces(found: re.Match[str]) -> bool:
    name = found["name"]
    if found["blank"]:
        return takes_secret(name)
    # The name of a key in a query: `?key=...`.
    in_query = found.string.endswith(("?", "&"), 0, found.start())
    return is_secret(name) or (name == "key" and in_query)


def _value_at(text: str, found: re.Match[str]) -> _Value | None:
    start = found.end()
    opening = re.compile(r"\\*+[\"']").match(text, start)
    if opening is not None:
        inside, end = _within_quotes(text, opening)
        return _Value(start, end, opening[0] + MASK + opening[0]) if inside else None
    kind = found.lastgroup or ""
    if kind == "field" and not found["field"][-1:].isspace() and not _begins_header(found):
        return None
    bare = re.compile(_BARE[kind]).match(text, start)
    if bare is None or _is_expanded(bare[0]) or _is_file(bare[0]):
        return None
    return _Value(start, bare.end(), MASK)


def _begins_header(found: re.Match[str]) -> bool:
    """Whether a name and a colon are a header, and no part of a URL or an identifier."""
    ahead = found.string[found.start() - 1 : found.start()]
    return ahead in ("", " ", "\n", '"', "'") and is_secret_header(found["name"])


def _within_quotes(text: str, opening: re.Match[str]) -> tuple[bool, int]:
    """Whether there is something within quotes, and where they end."""
    quote, start = opening[0], opening.end()
    if quote == '"':
        closed = re.compile(r'(?s)(?:[^"\\]|\\.)*+').match(text, start)
        end = closed.end() if closed else start
    else:
        end = text.find(quote, start)
    end = len(text) if end < 0 else end
    inside = text[start:end]
    return bool(inside) and not _is_expanded(inside), min(end + len(quote), len(text))


# -- names that announce a secret ------------------------------------------------------------------

#: A part of a name that ends so announces a secret.
_SECRET_NAMES = (
    *("password", "passwords", "passwd", "passphrase", "secret", "secrets", "token", "apikey"),
    *("credential", "credentials", "secretkey", "accesskey", "storepass", "keypass", "userpass"),
)
#: Such a part only by itself: "bypass" is none.
_SHORT_NAMES = frozenset(("pass", "pwd", "pat", "jwt", "bearer"))
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
#: Headers that hold secrets though their names do not say so.
_HEADERS = frozenset(("authorization", "proxy-authorization", "cookie", "set-cookie"))


def is_secret(name: str) -> bool:
    """Whether the value of a variable, an option or a field of that name is a secret."""
    parts = _parts(name)
    if not parts or parts[-1] in _ABOUT or parts[0] in _COUNTED or name in ("PWD", "OLDPWD"):
        return False
    if any(part.endswith(_SECRET_NAMES) or part in _SHORT_NAMES for part in parts):
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
    is_exact = found[2] in _SECRET_NAMES or found[2] in _SHORT_NAMES or "-" in found[2]
    return (is_exact or found[1] == "--") and is_secret(option)


def is_secret_header(name: str) -> bool:
    return name.lower() in _HEADERS or ("-" in name and is_secret(name))


def _parts(name: str) -> list[str]:
    """The words of a name: of NAMES_LIKE_THIS, --like-this, like.this and likeThis."""
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
