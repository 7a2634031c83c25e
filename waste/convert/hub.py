"""A repository on a Hugging Face hub: what it lists and the bytes of its files. The only importer of huggingface_hub.

Listing, authentication, endpoints, redirects and errors are the library's. Its `hf_hub_download` is not used: it begins
a file anew when it is interrupted, and puts it under its final name before anything but its size was compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from huggingface_hub import HfApi, constants, get_session, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,  # what the HTTP library's own errors begin with, whichever it is
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

import waste
from waste.errors import InputError, ModelError, WasteError
from waste.io.jsonfile import shown
from waste.io.names import is_plain

REQUEST_BYTES = 8 << 30
"""The most that is asked for at once: hubs refuse to send files above 50 GB in one piece."""
LISTING_TIMEOUT_S = 30.0
_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20}|\*)")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_DENIED = (401, 403)
_REFUSED_RANGE = 416
_TRANSIENT = (408, 425, 429)


class DroppedError(WasteError):
    """The connection failed, or the hub is busy: the same request may do better."""


class WrongAnswerError(WasteError):
    """The answer cannot be a part of the file that was listed."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A listed file. digest: SHA-256 of the content where `is_large`, else the SHA-1 of its git blob; hexadecimal."""

    name: str
    size: int
    digest: str
    is_large: bool

    @property
    def hash_name(self) -> str:
        return "SHA-256" if self.is_large else "git SHA-1"

    def new_hash(self) -> Any:
        """What `digest` comes out of once it is fed the whole content."""
        if self.is_large:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.size, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of one commit, by name. Names are untrusted; those that are not plain are left out."""

    commit: str
    files: Mapping[str, HubFile]


class Hub:
    """One revision of a model repository. endpoint, token: as huggingface_hub finds them, unless given."""

    def __init__(
        self,
        repo: str,
        revision: str | None = None,
        *,
        endpoint: str | None = None,
        token: str | bool | None = None,
    ) -> None:
        self.repo = repo
        self.endpoint = endpoint or constants.ENDPOINT
        self._revision = revision
        self._token = token

    def list_files(self) -> Listing:
        """What the repository holds.

        Raises InputError if there is no such repository or it may not be read, WasteError if the hub does not answer.
        """
        with self._translating("its files"):
            try:
                found = HfApi(endpoint=self.endpoint, token=self._token).model_info(
                    self.repo, revision=self._revision, files_metadata=True, timeout=LISTING_TIMEOUT_S
                )
                files = [_listed(each) for each in found.siblings or () if is_plain(each.rfilename)]
            except (HFValidationError, HTTPError):
                raise
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise WasteError(
                    f"{self.endpoint} answers with something that is no list of files; expected a hub, see HF_ENDPOINT"
                ) from error
        if not isinstance(found.sha, str) or not _SHA1.fullmatch(found.sha):
            raise WasteError(f"{self.endpoint} says that {self.repo} is at commit {shown(found.sha)}; expected a SHA-1")
        return Listing(found.sha, {file.name: file for file in files})

    @contextmanager
    def reading(self, commit: str, file: HubFile, begin: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Where the answer really begins, `begin` or 0, and its bytes, which may be fewer than there should be.

        Raises, also while the bytes are read, DroppedError, WrongAnswerError, InputError, ModelError or WasteError.
        """
        end = min(file.size, begin + REQUEST_BYTES)
        headers = build_hf_headers(token=self._token, library_name="waste", library_version=waste.__version__)
        headers["Accept-Encoding"] = "identity"
        if begin or end < file.size:
            headers["Range"] = f"bytes={begin}-{end - 1}"
        url = hf_hub_url(self.repo, file.name, revision=commit, endpoint=self.endpoint)
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            self._translating(file.name),
            get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response,
        ):
            hf_raise_for_status(response)
            yield _begin(response.status_code, response.headers, file, begin), response.iter_bytes()

    @contextmanager
    def _translating(self, what: str) -> Iterator[None]:
        """Turn the library's errors into one line each."""
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise InputError("HF_HUB_OFFLINE is set, so nothing can be fetched; unset it") from error
        except HFValidationError as error:
            raise InputError(f"{shown(self.repo)} is no repository's name; expected one such as owner/name") from error
        except HfHubHTTPError as error:
            raise self._refusal(error, what) from error
        except HTTPError as error:
            reason = " ".join(str(error).split())[:200]
            raise DroppedError(
                f"{self.endpoint}: no answer for {what} of {self.repo} ({type(error).__name__}: {reason}); "
                "see to the connection and give the same command again"
            ) from error

    def _refusal(self, error: HfHubHTTPError, what: str) -> WasteError:
        """What an answer that is an error means."""
        where, status = f"{self.repo} at {self.endpoint}", error.response.status_code
        log_in = "log in with `hf auth login` or set HF_TOKEN"
        if isinstance(error, GatedRepoError):
            return InputError(f"{where} is gated; accept its terms at {self.endpoint}/{self.repo}, then {log_in}")
        if isinstance(error, RepositoryNotFoundError):
            return InputError(f"{where} does not exist, or is private; compare the name, or {log_in}")
        if isinstance(error, RevisionNotFoundError):
            return InputError(f"{where} has no revision {shown(self._revision)}; give another --revision")
        if isinstance(error, DisabledRepoError):
            return InputError(f"{where} is disabled by the hub; fetch another one")
        if isinstance(error, EntryNotFoundError):
            return ModelError(f"{where} lists {what} and does not have it; tell its owners")
        if status in _DENIED:
            return InputError(f"{where}: {what} may not be read (status {status}); {log_in}")
        if status == _REFUSED_RANGE:
            return WrongAnswerError(f"the hub holds fewer bytes of {what} than it lists")
        if status in _TRANSIENT or status >= 500:
            return DroppedError(f"{where}: status {status} for {what}; give the same command again later")
        return WasteError(f"{where}: status {status} for {what}; compare the name and HF_ENDPOINT")


def _listed(sibling: Any) -> HubFile:
    """One file as the hub lists it. Raises ValueError where it does not say what is needed."""
    lfs = sibling.lfs
    size = sibling.size if lfs is None else lfs.size
    digest = sibling.blob_id if lfs is None else lfs.sha256
    pattern = _SHA1 if lfs is None else _SHA256
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(f"{sibling.rfilename} has the size {size!r}")
    if not isinstance(digest, str) or not pattern.fullmatch(digest):
        raise ValueError(f"{sibling.rfilename} has the digest {digest!r}")
    return HubFile(sibling.rfilename, size, digest, lfs is not None)


def _begin(status: int, headers: Mapping[str, str], file: HubFile, asked: int) -> int:
    """Where in the file the answer begins. Raises WrongAnswerError if it cannot be of this file."""
    if status == 206:
        match = _RANGE.fullmatch(headers.get("content-range", "").strip())
        if match is None or int(match[1]) != asked or match[3] not in ("*", str(file.size)):
            found = shown(headers.get("content-range"))
            raise WrongAnswerError(f"the hub sends the range {found}, expected one from {asked} of {file.size}")
        return asked
    if status != 200:
        raise WrongAnswerError(f"the hub answers with status {status}, expected 200 or 206")
    length = headers.get("content-length")
    if "content-encoding" not in headers and length is not None and length != str(file.size):
        raise WrongAnswerError(f"the hub sends {shown(length)} bytes and lists {file.size:,}")
    return 0
