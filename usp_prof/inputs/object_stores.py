"""Object stores: the fsspec file system of a URL, with retries and credentials, and explanations of its errors.

`s3://`, `gs://`, `az://` and `http(s)://` use obstore. Its client retries temporary errors (429, 5xx, lost
connections). Credentials come from the usual sources: the environment, workload identity, the machine's role, and AWS
profiles if boto3 is installed. Other schemes use the file systems that fsspec has for them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from usp_prof.model.errors import InputError, UsageError

T = TypeVar("T")

S3, GOOGLE, AZURE, HTTP = ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss", "adl", "azure"), ("http", "https")
_OBSTORE = (*S3, *GOOGLE, *AZURE, *HTTP)
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):/(?P<second>/?)")
_RETRIES = 6
"""With pauses that double from 0.1 s, these take about 10 s, longer than throttling or a server restart."""


_WRONG_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "401 Unauthorized")
_DENIED = ("403 Forbidden", "AccessDenied")
_RENEWING = Lock()
"""If requests of several threads are denied, only one thread renews the credentials."""


class AbsentError(InputError):
    """There is no file or folder at this URL."""


class NoRangesError(InputError):
    """The server does not support range requests: the file must be downloaded completely."""


class ExpiredError(InputError):
    """The credentials are wrong or have expired: no other file can be read with them either."""


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What a client's error means. It is recognized by words in its text, or by its class."""

    signs: tuple[str, ...]
    problem: str
    hint: str = ""
    """What to do about it; empty: set up credentials."""
    client_error: type[Exception] | None = None
    raised: type[InputError] = InputError
    """Another class than InputError if callers handle this error separately."""


_MEANINGS = (
    # The client requests the machine's own role last; if that fails, no credentials were found anywhere.
    _Meaning(
        ("169.254.169.254", "metadata.google", "fd00:ec2", "NoCredentials", "MissingCredentials"),
        "no credentials were found",
    ),
    _Meaning(
        ("NoSuchBucket", "ContainerNotFound", "bucket does not exist"),
        "there is no such bucket",
        "check its name, region and endpoint",
    ),
    # After a 404 of the file, the client requests a folder of the same name (PROPFIND).
    _Meaning(
        ("404 Not Found", "PROPFIND"),
        "there is no such file or folder",
        "check the URL",
        client_error=FileNotFoundError,
        raised=AbsentError,
    ),
    _Meaning(
        ("Range request not supported", "non-partial response when range requested"),
        "the server does not support range requests",
        "download it first",
        raised=NoRangesError,
    ),
    _Meaning(("Account must be specified",), "no storage account was named"),
    _Meaning(_WRONG_CREDENTIALS, "the credentials are wrong or have expired", raised=ExpiredError),
    _Meaning(_DENIED, "the server denies this to these credentials (403)", client_error=PermissionError),
    _Meaning(
        ("SlowDown", "429 Too Many", "503 Service"),
        f"the server is too busy, still after {_RETRIES} retries",
        "try again later, or with fewer concurrent readers; ranks already read stay cached",
    ),
    _Meaning(
        ("error sending request",),
        f"no server answers, still after {_RETRIES} retries",
        "check the host, the endpoint (AWS_ENDPOINT_URL) and the network",
    ),
)
"""In the order in which they are tried."""

_SETUP = {
    S3: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE (needs boto3), or AWS_SKIP_SIGNATURE=true",
    GOOGLE: "gcloud auth application-default login, or GOOGLE_APPLICATION_CREDENTIALS=key.json",
    AZURE: "set AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY or a SAS token",
    HTTP: "such servers are read without credentials",
}


def scheme_of(path: object) -> str:
    """Return the scheme of a URL (`s3`), or "" for a local path."""
    match = _URL.match(str(path))
    if match is None:
        return ""
    scheme = match["scheme"].lower()
    # `Path("s3://bucket")` has lost a slash. With any other scheme this is a local folder of that name.
    return scheme if match["second"] or scheme in (*_OBSTORE, "file") else ""


@cache
def filesystem_of(scheme: str) -> Any:  # noqa: ANN401 - an fsspec file system
    """Return the file system of a scheme; there is one per process."""
    try:
        import fsspec  # noqa: PLC0415 - needs the extra `cloud`

        if scheme not in _OBSTORE:
            return fsspec.filesystem(scheme)
        from usp_prof.inputs.blocking_store import BlockingStore  # noqa: PLC0415 - needs the extra `cloud`
    except ImportError as error:
        hint = "pip install 'usp-prof[cloud]'"
        raise UsageError(f"{scheme}:// cannot be read here: {error}", hint=hint) from None
    except ValueError:
        schemes = "s3://, gs://, az://, http(s)://, file://"
        raise UsageError(f"{scheme}:// cannot be read", hint=f"choose from {schemes}") from None
    except TypeError:  # such as ftp, which needs a host to connect to
        hint = "mount it, or copy the traces to a folder or an object store"
        raise UsageError(f"{scheme}:// cannot be read: its credentials or settings are missing", hint=hint) from None
    pauses = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2}
    retries = {"max_retries": _RETRIES, "backoff": pauses, "retry_timeout": timedelta(seconds=120)}
    return BlockingStore(scheme, client_options=_client_options(scheme), retry_config=retries, **_credentials(scheme))


def _client_options(scheme: str) -> dict[str, Any]:
    """Allow an unencrypted endpoint if one is configured, for example MinIO inside a cluster."""
    endpoints = (os.environ.get(name, "") for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"))
    unencrypted = scheme == "http" or (scheme in S3 and any(name.startswith("http://") for name in endpoints))
    return {"allow_http": True} if unencrypted else {}


def _credentials(scheme: str) -> dict[str, Any]:
    """Use AWS profiles and single sign-on through boto3, if it is installed and the environment has no key."""
    if scheme not in S3 or "AWS_ACCESS_KEY_ID" in os.environ or "AWS_SKIP_SIGNATURE" in os.environ:
        return {}
    try:
        import boto3  # noqa: PLC0415 - optional, installed by the user
        from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415
    except ImportError:
        return {}
    session = boto3.Session()
    return {"credential_provider": Boto3CredentialProvider(session)} if session.get_credentials() else {}


def ask(url: str, question: Callable[[Any], T]) -> T:
    """Query the file system of a URL; convert its client's exceptions to an InputError that says what to do.

    If the server rejects the credentials, look them up once more: a token may have been renewed in the meantime.
    """
    scheme = scheme_of(url)
    filesystem = filesystem_of(scheme)
    try:
        return question(filesystem)
    except (InputError, UsageError):
        raise
    except Exception as error:  # noqa: BLE001 - each client has its own exceptions
        signs = (*_WRONG_CREDENTIALS, *_DENIED)
        is_refused = isinstance(error, PermissionError) or any(sign in str(error) for sign in signs)
        if scheme in HTTP or not is_refused:
            raise explained(url, error) from None
    try:
        return question(_renewed(scheme, filesystem))
    except Exception as error:  # noqa: BLE001
        raise explained(url, error) from None


def _renewed(scheme: str, refused: Any) -> Any:  # noqa: ANN401 - an fsspec file system
    """Return a file system with credentials that were looked up after those of the rejected one."""
    with _RENEWING:
        if filesystem_of(scheme) is refused:  # otherwise another thread has renewed them
            filesystem_of.cache_clear()
        return filesystem_of(scheme)


def explained(url: str, error: Exception) -> InputError:
    """Return an error that explains what went wrong with a URL and what to do about it."""
    text = " ".join(str(error).split())
    setup = next(
        (setup for schemes, setup in _SETUP.items() if scheme_of(url) in schemes), "see the store's own manual"
    )
    for meaning in _MEANINGS:
        is_of_class = meaning.client_error is not None and isinstance(error, meaning.client_error)
        if is_of_class or any(sign in text for sign in meaning.signs):
            return meaning.raised(f"{url}: {meaning.problem}", hint=meaning.hint or setup)
    reason = text.partition(" Debug source:")[0][:300]  # without the client's dump of its own state
    return InputError(f"{url} cannot be read: {reason}", hint="check the endpoint and the network")
