"""Secrets on command lines are masked, and nothing else is."""

from __future__ import annotations

import shlex
import string

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ckptfs.commands import command_line, masked, noted, quoted, shown

SECRET = "hunter2"

#: Command lines with a secret in them, as text: where {} is, the secret stands.
FORMS = [
    # options
    "tool --password={} x",
    "tool --password {} x",
    "tool --password='{}' x",
    'tool --password "{}" x',
    "tool --db-password={}",
    "tool --token={}",
    "tool --token {} --verbose",
    "tool --api-key={}",
    "tool --api_key {}",
    "tool --apikey={}",
    "tool --secret={}",
    "tool --client-secret {}",
    "tool --auth-token={}",
    "tool --access-key={}",
    "tool --passphrase {}",
    "tool --credentials={}",
    "java -Dspring.datasource.password={} x",
    "keytool -storepass {} -list",
    "openssl rsa -passin pass:{} -in x",
    "gpg --batch --passphrase '{}' -d x",
    # clients
    "mysql -uroot -p{} db",
    "mysqldump -h x -p'{}' db",
    "mysqladmin -p{} status",
    "mariadb -u root -p{}",
    "sudo mysql -p{}",
    "timeout 5 env A=1 mysql -p{}",
    "docker exec -it db mysql -p{} x",
    "sshpass -p {} ssh -p 22 host",
    "sshpass -p{} scp a b",
    "docker login -u joe -p {} registry",
    "podman login registry -p {}",
    "redis-cli -a {} ping",
    "curl -u joe:{} https://x",
    "curl -ujoe:{} https://x",
    "curl -sSu joe:{} https://x",
    "curl --user joe:{} https://x",
    "curl --user=joe:{} https://x",
    "curl --proxy-user joe:{} https://x",
    "psql -u joe:{}",
    "http -a joe:{} GET x",
    "lftp -u joe,{} x",
    "smbclient -U joe%{} //x/y",
    "mongosh -u joe -p {} db",
    "7z x -p{} a.7z",
    "unzip -P {} a.zip",
    "ldapsearch -D x -w {}",
    "aws configure set aws_secret_access_key {}",
    "git config --global github.token {}",
    "echo {} | sudo -S apt install x",
    "echo '{}' | docker login -u joe --password-stdin",
    "printf 'joe:%s' {} | chpasswd",
    # headers
    "curl -H 'Authorization: Bearer {}' https://x",
    'curl -H "Authorization: Basic {}" https://x',
    "curl -H 'Authorization: {}' https://x",
    "curl -H Authorization:{} https://x",
    "curl --header 'X-Api-Key: {}' https://x",
    "curl -H'PRIVATE-TOKEN: {}' https://x",
    "curl -H 'Cookie: {}' https://x",
    "grpcurl -H 'auth: Bearer {}' x",
    "tool Bearer {}",
    # fields
    "curl 'https://x/y?a=1&token={}&b=2'",
    "curl https://x/?api_key={}",
    "curl https://x/?key={}",
    "curl -d 'user=joe&password={}&x=1' https://x",
    "curl -d 'password={}' https://x",
    """curl -d '{{"user": "joe", "password": "{}"}}' https://x""",
    """curl -d '{{"access_token":"{}"}}' https://x""",
    r"""curl -d "{{\"password\": \"{}\"}}" https://x""",
    """python -c 'connect(password="{}")'""",
    """php -r '$password = "{}";'""",
    """node -e 'process.env.API_TOKEN="{}"'""",
    "helm install x --set auth.password={},replicas=2",
    "psql 'host=x password={} user=joe'",
    """psql -c "ALTER USER joe WITH PASSWORD '{}'" db""",
    """mysql -e "CREATE USER joe IDENTIFIED BY '{}'" db""",
    "echo 'password: {}' > config.yml",
    # URLs
    "git clone https://joe:{}@example.com/x",
    "psql postgres://joe:{}@example.com:5432/db",
    "redis-cli -u redis://:{}@example.com",
    "curl 'https://joe:{}@example.com/?a=b'",
    # variables
    "export GITHUB_TOKEN={}",
    "AWS_SECRET_ACCESS_KEY={} aws s3 ls",
    "env OPENAI_API_KEY={} python x.py",
    "PGPASSWORD='{}' psql",
    "MYSQL_PWD={} mysql",
    "docker run -e DB_PASSWD={} x",
    "docker run --env=DB_PASSWORD={} x",
    "docker run -eDB_PASSWORD={} x",
    "docker build --build-arg NPM_TOKEN={} .",
    "make SIGNING_KEY={}",
    "APP_CREDENTIAL={} ./x",
    "SECRET_KEY_BASE={} rails s",
    "cd x && export TOKEN={} && make",
    # within others
    "ssh host 'mysql -p{} db'",
    'ssh host "PASSWORD={} ./x"',
    "bash -c 'for i in 1; do curl -u joe:{} x; done'",
    "cat > .env <<'EOF'\nDB_PASSWORD={}\nEOF",
    "cat <<EOF | psql\nit's\npassword={}\nEOF",
    "# don't print it\nmysql -p'{}' db",
    "echo it is so # --token={}",
]

#: Secrets that are known by their shapes.
SHAPES = [
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "glpat-abcdefghij0123456789",
    "sk-abcdefghijklmnop0123456789",
    "sk-proj-abc_def-ghi",
    "sk-ant-api03-abc",
    "sk_live_abcdefgh",
    "xoxb-123-456-abc",
    "AKIAIOSFODNN7EXAMPLE",
    "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "AIzaSyA-1234567890abcdefghijklmnopqrstu",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1r",
]

#: What only looks like a secret.
HARMLESS = [
    'git commit -m "token refresh"',
    'git commit -m "password: allow spaces in it"',
    'git commit -m "Add Bearer authentication"',
    "sort --key=2 -t: passwords.txt",
    "sort -k 2",
    "ls --sort-key name",
    "make KEY_TYPES=x PRIMARY_KEY=id",
    "python tokenize.py password.txt",
    "docker run -p 8080:80 mysql",
    "docker run -p8080:80 x",
    "docker run --rm -p 3306:3306 mysql:8",
    "mkdir -p dir/password",
    "ssh -p 22 host",
    "cp -p secret.txt token.txt",
    "find mysql -path x -print",
    "mysql -u root -p db",
    "mysql -P 3306 -h x",
    "curl -u joe https://x",
    "curl -o out https://example.com:8080/a@b",
    "curl http://[::1]:80/@x",
    "curl --user-agent a:b x",
    "git clone git@github.com:joe/x.git",
    "git clone ssh://git@example.com:2222/x.git",
    "npm install @scope/pkg@1.2.3",
    "docker pull registry:5000/secret:latest",
    "skopeo copy docker://alpine:latest dir:x",
    "grep -rn 'password=' src",
    'grep -rn "my token=" src',
    "psql --no-password db",
    "ansible --ask-pass all",
    "tool --token-file x --password-stdin --max-tokens 100",
    "tool --eos-token x --num-token 5",
    "MAX_TOKENS=100 TOKEN_LIMIT=5 TOKEN_FILE=x ./x",
    "ssh -o PasswordAuthentication=no -o StrictHostKeyChecking=no host",
    "echo PWD=$PWD",
    "kubectl get secret x -o yaml",
    "git config credential.helper store",
    "git push https://x-access-token:${TOKEN}@github.com/${REPOSITORY}.git",
    "cargo test authorization::tests",
    "export GOOGLE_APPLICATION_CREDENTIALS=~/keys/account.json TLS_KEY=/etc/x/key.pem",
    "echo 'set the token in config'",
    'export TOKEN="$(cat ~/.token)"',
    "vsce package --allow-package-secrets x",
    "echo hello | sudo tee x",
    "aws s3 cp x s3://bucket/key",
    "pip install scikit-learn task-list sk-learn",
    "npm run npm_lifecycle_event",
    "node -e 'const t = x == 1'",
    "curl -H 'Content-Type: application/json' -H 'X-Key-Type: a' x",
    # What the shell has yet to put in.
    'curl -H "Authorization: Bearer $TOKEN" x',
    "mysql -p$DB_PASS db",
    'mysql -p"${DB_PASS}" db',
    "export TOKEN=$(cat x)",
    "tool --token=$TOKEN --password ${PW}",
    "git clone https://x:$TOKEN@example.com/y",
    "export A=1 TOKEN=",
]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_is_masked_and_the_rest_stays(form: str) -> None:
    text = masked(form.format(SECRET))
    assert SECRET not in text and "***" in text
    assert text.startswith(form.split()[0].partition("=")[0])
    assert masked(text) == text


@pytest.mark.parametrize("form", ["x --data {}", "echo '{}' > f", "x 'a {} b'", "K={} x", "{}"])
@pytest.mark.parametrize("secret", SHAPES)
def test_a_secret_that_is_known_by_its_shape_is_masked(form: str, secret: str) -> None:
    text = masked(form.format(shlex.quote(secret) if " " not in form or "'" in form else secret))
    assert "***" in text and not any(part in text for part in secret.split() if len(part) > 7)


@pytest.mark.parametrize(
    "text, told",
    [
        (
            "don't use the token ghp_0123 and it's \"fine\"",
            "don't use the token *** and it's \"fine\"",
        ),
        ("set the token budget, then pass it on", "set the token budget, then pass it on"),
        ("log in with --password hunter2, please", "log in with --password *** please"),
        ("a\n b\t\x1b c", r"a b \x1b c"),
    ],
)
def test_in_prose_quotes_mean_nothing(text: str, told: str) -> None:
    assert noted(text) == told
    assert noted(text, "full") == " ".join(text.split()).replace("\x1b", r"\x1b")


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize(
    "argv, line",
    [
        (["mysql", '--password=it\'s a "secret"', "db"], "mysql --password=*** db"),
        (["mysql", "-pmy secret", "db"], "mysql -p*** db"),
        (["tool", "--token", "$ecret", "x"], "tool --token *** x"),
        (["tool", "PASSWORD=a&b=c;d", "x"], "tool PASSWORD=*** x"),
        (["curl", "-H", "X-Api-Key: a b c", "x"], "curl -H 'X-Api-Key: ***' x"),
        (["curl", "-d", "user=a&password=b c&x=1"], "curl -d 'user=a&password=***&x=1'"),
        (["curl", "https://a:p/s@s@host/x"], "curl https://a:***@host/x"),
        (["ssh", "h", "mysql -p'a b' c"], 'ssh h "mysql -p*** c"'),
        (["sh", "-c", "export TOKEN='a b'\ncurl $TOKEN"], "export TOKEN=***; curl $TOKEN"),
    ],
)
def test_secrets_with_blanks_and_quotes(argv: list[str], line: str) -> None:
    assert command_line([word.encode() for word in argv]) == line


# That a password goes into a pipe is told by what stands behind it.
@pytest.mark.parametrize("form", [form for form in FORMS if " | " not in form.partition("{}")[2]])
def test_a_secret_that_is_cut_in_its_middle_is_masked(form: str) -> None:
    """Of an endless secret only a beginning is read, whatever would stand behind it."""
    begin = form[: form.index("{}")].replace("{{", "{")
    line = (begin + "Hidden1x" * 4000)[: 16 << 10].encode()
    assert "Hidden1x" not in command_line([b"bash", b"-c", line])
    assert "Hidden1x" not in command_line([b"bash", b"-c", b"cd x; " + line])


@pytest.mark.parametrize("secret", [f"https://joe:{SECRET}", *SHAPES[:13]])
def test_a_secret_of_which_only_the_beginning_was_read(secret: str) -> None:
    key = "-----BEGIN PRIVATE KEY-----" + "x" * 16_000 + "-----END PRIVATE KEY-----"
    for length in range(6, len(secret)):
        line = shown(f"deploy --key-text '{key}' {secret[:length]}")
        assert line.startswith("deploy --key-text") and secret[3:length] not in line


# -- properties ------------------------------------------------------------------------------------

LETTERS = string.ascii_letters + string.digits
#: What a secret may have in it if it stands in a text without quotes.
PLAIN = st.text(alphabet=LETTERS + "._%+~^", min_size=6, max_size=30)
ANY = st.text(alphabet=LETTERS + " ._%+~^@&;|<>()!*'\"\\$#?/:=,{}[]-\n\té", min_size=6, max_size=30)

#: Arguments with a secret, whatever is in it.
ARGUMENTS = [
    ["tool", "--password={}"],
    ["tool", "--password", "{}", "x"],
    ["env", "API_TOKEN={}", "tool"],
    ["mysql", "-p{}", "x"],
    ["curl", "-u", "joe:{}", "x"],
    ["curl", "-H", "Authorization: Bearer {}"],
    ["curl", "-H", "X-Api-Key: {}"],
    ["sudo", "sshpass", "-p", "{}", "ssh", "x"],
    ["docker", "login", "-p", "{}"],
    ["redis-cli", "-a", "{}"],
]


@given(st.sampled_from(FORMS), PLAIN)
@settings(deadline=None, max_examples=300)
def test_no_secret_gets_through_in_any_form(form: str, secret: str) -> None:
    # A word of a language behind "Bearer" is one; a number behind a host's name is a port.
    assume(any(char.isdigit() for char in secret) and not secret.isdigit())
    assume(not secret.startswith(".") and secret not in form)
    assert secret not in masked(form.format(secret))


@given(st.sampled_from(ARGUMENTS), ANY)
@settings(deadline=None, max_examples=300)
def test_no_secret_gets_through_in_an_argument(words: list[str], secret: str) -> None:
    assume(not secret.startswith("-") and secret.strip() == secret)
    argv = [word.format(secret) if "{}" in word else word for word in words]
    text = masked(quoted(argv))
    assert "***" in text
    assert all(part not in text for part in secret.split() if len(part) > 4)


@given(st.text(alphabet="ab =:'\"\\$(){}<>|&;#-@/?\ntoken:p*", max_size=60))
@settings(deadline=None, max_examples=300)
def test_masking_a_text_does_no_more_than_mask(text: str) -> None:
    once = masked(text)
    assert once == text or "***" in once


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "-", "=", "a=", "'", '"', "\\", "'\"'\"'", "<<a\n", "$(", "token ", "token=", "://"),
        *("a://b:", "a://b@", "@", "sk-a", "eyJa.", "-----BEGIN PRIVATE KEY-----", "-----END "),
        *("Bearer ", "password: ", '"password":', "&token=", "token=a,", "sh -c ", "nice ", "\n"),
        *("env a=", "eval ", "&& eval a ", "exec ", "docker ", "mysql -p", "echo a | sudo -S "),
        *("set token ", "A_", "aB", "Cookie: ", "{ }; __code=$?; ", "# a\n", " ", "$'\\''"),
        *("-u a:", "a&b=", "eyJa.", "a.", "-a"),
    ],
)
@pytest.mark.parametrize("begin", ["", "'", "bash -c '", "source /shell-snapshots/ && eval '"])
def test_a_hostile_text_takes_no_more_time_than_another(begin: str, unit: str) -> None:
    """Each would take minutes if a pattern looked at the rest of the text at each place."""
    text = (begin + unit * (16 << 10))[: 16 << 10].encode()
    assert command_line([b"bash", b"-c", text])
    assert command_line(text.replace(b"\0", b"").split() or [text])


@pytest.mark.parametrize("text", ['echo {"password":"hunter2"} > s', "x {'api_key': 'hunter2'}"])
def test_json_whose_quotes_a_shell_takes_away(text: str) -> None:
    assert "hunter2" not in masked(text) and "***" in masked(text)
