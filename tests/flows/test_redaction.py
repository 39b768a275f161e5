"""No secret reaches a log, and harmless text stays as it is."""

import json
import shlex
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gaitforge.common.redaction import is_secret_name, redacted
from gaitforge.flows.records.logs import log_event

SECRET = st.text(
    st.characters(
        min_codepoint=33,
        max_codepoint=0x17F,
        exclude_categories=["Zs", "Cc"],
        exclude_characters="\"'\\",
    ),
    min_size=6,
).map(lambda text: f"7q{text}Z9")
"""Without blanks and quotes; the ends are nowhere else in the texts below."""

PLACES = """
DB_PASS={}
MYSQL_PWD={} make
export PGPASSWORD={}
PREFECT_API_KEY={}
AWS_SECRET_ACCESS_KEY={}
PREFECT_SERVER_API_AUTH_STRING={}
password={}
--set config.token={}
--password {} --out x
passphrase: {}
Authorization: Bearer {}
Authorization: Basic {}
Proxy-Authorization: {}
X-Api-Key: {}
"""


@given(SECRET, st.sampled_from(PLACES.split("\n")[1:-1]))
def test_no_secret_beside_its_name_survives(secret: str, place: str) -> None:
    _check_hidden(place.format(secret), secret)
    _check_hidden(f"{place.format(secret)} and more", secret)


@given(
    st.text(st.characters(max_codepoint=0x17F, exclude_categories=["Cs"]), min_size=1),
    st.sampled_from(["password", "api_key", "dbPass", "DB_PASS", "x-auth-token", "Authorization"]),
)
def test_no_secret_of_json_and_quotations_survives(text: str, name: str) -> None:
    secret = f"7q{text}Z9"
    record = json.dumps({"user": "ada", name: secret, "steps": 3})
    for shown in (record, json.dumps(record), json.dumps([json.dumps(record)])):
        _check_hidden(shown, secret)
        assert "ada" in redacted(shown)
        assert "steps" in redacted(shown)
    assert json.loads(redacted(record)) == {"user": "ada", name: "***", "steps": 3}


@given(SECRET, st.sampled_from(["https", "redis", "postgresql+asyncpg", "git+https"]))
@example("pa/ss", "http")
@example("p@ss", "https")
@example("p@s/s@", "https")
@example("12/3?4#5", "https")
def test_no_password_in_a_url_survives(secret: str, scheme: str) -> None:
    for user in ("user", "", "ada.l-7"):
        url = f"no answer from {scheme}://{user}:{secret}@host:4200/api?x=1, again"
        assert redacted(url) == f"no answer from {scheme}://{user}:***@host:4200/api?x=1, again"


@pytest.mark.parametrize(
    "url", ["https://ghp_abcTOKEN@h/x", "https://abcTOKEN:x-oauth-basic@h/x", "http://abcTOKEN:@h"]
)
def test_no_token_in_the_place_of_a_user_survives(url: str) -> None:
    assert "TOKEN" not in redacted(url)
    assert "://***" in redacted(url)


@given(st.text(min_size=6).filter(lambda text: "\0" not in text and text.isprintable()))
def test_no_value_of_a_secret_variable_survives(secret: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DB_PASS", f"7q{secret}")
        for form in (str, json.dumps, repr, quote, quote_plus, shlex.quote):
            assert f"7q{secret}" not in redacted(f"refused: {form(f'7q{secret}')} there")
        assert "7q" not in redacted(json.dumps([f"7q{secret}"]))


HARMLESS = """
git+https://github.com/org/project@v1.2 is installed
http://127.0.0.1:4200/files/a@b and http://localhost:8786/status
https://medium.com/@user/post, ssh://git@host/x, s3://bucket/walks@2.zarr
4 parts, first pass: 3 of them, token: 5, n_tokens=7, max_tokens: 3, passed=3, bypass=1
sort_key=name, primary key: id, {"key": "ab12", "author": "Ada", "tokens": "return"}
the password is wrong; a token was refused; PREFECT_API_KEY_FILE=/run/key
legged.zarr: 4 parts, 720 episodes, hash 5ab9f005a835; a@b.org asked at 12:30
objective=return learners.fcnet.peak_lr=0.001 --set config.tokens=4
"""


@pytest.mark.parametrize("line", HARMLESS.split("\n")[1:-1])
def test_harmless_text_stays(line: str) -> None:
    assert redacted(line) == line


@given(st.text(st.characters(exclude_characters="=:"), max_size=200))
def test_text_that_assigns_nothing_stays(text: str) -> None:
    if "--" not in text and "Bearer" not in text:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.environ", {})
            assert redacted(text) == text


def test_a_log_has_no_secret_in_nested_values_or_under_a_secret_name(tmp_path: Path) -> None:
    words = ["run", "--password", "hunter2", "https://u:hunter2@host"]
    nested = {"db_pass": "hunter2", "steps": 3, "lines": ["password=hunter2"]}
    log_event(tmp_path, "info", "begin", words=words[3:], nested=nested, token="hunter2", step=1)
    text = next((tmp_path / "log").iterdir()).read_text()
    assert "hunter2" not in text
    line = json.loads(text)
    assert (line["step"], line["nested"]["steps"]) == (1, 3)


def test_names_of_secrets() -> None:
    secret = "DB_PASS dbPass db-pass API_KEY apiKey x-auth-token HF_TOKEN TOKEN_1 AUTH_STRING pwd"
    assert all(map(is_secret_name, secret.split()))
    assert not any(
        map(is_secret_name, ["passage", "tokens", "author", "sort_key", "n_pass_rate", "key"])
    )


def _check_hidden(text: str, secret: str) -> None:
    hidden = redacted(text)
    assert "***" in hidden
    assert secret not in hidden
    assert "7q" not in hidden
    assert "Z9" not in hidden
