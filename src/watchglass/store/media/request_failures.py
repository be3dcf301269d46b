"""Failures of an object store's client, each as one line with its reason and cure, without secrets.

Messages of the client hold addresses (those of Azure may carry a signature), identifiers of requests and whatever the
server sent. Nothing of them is passed on but the status, the code of the error and a few known words.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>")
_METADATA = re.compile(
    r"169\.254\.|fd00:ec2|metadata\.google|/metadata/identity|instance credentials|token request"
    r"|ccount must be specified"
)
_PROVIDER = re.compile(r"credential provider: (\w{1,64})")
_OUT_OF_RANGE = re.compile(r"Invalid range|Wanted range|InvalidRange")


class FailureKind(Enum):
    """The kinds of failure that callers distinguish."""

    MISSING = "missing"
    EXISTS = "exists"
    CHANGED = "changed"
    OUT_OF_RANGE = "out of range"
    PASSING = "passing"
    REFUSED = "refused"


class RequestFailure(NamedTuple):
    """One failed request."""

    kind: FailureKind  #: Only a ``PASSING`` one is worth another attempt.
    cure: str  #: What happened and what to do about it: the second half of a sentence.


_UNREACHABLE = "check the network, the endpoint and whether the server runs"
#: By the code in the answer's body: S3's, which Google Cloud Storage shares, and Azure's.
_CURES = {
    "NoSuchBucket": "there is no such bucket; create it or check its name and the endpoint",
    "ContainerNotFound": "there is no such container; create it or check its name and the account",
    "InvalidBucketName": "the bucket's name is not allowed; check it",
    "AccessDenied": "permission denied; docs/object-stores.md lists the permissions that are needed",
    "AuthorizationFailure": "permission denied; docs/object-stores.md lists the permissions that are needed",
    "AuthorizationPermissionMismatch": "permission denied; docs/object-stores.md lists the permissions that are needed",
    "InvalidAccessKeyId": "the access key is unknown there; check the credentials and the endpoint",
    "SignatureDoesNotMatch": "the secret key is wrong; check the credentials",
    "AuthenticationFailed": "the credentials are wrong or have expired; renew them",
    "ExpiredToken": "the credentials have expired; renew them",
    "InvalidToken": "the session token is wrong or belongs to another service; check the credentials",
    "RequestTimeTooSkewed": "the clock of this machine is wrong; set it",
    "PermanentRedirect": "the bucket is in another region; set AWS_REGION to it",
    "AuthorizationHeaderMalformed": "the bucket is in another region; set AWS_REGION to it",
    "IllegalLocationConstraintException": "the bucket is in another region; set AWS_REGION to it",
    "EntityTooLarge": "the object is larger than the server takes; raise its limit or record less",
    "QuotaExceeded": "the quota is used up; free space or choose another bucket",
    "NotImplemented": "the server lacks a required operation; docs/object-stores.md lists those that are required",
    "ServerSideEncryptionConfigurationNotFoundError": "the bucket's encryption is not set up; set it up",
}
_BY_STATUS = {
    401: "the credentials are not accepted; check them",
    403: "permission denied; docs/object-stores.md lists the permissions that are needed, and check the credentials",
    405: _CURES["NotImplemented"],
    413: _CURES["EntityTooLarge"],
    501: _CURES["NotImplemented"],
    507: "the server is full; free space or choose another bucket",
}
_REFUSED, _PASSING = FailureKind.REFUSED, FailureKind.PASSING
#: By words in the client's message, the first that occur: where there was no answer.
_NO_ANSWER = {
    "redirect": (_REFUSED, _CURES["PermanentRedirect"]),
    "InvalidPathError|parse path": (
        _REFUSED,
        "an object there has a name that no run has, with '..', an empty part or a control character; remove it or "
        "choose another prefix",
    ),
    "dns error": (_PASSING, f"the server's name is unknown; {_UNREACHABLE}"),
    "ConnectionRefused": (_PASSING, f"the server refuses connections; {_UNREACHABLE}"),
    "Timeout|TimedOut|timed out": (_PASSING, f"the server did not answer in time; {_UNREACHABLE}"),
    "certificate": (_REFUSED, "the server's certificate is not trusted; check the endpoint"),
    "URL scheme is not allowed|BadScheme": (
        _REFUSED, "the endpoint must begin with https:// or http://; check AWS_ENDPOINT_URL",
    ),
    "HTTP error|error sending request|error decoding response body": (
        _PASSING, f"the connection broke; {_UNREACHABLE}",
    ),
}  # fmt: skip
NO_CREDENTIALS = (
    "found no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or "
    "GOOGLE_APPLICATION_CREDENTIALS, or AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
)


def understood(error: Exception) -> RequestFailure:
    """The failure that an exception of the client reports.

    The kinds are taken from the exception's type, status and code; where a later version of the client words its
    messages differently, a failure is still one, only with a less helpful cure.
    """
    text = str(error)
    name = type(error).__name__
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    found = _CODE.search(text)
    code = found[1] if found else ""
    if code in ("NoSuchBucket", "ContainerNotFound"):
        return RequestFailure(_REFUSED, _CURES[code])
    if _METADATA.search(text):
        return RequestFailure(_REFUSED, NO_CREDENTIALS)
    if code in ("ConditionalRequestConflict", "OperationAborted"):
        return RequestFailure(_PASSING, "another process is writing it; try again")
    if isinstance(error, FileNotFoundError) or status == 404:
        return RequestFailure(FailureKind.MISSING, "it does not exist")
    if name == "PreconditionError" or status == 412:
        kind = FailureKind.EXISTS if name == "AlreadyExistsError" else FailureKind.CHANGED
        return RequestFailure(kind, "another process changed it")
    if name == "AlreadyExistsError":
        return RequestFailure(FailureKind.EXISTS, "it exists")
    if status == 416 or _OUT_OF_RANGE.search(text):
        return RequestFailure(FailureKind.OUT_OF_RANGE, "the range begins after its end")
    return _of_status(status, code) or _of_no_answer(text, name)


def _of_status(status: int, code: str) -> RequestFailure | None:
    if not status:
        return None
    said = f" ({code})" if code else ""
    if status in (408, 425, 429) or (status >= 500 and status not in _BY_STATUS):
        return RequestFailure(_PASSING, f"the server answers with {status}{said}; it is overloaded or in trouble")
    cure = _CURES.get(code) or _BY_STATUS.get(status) or "check the location and the endpoint"
    return RequestFailure(_REFUSED, f"{cure} (status {status}{said.replace('(', '').replace(')', '')})")


def _of_no_answer(text: str, name: str) -> RequestFailure:
    provider = _PROVIDER.search(text)
    if provider:
        kind = _PASSING if re.search("Connect|Timeout", provider[1]) else _REFUSED
        cure = f"the AWS profile gives no credentials ({provider[1]}); log in again or repair the profile"
        return RequestFailure(kind, cure)
    for words, failure in _NO_ANSWER.items():
        if re.search(words, f"{name}: {text}"):
            return RequestFailure(*failure)
    return RequestFailure(_REFUSED, f"the client failed ({name}); check the location, the endpoint and the credentials")
