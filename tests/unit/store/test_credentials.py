"""Where object stores are and how they are reached: locations, endpoints, regions, credentials."""

from __future__ import annotations

import configparser
import sys
from pathlib import Path

import pytest

from watchglass.errors import InvalidValueError, MissingExtraError, StoreError
from watchglass.store import open_store
from watchglass.store.media.credentials import RequestPatience, azure_settings, connector, s3_settings
from watchglass.store.media.objects import ObjectStore


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    """An environment whose configuration files are those of this test."""
    names = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
    return {name: str(tmp_path / file) for name, file in names.items()}


def write(home: dict[str, str], config: str = "", credentials: str = "") -> None:
    Path(home["AWS_CONFIG_FILE"]).write_text(config)
    Path(home["AWS_SHARED_CREDENTIALS_FILE"]).write_text(credentials)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3://bucket/runs/demo", "s3://bucket/runs/demo"),
        ("S3://bucket/runs/demo/", "s3://bucket/runs/demo"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("gs://my_bucket.example.org/a", "gs://my_bucket.example.org/a"),
        ("az://container/a b/c", "az://container/a b/c"),
    ],
)
def test_locations(location: str, shown: str) -> None:
    """Nothing is looked up: none of these can be reached."""
    assert open_store(location).location == shown


@pytest.mark.parametrize(
    "location",
    [
        "s3://",
        "s3:///a",
        "s3://bu cket/a",
        "s3://bucket:9000/a",
        "s3://bucket//a",
        "s3://bucket/a//b",
        "s3://bucket/../a",
        "s3://bucket/a/./b",
        "s3://bucket/.hidden",
        "s3://bucket/a\\b",
        "s3://bucket/" + "a" * 481,
        "s3://[::1]/a",
    ],
)
def test_locations_that_are_refused(location: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^the (location|prefix)") as caught:
        open_store(location)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "location",
    ["s3://key:secret@bucket/a", "az://container/a?sig=secret", "gs://bucket/a#secret", "s3://bucket/a?token=secret"],
)
def test_what_may_be_secret_is_refused_and_not_repeated(location: str) -> None:
    """A location is shown, logged and stored in manifests."""
    with pytest.raises(InvalidValueError, match="without user, password, query or fragment") as caught:
        open_store(location)
    assert "secret" not in str(caught.value)


def test_without_obstore_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'watchglass\[object-store\]'"):
        open_store("s3://bucket/a")


def test_keys_of_the_environment_come_first(home: dict[str, str]) -> None:
    write(home, credentials="[default]\naws_access_key_id = profile\naws_secret_access_key = hidden\n")
    settings = s3_settings({**home, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
    assert "access_key_id" not in settings  # the client reads them itself
    assert s3_settings(home)["access_key_id"] == "profile"


def test_a_profile_is_read(home: dict[str, str]) -> None:
    """Keys, token, region and endpoint, from both files; the file of credentials wins."""
    write(
        home,
        config="[profile lab]\nregion = eu-west-3\nendpoint_url = http://minio:9000/\naws_access_key_id = old\n"
        "[lab]\nregion = not-read\n",
        credentials="[lab]\naws_access_key_id=key\naws_secret_access_key = hid=den\naws_session_token = %token\n",
    )
    assert s3_settings({**home, "AWS_PROFILE": "lab"}) == {
        "endpoint": "http://minio:9000",
        "region": "eu-west-3",
        "access_key_id": "key",
        "secret_access_key": "hid=den",
        "session_token": "%token",
    }


def test_an_endpoint_for_s3_alone(home: dict[str, str]) -> None:
    write(
        home,
        config="[default]\nendpoint_url = http://everything\nservices = mine\n"
        "[services mine]\ns3 =\n  endpoint_url = http://only-s3\nsts =\n  endpoint_url = http://no\n",
        credentials="[default]\naws_access_key_id = a\naws_secret_access_key = b\n",
    )
    assert s3_settings(home)["endpoint"] == "http://only-s3"
    assert s3_settings({**home, "AWS_ENDPOINT_URL": "http://a"})["endpoint"] == "http://a"
    both = {"AWS_ENDPOINT_URL": "http://a", "AWS_ENDPOINT_URL_S3": "http://b"}
    assert s3_settings({**home, **both})["endpoint"] == "http://b"


def test_regions(home: dict[str, str]) -> None:
    public = {**home, "AWS_SKIP_SIGNATURE": "true"}
    assert s3_settings(public)["region"] == "us-east-1"
    assert s3_settings({**public, "AWS_DEFAULT_REGION": "a"})["region"] == "a"
    assert s3_settings({**public, "AWS_DEFAULT_REGION": "a", "AWS_REGION": "b"})["region"] == "b"


def test_a_profile_that_is_not_there(home: dict[str, str]) -> None:
    write(home, config="[profile lab]\nregion = x\n", credentials="[other]\nregion = y\n")
    with pytest.raises(InvalidValueError, match=r"got 'nope'; there are: lab, other$"):
        s3_settings({**home, "AWS_PROFILE": "nope"})


def test_a_broken_file_is_named_and_not_quoted(home: dict[str, str]) -> None:
    write(home, credentials="aws_secret_access_key secret-value\n")
    with pytest.raises(InvalidValueError, match="is not a configuration file of AWS") as caught:
        s3_settings(home)
    assert "secret-value" not in str(caught.value)
    assert not isinstance(caught.value.__cause__, configparser.Error)


def test_without_boto3_the_extra_is_named(home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, config="[profile lab]\nsso_session = work\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"profile 'lab' .* pip install 'watchglass\[aws\]'"):
        s3_settings({**home, "AWS_PROFILE": "lab"})


def test_no_credentials_say_so(home: dict[str, str]) -> None:
    environ = {**home, "AWS_EC2_METADATA_DISABLED": "true"}
    store = ObjectStore("s3://bucket/a", "a", connector("s3", "bucket", RequestPatience(), environ))
    with pytest.raises(StoreError, match=r"^cannot use s3://bucket/a: found no credentials; set AWS_ACCESS_KEY_ID"):
        store.list()


def test_no_account_of_azure_says_so() -> None:
    with pytest.raises(StoreError, match=r"^cannot list az://container/a: found no credentials; .* AZURE_STORAGE_ACC"):
        open_store("az://container/a").list()


def test_a_container_or_web_identity_is_left_to_the_client(home: dict[str, str]) -> None:
    off = {**home, "AWS_EC2_METADATA_DISABLED": "true"}
    assert s3_settings({**off, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}) == {"region": "us-east-1"}
    assert s3_settings({**off, "AWS_WEB_IDENTITY_TOKEN_FILE": "/x"}) == {"region": "us-east-1"}


def test_a_connection_string_of_azure() -> None:
    text = "DefaultEndpointsProtocol=http;AccountName=me;AccountKey=a/b==;BlobEndpoint=http://127.0.0.1:1/me/;"
    assert azure_settings({"AZURE_STORAGE_CONNECTION_STRING": text}) == {
        "account_name": "me",
        "account_key": "a/b==",
        "endpoint": "http://127.0.0.1:1/me",
    }
    assert azure_settings({}) == {}


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "minio", "ftp://host", "http://", "http://user:word@host"])
def test_an_endpoint_is_a_whole_url(endpoint: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="whole URL") as caught:
        s3_settings({"HOME": str(tmp_path), "AWS_ENDPOINT_URL": endpoint})
    assert "word" not in str(caught.value)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_a_key_is_reported(name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="only one is set"):
        s3_settings({"HOME": str(tmp_path), name: "x"})
