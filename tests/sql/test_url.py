"""Database URLs: what they mean, what is wrong with them, and that no error shows a password."""

import string
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import cenote
from cenote.sql.url import Secret, Target, parse

pytestmark = [pytest.mark.once, pytest.mark.coreless]

SECRET = "hunter2"
GOOD = "postgresql://app:{}@db.example:5432/shop?sslmode=require&application_name=x"

# What can be written in a URL: all but the null character and halves of surrogate pairs.
words = st.text(st.characters(exclude_characters="\0", codec="utf-8"))
some_words = words.filter(bool)


def told(error: BaseException) -> str:
    """All that an error says, together with those behind it."""
    texts, seen = [], set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        texts += [str(each), repr(each), repr(each.args)]
        each = each.__cause__ or each.__context__
    return "\n".join(texts)


# -- what they mean ------------------------------------------------------------------------------


def hosts(*pairs: tuple[str, int | None]) -> tuple[tuple[str, int | None], ...]:
    return pairs


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///app.db", {"database": "app.db"}),
        ("sqlite:////tmp/app.db", {"database": "/tmp/app.db"}),
        ("sqlite:///:memory:", {"database": ":memory:"}),
        ("sqlite:///my%20file%3F.db", {"database": "my file?.db"}),
        ("postgresql://h", {"hosts": hosts(("h", None))}),
        ("postgresql://h/", {"hosts": hosts(("h", None))}),
        ("postgresql://u@/d", {"user": "u", "database": "d"}),
        ("postgresql://:pw@h/d", {"hosts": hosts(("h", None)), "database": "d"}),
        ("postgresql://a:1,b,c:3/d", {"hosts": hosts(("a", 1), ("b", None), ("c", 3)),
                                      "database": "d"}),
        ("postgresql://[::1]:5433/d", {"hosts": hosts(("::1", 5433)), "database": "d"}),
        ("postgresql://[::1]/d", {"hosts": hosts(("::1", None)), "database": "d"}),
        ("postgresql://%2Ftmp%2Fsock/d", {"hosts": hosts(("/tmp/sock", None)), "database": "d"}),
        ("mysql://h/d?a=1&b=x%26y", {"hosts": hosts(("h", None)), "database": "d",
                                     "options": {"a": "1", "b": "x&y"}}),
        ("postgresql:///d?user=u%40x&a=1", {"user": "u@x", "database": "d",
                                            "options": {"a": "1"}}),
        ("MySQL://h/d", {"scheme": "mysql", "hosts": hosts(("h", None)), "database": "d"}),
        ("postgresql+psycopg://h/d?", {"scheme": "postgresql+psycopg",
                                       "hosts": hosts(("h", None)), "database": "d"}),
    ],
)  # fmt: skip
def test_the_parts_of_a_url_are_read(url: str, expected: dict[str, Any]) -> None:
    target = parse(url)
    nothing = {"hosts": (), "user": None, "database": "", "options": {}}
    for name, value in {"scheme": url.partition(":")[0], **nothing, **expected}.items():
        assert getattr(target, name) == value, name
    assert (target.password is not None) == ("pw@" in url)


def test_an_empty_password_is_a_password() -> None:
    password = parse("postgresql://u:@h/d").password
    assert password is not None
    assert password.reveal() == ""
    assert parse("postgresql://u@h/d").password is None


@given(
    user=some_words,
    password=words,
    database=words,
    names=st.lists(st.tuples(st.text(string.ascii_lowercase, min_size=1), st.integers(1, 65535)),
                   min_size=1, max_size=3),
    options=st.dictionaries(
        some_words.filter(lambda name: name not in ("user", "password")), words, max_size=3
    ),
    quoted=st.sampled_from([quote, quote_plus]),
)  # fmt: skip
def test_whatever_is_percent_encoded_arrives(
    user: str,
    password: str,
    database: str,
    names: list[tuple[str, int]],
    options: dict[str, str],
    quoted: Any,
) -> None:
    place = ",".join(f"{name}:{port}" for name, port in names)
    query = "&".join(f"{quote(name, safe='')}={quoted(options[name], safe='')}" for name in options)
    login = f"{quote(user, safe='')}:{quote(password, safe='')}"
    target = parse(f"postgresql://{login}@{place}/{quote(database, safe='')}?{query}")
    assert target.user == user
    assert target.password is not None
    assert target.password.reveal() == password
    assert target.hosts == tuple(names)
    assert target.database == database
    assert target.options == options


@given(padding=words, as_option=st.booleans())
def test_nobody_is_shown_the_password(padding: str, as_option: bool) -> None:
    password = f"{padding}{SECRET}{padding}"
    quoted = quote(password, safe="")
    url = GOOD.replace(":{}", "") + f"&password={quoted}" if as_option else GOOD.format(quoted)
    target = parse(url)
    assert isinstance(target.password, Secret)
    assert target.password.reveal() == password
    for text in (repr(target), str(target), target.label, target.masked, f"{target.password}"):
        assert SECRET not in text
    assert target.masked == "postgresql://app:***@db.example:5432/shop"
    assert target.label == "postgresql://db.example:5432/shop"


def test_the_label_of_a_url_shows_no_secret() -> None:
    assert parse("sqlite:////tmp/a.db?mode=ro").label == "sqlite:////tmp/a.db"
    assert parse("postgresql://u@h/d").masked == "postgresql://u@h/d"
    assert parse("postgresql://:x@h/d").masked == "postgresql://:***@h/d"
    assert parse("postgresql://h,i:7/d").masked == "postgresql://h,i:7/d"
    assert parse("postgresql://[::1]:7,[::2]/d").label == "postgresql://[::1]:7,[::2]/d"


def test_targets_are_equal_by_what_they_say() -> None:
    assert parse("mysql://h/d?a=1") == Target("mysql", (("h", None),), None, None, "d", {"a": "1"})


# -- what is wrong with them ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must look like"),
        ("app.db", "must look like"),
        ("sqlite:app.db", "must look like"),
        ("postgresql:/h/d", "must look like"),
        ("//h/d", "must look like"),
        ("1sqlite:///a", "must look like"),
        ("sqlite:///a.db\n", "control character"),
        (" sqlite:///a.db", "a space at one of its ends"),
        ("sqlite:///a.db ", "a space at one of its ends"),
        ("sqlite:///a\tb.db", "control character"),
        ("postgresql://h/d#x", "'#'"),
        ("postgresql://h/d?a=#", "'#'"),
        ("postgresql://u:p/w@h/d", "'@' after the first '/'.*percent-encoded"),
        ("postgresql://u:p?w@h/d", "'@' after the first '/' or '\\?'.*percent-encoded"),
        ("postgresql://u:1?w=2@h/d", "'@' after the first '/' or '\\?'.*percent-encoded"),
        ("postgresql://h:port/d", "port"),
        ("postgresql://h:0/d", "port"),
        ("postgresql://h:65536/d", "port"),
        ("postgresql://h:-1/d", "port"),
        ("postgresql://h:1:2/d", "port"),
        ("postgresql://h:٣/d", "port"),
        ("postgresql://::1/d", "host|port"),
        ("postgresql://[::1/d", "closing ']'"),
        ("postgresql://[::1]x/d", "closing ']'"),
        ("postgresql://a,,b/d", "empty host"),
        ("postgresql://a,/d", "empty host"),
        ("postgresql://:5432/d", "empty host"),
        ("postgresql://[]/d", "empty host"),
        ("postgresql://u%:p@h/d", "'%' in its user name"),
        ("postgresql://u:p%4@h/d", "'%' in its password"),
        ("postgresql://u:p@h%zz/d", "'%' in its host"),
        ("postgresql://h/%", "'%' in its database"),
        ("postgresql://h/d?a%=1", "'%' in its option"),
        ("postgresql://h/d?a=%1", "'%' in its option 'a'"),
        ("postgresql://u:%ff@h/d", "password that is not UTF-8"),
        ("postgresql://h/%C3", "database that is not UTF-8"),
        ("postgresql://u:%00@h/d", "password with a null"),
        ("sqlite:///a%00.db", "database with a null"),
        ("postgresql://u:\ud800@h/d", "password with a null character or an unpaired surrogate"),
        ("postgresql://h/d?a", "option without a value"),
        ("postgresql://h/d?=1", "option without a value"),
        ("postgresql://h/d?a=1&a=2", "the option 'a' twice"),
        ("postgresql://u@h/d?user=v", "has a user, and the option 'user' as well"),
        ("postgresql://u:p@h/d?password=q", "has a password, and the option 'password' as well"),
        ("postgresql://u:@h/d?password=q", "has a password, and the option 'password' as well"),
    ],
)
def test_what_is_wrong_is_said(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"url .*{message}"):
        parse(url)


@pytest.mark.parametrize("url", [None, b"sqlite:///a", 5, ["sqlite:///a"]])
def test_a_url_is_a_string(url: Any) -> None:
    with pytest.raises(TypeError, match="url must be a string, not"):
        parse(url)


# -- no error shows a password -------------------------------------------------------------------


def test_no_error_shows_a_password_that_is_an_option() -> None:
    for scheme in ("postgresql", "mysql", "sqlite"):
        for more in ("", "&password=hunter2", "&colour=blue"):
            check_nothing_told(f"{scheme}://app:x@h/d?password=hunter2{more}")
            check_nothing_told(f"{scheme}://app@h/d?password=hunter2%{more}")


def check_nothing_told(url: str) -> None:
    problem: Exception | None = None
    try:
        cenote.Database(url)
    except (ValueError, TypeError) as error:
        problem = error
    assert problem is None or SECRET not in told(problem), url


specials = st.text("/?#@:%[]&=+ ,;'\"\\\n\0é\ud800aA1", max_size=5)


@given(before=specials, after=specials, scheme=st.sampled_from(["postgresql", "mysql", "sqlite"]))
@example(before="12?", after="=1", scheme="postgresql")  # was: unknown option 'hunter2'
@example(before="@h?", after="=1", scheme="mysql")
@example(before="%ff", after="", scheme="postgresql")
def test_a_password_that_was_not_encoded(before: str, after: str, scheme: str) -> None:
    url = GOOD.replace("postgresql", scheme).format(f"{before}{SECRET}{after}")
    check_nothing_told(url)


@given(data=st.data(), padding=specials.filter(lambda text: "\ud800" not in text))
def test_a_url_that_was_damaged(data: st.DataObject, padding: str) -> None:
    url = GOOD.format(quote(f"{padding}{SECRET}{padding}", safe=""))
    start = data.draw(st.integers(0, len(url)))
    end = data.draw(st.integers(start, len(url)))
    new = data.draw(st.text("/?#@:%[]&=+ ,1a", max_size=3))
    check_nothing_told(url[:start] + new + url[end:])


@given(length=st.integers(0, 200))
def test_a_url_that_was_cut_off(length: int) -> None:
    check_nothing_told(GOOD.format(SECRET)[:length])
