"""How an object store is reached: endpoint, region and credentials, found the ways that its own tools find them.

obstore reads most of the environment. This module adds what it does not read: profiles of AWS, endpoints of a profile,
connection strings of Azure. Nothing found is kept in a message, a representation or a file.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from watchglass.errors import InvalidValueError, MissingExtraError, StoreError
from watchglass.store.media.request_failures import NO_CREDENTIALS

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

#: Keys of a profile that name a source of credentials instead of holding them.
_INDIRECT = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "credential_process",
    "web_identity_token_file",
    "login_session",
)


@dataclass(frozen=True)
class RequestPatience:
    """How long one call of an object store may take; a caller that can wait longer retries."""

    connect_s: float = 5.0  #: Until a connection is established.
    request_s: float = 30.0  #: From a request to the last byte of its answer, for up to a piece of an object.
    retry_s: float = 12.0  #: After the first failure no try begins later than this.
    first_pause_s: float = 0.1  #: Before the second try; then twice as long each time, less up to a half by chance.
    longest_pause_s: float = 3.0  #: Between two tries.
    #: Time for which credentials of an AWS profile are used before they are looked up again.
    credentials_s: float = 600.0


#: For callers that serve other runs too: two tries without an answer end before a lease does.
QUICK_PATIENCE = RequestPatience(request_s=10.0, retry_s=2.0)


def connector(
    scheme: str, bucket: str, patience: RequestPatience, environ: Mapping[str, str] = os.environ
) -> Callable[[float, bool], Client]:
    """A factory of clients for one bucket or container. It looks up nothing before the first call.

    Args:
        scheme: ``"s3"``, ``"gs"`` or ``"az"``.
        bucket: Its name.
        patience: For connections, and for retries that the client makes.
        environ: The environment in addition to the part that obstore reads itself.

    Returns:
        A function of the seconds that one request may take, and of whether the client itself tries again.

    Raises:
        MissingExtraError: obstore is not installed.
    """
    try:
        from obstore.store import AzureStore, GCSStore, S3Store
    except ImportError as error:
        raise MissingExtraError(
            f"{scheme}:// locations need obstore; install it with: pip install 'watchglass[object-store]'"
        ) from error

    def connect(request_s: float, tries: bool) -> Client:
        limits = {"connect_timeout": patience.connect_s, "timeout": request_s}
        options: dict[str, Any] = {name: f"{1000 * seconds:.0f}ms" for name, seconds in limits.items()}
        retry: Any = {
            "max_retries": 5 if tries else 0,
            "retry_timeout": timedelta(seconds=patience.retry_s),
            "backoff": {
                "init_backoff": timedelta(seconds=patience.first_pause_s),
                "max_backoff": timedelta(seconds=patience.longest_pause_s),
                "base": 2,
            },
        }
        if scheme == "gs":
            return GCSStore(bucket, client_options=options, retry_config=retry)  # type: ignore[arg-type]
        settings = s3_settings(environ, patience) if scheme == "s3" else azure_settings(environ)
        if _is_plain(settings, environ):
            options["allow_http"] = True
        kind: Any = S3Store if scheme == "s3" else AzureStore
        client: Client = kind(bucket, client_options=options, retry_config=retry, **settings)
        return client

    return connect


def s3_settings(environ: Mapping[str, str], patience: RequestPatience = RequestPatience()) -> dict[str, Any]:
    """Settings of obstore's S3 client in addition to those that it reads from the environment itself.

    The order is that of AWS's own tools: keys in the environment, a web identity, the profile, a container's
    credentials, those of the instance.

    Raises:
        InvalidValueError: ``AWS_PROFILE`` names a profile that there is not, or the endpoint is no URL.
        MissingExtraError: The profile holds no keys, and what finds them is not installed.
        StoreError: There are no credentials, and the instance must not be queried for them.
    """
    profile = _Profile.read(environ)
    settings: dict[str, Any] = {}
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or environ.get("AWS_ENDPOINT")
    endpoint = endpoint or profile.endpoint
    if endpoint:
        if not re.match(r"https?://[^/@\s]+(/|$)", endpoint, re.IGNORECASE):
            raise InvalidValueError(
                "an endpoint must be a whole URL without a login, such as http://minio:9000; check AWS_ENDPOINT_URL, "
                "AWS_ENDPOINT_URL_S3 and endpoint_url of the profile"
            )
        settings["endpoint"] = endpoint.rstrip("/")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile.get("region")
    settings["region"] = region or "us-east-1"  # servers that are not AWS take any
    if bool(environ.get("AWS_ACCESS_KEY_ID")) != bool(environ.get("AWS_SECRET_ACCESS_KEY")):
        raise StoreError("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together, but only one is set; set both")
    known = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE")
    if any(environ.get(name) for name in known) or _is_set(environ, "AWS_SKIP_SIGNATURE"):
        return settings
    if profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        settings["access_key_id"] = profile.get("aws_access_key_id")
        settings["secret_access_key"] = profile.get("aws_secret_access_key")
        if profile.get("aws_session_token"):
            settings["session_token"] = profile.get("aws_session_token")
    elif any(profile.get(key) for key in _INDIRECT):
        settings["credential_provider"] = _from_boto3(profile.name, patience.credentials_s)
    elif _is_set(environ, "AWS_EC2_METADATA_DISABLED") and not any(
        environ.get(f"AWS_CONTAINER_CREDENTIALS_{which}_URI") for which in ("RELATIVE", "FULL")
    ):
        raise StoreError(NO_CREDENTIALS)
    return settings


def azure_settings(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings from ``AZURE_STORAGE_CONNECTION_STRING``; obstore reads the rest itself."""
    text = environ.get("AZURE_STORAGE_CONNECTION_STRING", "")
    if not text:
        return {}
    parts = dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    names = {
        "AccountName": "account_name",
        "AccountKey": "account_key",
        "SharedAccessSignature": "sas_key",
        "BlobEndpoint": "endpoint",
    }
    settings = {name: parts[key] for key, name in names.items() if key in parts}
    if "endpoint" in settings:
        settings["endpoint"] = settings["endpoint"].rstrip("/")
    return settings


def _is_plain(settings: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether the endpoint begins with http://: keys are sent unencrypted only if the user chooses it."""
    endpoint = settings.get("endpoint") or environ.get("AZURE_STORAGE_ENDPOINT") or environ.get("AZURE_ENDPOINT") or ""
    return str(endpoint).lower().startswith("http://") or _is_set(environ, "AZURE_STORAGE_USE_EMULATOR")


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").strip().lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, repr=False)
class _Profile:
    """One profile of ``~/.aws/config`` and ``~/.aws/credentials``, the latter winning."""

    name: str
    values: Mapping[str, str]
    services: Mapping[str, str]

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> _Profile:
        name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE") or "default"
        config = _parsed(environ.get("AWS_CONFIG_FILE") or "~/.aws/config")
        credentials = _parsed(environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
        values: dict[str, str] = {}
        found = False
        for parser, section in ((config, f"profile {name}"), (config, name), (credentials, name)):
            # [name] in the configuration file is the default profile's way to write it, and no other's.
            if parser.has_section(section) and (parser is credentials or section != name or name == "default"):
                values.update(parser.items(section))
                found = True
        if not found and name != "default":
            raise InvalidValueError(
                f"AWS_PROFILE must name a profile of ~/.aws/config or ~/.aws/credentials but got {name[:80]!a}; "
                f"there are: {', '.join(_names(config, credentials)) or 'none'}"
            )
        section = f"services {values.get('services', '')}"
        services = dict(config.items(section)) if config.has_section(section) else {}
        return cls(name, values, services)

    def get(self, key: str) -> str:
        return self.values.get(key, "").strip()

    @property
    def endpoint(self) -> str:
        """Of S3 where the profile has one for it alone, else its general one."""
        for line in self.services.get("s3", "").splitlines():
            key, _, value = line.partition("=")
            if key.strip() == "endpoint_url":
                return value.strip()
        return self.get("endpoint_url")


def _parsed(path: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False, default_section="\0", delimiters=("=",))
    try:
        parser.read(os.path.expanduser(path), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        # The error itself may quote a line, and a line may be a key.
        raise InvalidValueError(
            f"{path} is not a configuration file of AWS ({type(error).__name__}); repair it"
        ) from None
    return parser


def _names(config: configparser.RawConfigParser, credentials: configparser.RawConfigParser) -> list[str]:
    profiles = {section.removeprefix("profile ") for section in config.sections() if section.startswith("profile ")}
    return sorted(profiles | set(credentials.sections()))


def _from_boto3(profile: str, credentials_s: float) -> Callable[[], dict[str, Any]]:
    """A function that asks boto3, which logs in, assumes roles, runs commands and renews credentials."""
    try:
        import boto3
    except ImportError as error:
        raise MissingExtraError(
            f"the AWS profile {profile[:80]!a} holds no keys but names a source of keys, which needs boto3; install it "
            "with: pip install 'watchglass[aws]'"
        ) from error
    session = boto3.Session(profile_name=profile)

    def credentials() -> dict[str, Any]:
        found = session.get_credentials()
        if found is None:
            raise StoreError(NO_CREDENTIALS)
        frozen = found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(timezone.utc) + timedelta(seconds=credentials_s),
        }

    return credentials
