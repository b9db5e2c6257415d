"""Signature Version 4 against the vectors that AWS publishes, and the one form in which keys are sent."""

import calendar
import errno

import pytest

from sidemount.stores.signing import (
    EMPTY_SHA256,
    Credentials,
    Signer,
    encode_key,
    encode_query,
    sha256_of,
)
from sidemount.stores.store import StoreFault

# https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html
S3 = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
MOMENT_S = calendar.timegm((2013, 5, 24, 0, 0, 0))
HOST = {"host": "examplebucket.s3.amazonaws.com"}
WELCOME = b"Welcome to Amazon S3."


@pytest.mark.parametrize(
    ("method", "target", "headers", "body", "signature"),
    [
        pytest.param(
            "GET",
            "/test.txt",
            {"range": "bytes=0-9"},
            b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            id="get object",
        ),
        pytest.param(
            "PUT",
            "/" + encode_key("test$file.text"),
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            WELCOME,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
            id="put object",
        ),
        pytest.param(
            "GET",
            "/?" + encode_query([("lifecycle", "")]),
            {},
            b"",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            id="get bucket lifecycle",
        ),
        pytest.param(
            "GET",
            "/?" + encode_query([("prefix", "J"), ("max-keys", "2")]),
            {},
            b"",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            id="list objects",
        ),
    ],
)
def test_requests_to_s3_are_signed_as_in_the_examples_of_aws(
    method: str, target: str, headers: dict[str, str], body: bytes, signature: str
) -> None:
    signer = Signer()
    for _ in range(2):  # with the key of the day derived, and known
        signed = signer.sign(
            method, target, HOST | headers, S3, "us-east-1", MOMENT_S + 0.9, sha256_of([body] if body else [])
        )
        assert signed["Authorization"].endswith(f"Signature={signature}")
        assert signed["x-amz-date"] == "20130524T000000Z"


def test_other_services_are_signed_as_in_the_test_suite_of_aws() -> None:
    """Source: aws-sig-v4-test-suite, get-vanilla."""
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
    moment_s = calendar.timegm((2015, 8, 30, 12, 36, 0))
    signed = Signer("service").sign(
        "GET", "/", {"host": "example.amazonaws.com"}, credentials, "us-east-1", moment_s, EMPTY_SHA256
    )
    assert signed == {
        "x-amz-date": "20150830T123600Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request,"
        "SignedHeaders=host;x-amz-date,"
        "Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
    }


def test_a_known_key_is_not_used_for_other_credentials_days_or_regions() -> None:
    signer = Signer()
    other = Credentials(S3.access_key_id, S3.secret_access_key + "x")
    asked = [(S3, "a", 0.0), (other, "a", 0.0), (S3, "b", 0.0), (S3, "a", 86_400.0), (S3, "a", 0.0)]
    found = [
        signer.sign("GET", "/", HOST, who, region, MOMENT_S + later_s, EMPTY_SHA256)["Authorization"]
        for who, region, later_s in asked
    ]
    assert found[0] == found[4]
    assert len(set(found)) == 4


def test_a_session_token_is_sent_and_signed() -> None:
    credentials = Credentials("a", "b", "the+token/=")
    signed = Signer().sign("GET", "/", HOST, credentials, "r", 0, EMPTY_SHA256)
    assert signed["x-amz-security-token"] == "the+token/="
    assert "x-amz-security-token" in signed["Authorization"]


def test_no_text_of_credentials_shows_what_is_secret() -> None:
    assert "wJal" not in repr(S3)
    assert "tok" not in repr(Credentials("a", "b", "tok"))


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a/b", "a/b"),
        ("a b", "a%20b"),
        ("a+b", "a%2Bb"),
        ("100%", "100%25"),
        ("~a-b_c.d", "~a-b_c.d"),
        ("ü/é", "%C3%BC/%C3%A9"),
        ("😀", "%F0%9F%98%80"),
        ("a//b", "a//b"),
        ("/a/", "/a/"),
        ("a/../b/./c", "a/../b/./c"),
        ("a?b#c&d=e;f", "a%3Fb%23c%26d%3De%3Bf"),
        ("!*'()", "%21%2A%27%28%29"),
        ("a\nb\x7f", "a%0Ab%7F"),
        ("\udcff", "%FF"),
    ],
)
def test_a_key_goes_out_whole_and_in_the_form_that_is_signed(key: str, path: str) -> None:
    assert encode_key(key) == path


def test_a_query_is_sorted_by_its_encoded_names_and_slashes_are_encoded() -> None:
    assert encode_query([("prefix", "a/ü+ b"), ("delimiter", "/"), ("uploads", "")]) == (
        "delimiter=%2F&prefix=a%2F%C3%BC%2B%20b&uploads="
    )


def test_what_is_no_text_at_all_is_refused_as_a_fault_of_the_store() -> None:
    with pytest.raises(StoreFault) as caught:
        encode_key("\ud800")
    assert caught.value.errno == errno.EILSEQ
