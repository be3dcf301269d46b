"""Profiles of AWS on their way to a server: their keys, and processes that print some."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from servers.fixtures import S3Server
from watchglass.errors import StoreError
from watchglass.store import open_store
from watchglass.store.media.credentials import s3_settings


class Home:
    """Configuration files of AWS, which boto3 and watchglass find by the environment of this process."""

    def __init__(self, folder: Path) -> None:
        self.config, self.credentials = folder / "config", folder / "credentials"

    def write(self, *, config: str = "", credentials: str = "") -> None:
        self.config.write_text(config)
        self.credentials.write_text(credentials)


@pytest.fixture
def home(tmp_path: Path, s3_location: str, monkeypatch: pytest.MonkeyPatch) -> Home:
    """The profile ``lab``, and no keys or endpoint in the environment."""
    found = Home(tmp_path)
    files = {"AWS_CONFIG_FILE": str(found.config), "AWS_SHARED_CREDENTIALS_FILE": str(found.credentials)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name)
    for name, value in {**files, "AWS_PROFILE": "lab"}.items():
        monkeypatch.setenv(name, value)
    return found


def printing(folder: Path, text: str) -> str:
    """A command that prints this."""
    script = folder / "keys.py"
    script.write_text(f"print({text!r})")
    return f"{sys.executable} {script}"


def test_a_profile_without_keys_asks_boto3(home: Home, tmp_path: Path) -> None:
    """One whose keys a command prints, called again when they have expired."""
    keys = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "hidden", "SessionToken": "token"}'
    home.write(config=f"[profile lab]\ncredential_process = {printing(tmp_path, keys)}\n")
    found = s3_settings(os.environ)["credential_provider"]()
    expires = found.pop("expires_at")
    assert found == {"access_key_id": "key", "secret_access_key": "hidden", "token": "token"}
    assert expires.tzinfo is not None


def test_a_profile_reaches_a_server(home: Home, s3_location: str, s3_server: S3Server) -> None:
    home.write(
        config=f"[profile lab]\nendpoint_url = {s3_server.url}\n",
        credentials=f"[lab]\naws_access_key_id={s3_server.access_key}\naws_secret_access_key={s3_server.secret_key}\n",
    )
    store = open_store(s3_location)
    store.write("x", b"1")
    assert store.read("x") == b"1"


def test_a_process_that_prints_keys_reaches_a_server(
    home: Home, s3_location: str, s3_server: S3Server, tmp_path: Path
) -> None:
    keys = f'{{"Version": 1, "AccessKeyId": "{s3_server.access_key}", "SecretAccessKey": "{s3_server.secret_key}"}}'
    command = printing(tmp_path, keys)
    home.write(config=f"[profile lab]\nendpoint_url = {s3_server.url}\ncredential_process = {command}\n")
    store = open_store(s3_location)
    store.write("x", b"1")
    assert store.read("x") == b"1"


def test_a_process_that_prints_no_keys(home: Home, tmp_path: Path) -> None:
    """Its output may hold anything, and is not repeated."""
    script = tmp_path / "keys.py"
    script.write_text("import sys; sys.exit('not-to-be-shown')")
    endpoint = "endpoint_url = http://127.0.0.1:1"
    home.write(config=f"[profile lab]\n{endpoint}\ncredential_process = {sys.executable} {script}\n")
    with pytest.raises(
        StoreError, match=r"profile gives no credentials \(CredentialRetrievalError\); log in"
    ) as caught:
        open_store("s3://bucket/a").list()
    assert "not-to-be-shown" not in str(caught.value)
