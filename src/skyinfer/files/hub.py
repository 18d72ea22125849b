"""A model from the Hugging Face hub: which files of a repository it is made of, and where the hub's cache has them.

`huggingface_hub` does the transfer, with its own cache, environment variables (HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT,
HF_HOME, ...), resumed downloads and progress bars; it is imported when a model is asked for, not before. Here is what
it cannot know: a model is one GGUF file or the data files of a Laya checkpoint, and nothing else of a repository is
fetched, so neither Python code nor a pickle reaches the machine. Only a caller's own argument comes here, never a name
that a request sent.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .. import __version__
from ..errors import FormatError, HubError, warn
from ..terminal import size
from .json_file import JsonFile

# what huggingface_hub takes for a repository, with an owner; what follows is `split`'s to read
_NAME = re.compile(r"(?P<owner>\w[\w.-]*)/(?P<name>\w[\w.-]*)(?P<rest>[@:].*)?", re.ASCII | re.DOTALL)
_LONGEST_NAME = 96

# A path of this end is a file's: no repository is called so.
_FILE_ENDINGS = (".gguf", ".safetensors", ".json", ".jsonl", ".bin", ".pt", ".pth", ".onnx", ".git", ".py", ".txt")

_CONFIGS = ("rl_agent_config.json", "julia_config.json")
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NEEDED = ("encoder/config.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json")
_CHECKPOINT_FILE = re.compile(
    r"rl_agent_config\.json|julia_config\.json|inference-policy\.json|encoder/config\.json|tokenizer/[^/]+\.(json|txt)"
)

# A transfer that breaks is begun again this often. Versions of the library differ in what they try again by themselves,
# and in whether a new attempt goes on where the last one ended.
_ATTEMPTS = 3

# The library's cache calls a file's bytes by what the hub's ETag says, which is their digest.
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

# A pattern that no file's name matches: the cache is asked for its folder and not for files.
_NO_FILE = "/"

_MOST_NAMED = 12  # files in an error


class Repository(NamedTuple):
    """What OWNER/NAME[@REVISION][:PART] says.

    Attributes:
        id: "owner/name".
        revision: a branch, tag or commit; None for the default branch.
        part: a GGUF file, the number type that its name ends in, or the folder of a checkpoint ("." for the top);
            None where the choice is left.
    """

    id: str
    revision: str | None = None
    part: str | None = None

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{self.id}{revision}" + ("" if self.part is None else f":{self.part}")

    def with_part(self, part: str) -> str:
        return str(self._replace(part=part))


def parse(text: str) -> Repository | None:
    """The repository that `text` names: OWNER/NAME, @REVISION, and after a colon a file or folder, in either order.

    None where it is written as a path is: with a file's ending, or more than one slash in front of "@" and ":".
    """
    found = _NAME.fullmatch(text)
    if found is None or not text.isprintable():
        return None
    repo = f"{found['owner']}/{found['name']}"
    if "--" in repo or ".." in repo or len(repo) > _LONGEST_NAME or repo.endswith((".", "-")):
        return None
    if found["name"].lower().endswith(_FILE_ENDINGS):
        return None
    rest = found["rest"] or ""
    revision: str | None = None
    part: str | None = None
    if rest.startswith(":"):
        # where a file's name holds an "@", the revision is written first
        part, at, revision = rest[1:].rpartition("@")
        if not at:
            part, revision = revision, None
    elif rest:
        revision, colon, part = rest[1:].partition(":")
        part = part if colon else None
    if revision == "" or part == "":
        return None
    return Repository(repo, revision, None if part is None else part.rstrip("/") or ".")


def fetch(repository: Repository, *, checkpoint: bool = False, fresh: bool = False) -> Path:
    """The model's GGUF file or checkpoint directory in the hub's cache, downloaded where it is not there yet.

    A repository with one GGUF file stands for that file, else for its Laya checkpoint; where there are several, one has
    to be named. Where the hub cannot be asked, what an earlier call left in the cache is used, with a RuntimeWarning
    unless HF_HUB_OFFLINE asks for it.

    Args:
        repository: what is wanted.
        checkpoint: a checkpoint is wanted, whatever GGUF files there are.
        fresh: the hub's word is wanted: an answer from the cache alone will not do, unless HF_HUB_OFFLINE is set; and
            files that were there before are compared with their digests, too.

    Raises:
        HubError: the model cannot be had; says what was looked for and what to do.
    """
    from huggingface_hub import constants
    from huggingface_hub.errors import RevisionNotFoundError

    with _faults_told(repository):
        try:
            listed = _listing(repository)
        except Exception as error:
            path = None if fresh and not constants.HF_HUB_OFFLINE else _cached(repository, checkpoint)
            if path is None or isinstance(error, RevisionNotFoundError):
                raise
            if not constants.HF_HUB_OFFLINE:
                message = f"{repository}: the hub did not answer ({_cause(error)}); the copy in the cache is used"
                warn(message)
            return path
        chosen = _chosen(repository, listed, checkpoint)
        with _progress():
            folder = _download(repository, {name: listed[name] for name in chosen.files}, fresh)
            if chosen.listing is not None:
                shards = _shards(repository, folder / chosen.listing, chosen.folder, listed)
                folder = _download(repository, {name: listed[name] for name in (*chosen.files, *shards)}, fresh)
        return folder / chosen.path


def name_of(repository: Repository) -> str:
    """What a checkpoint of the repository is called, whose folder in the cache is named after a commit."""
    name = repository.id.partition("/")[2]
    part = repository.part or "."
    return name if part == "." else f"{name}-{part.replace('/', '-')}"


# ---------------------------------------------------------------------------------------- what to fetch


class _Chosen(NamedTuple):
    """`path` of the model inside the repository; `files` to fetch; `listing`, a safetensors index, names more of them,
    which lie in `folder`."""

    path: str
    files: list[str]
    folder: str = ""
    listing: str | None = None


def _chosen(repository: Repository, listed: Iterable[str], checkpoint: bool) -> _Chosen:
    """The files that the model is made of."""
    names = {name for name in listed if _is_safe(name)}
    ggufs = sorted(name for name in names if name.lower().endswith(".gguf"))
    folders = sorted({name.rpartition("/")[0] or "." for name in names if name.rpartition("/")[2] in _CONFIGS})
    part = repository.part
    if part in ggufs and part is not None:
        if checkpoint:
            raise HubError(f"{repository}: a GGUF file, where a Laya checkpoint is wanted; {_there(folders, [])}")
        return _Chosen(part, [part])
    if part in folders and part is not None:
        return _checkpoint(repository, part, names)
    if part is not None:
        of_type = re.compile(rf".*[-._]{re.escape(part)}\.gguf", re.IGNORECASE)
        inside = [name for name in ggufs if name.startswith(f"{part}/") or of_type.fullmatch(name)]
        if checkpoint or not inside:
            raise HubError(f"{repository}: the repository has no such model; {_there(folders, ggufs)}")
        ggufs = inside
    if len(ggufs) == 1 and not checkpoint:
        return _Chosen(ggufs[0], [ggufs[0]])
    if len(ggufs) > 1 and not checkpoint:
        example = repository.with_part(ggufs[0])
        raise HubError(
            f"{repository}: the repository has {len(ggufs)} GGUF files; name one, as in {example}; "
            f"{_there(folders, ggufs)}"
        )
    if "." in folders or len(folders) == 1:
        return _checkpoint(repository, "." if "." in folders else folders[0], names)
    if folders:
        example = repository.with_part(folders[0])
        raise HubError(f"{repository}: {_there(folders, [])}; name one, as in {example}")
    wanted = "no Laya checkpoint" if checkpoint else "neither a GGUF file nor a Laya checkpoint"
    raise HubError(f"{repository}: the repository holds {wanted} (no {' or '.join(_CONFIGS)}); check the name")


def _is_safe(name: str) -> bool:
    """Whether a file's name stays inside the repository and can be shown; the hub's word is not taken for it."""
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & set(name.split("/"))


def _there(folders: list[str], ggufs: list[str]) -> str:
    """What could be named."""
    parts = []
    for found, what in ((ggufs, "GGUF files"), (folders, 'checkpoints in the folders (":." is the top)')):
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        if found:
            parts.append(f"{what} {', '.join(found[:_MOST_NAMED])}{more}")
    return f"it has {'; '.join(parts)}" if parts else "it has neither GGUF files nor a Laya checkpoint"


def _checkpoint(repository: Repository, folder: str, names: set[str]) -> _Chosen:
    prefix = "" if folder == "." else f"{folder}/"
    inside = {name[len(prefix) :] for name in names if name.startswith(prefix)}
    files = sorted(name for name in inside if _CHECKPOINT_FILE.fullmatch(name))
    missing = [name for name in _NEEDED if name not in inside]
    weights = next((name for name in (_WEIGHTS, _INDEX) if name in inside), None)
    if missing or weights is None:
        what = ", ".join(missing) if missing else f"{_WEIGHTS} (weights of other formats are not read)"
        raise HubError(f"{repository}: the Laya checkpoint in it is not whole: there is no {prefix}{what}")
    return _Chosen(
        folder, [prefix + name for name in (*files, weights)], prefix, prefix + _INDEX if weights == _INDEX else None
    )


def _shards(repository: Repository, index: Path, prefix: str, listed: Iterable[str]) -> list[str]:
    """Files that a safetensors index names. What lies elsewhere is left to the checkpoint's own checks."""
    places = JsonFile.read(index).get("weight_map")
    files = sorted({place for place in places.values() if isinstance(place, str)} if isinstance(places, dict) else ())
    shards = [prefix + name for name in files if "/" not in name and name.endswith(".safetensors")]
    missing = [name for name in shards if name not in set(listed)]
    if missing:
        raise HubError(f"{repository}: the Laya checkpoint in it is not whole: there is no {missing[0]}")
    return shards


# --------------------------------------------------------------------------------------- asking the hub


def _listing(repository: Repository) -> dict[str, int | None]:
    """Name -> bytes (None where the hub does not say) of every file in the repository."""
    from huggingface_hub import HfApi, constants

    info = HfApi(library_name="skyinfer", library_version=__version__).model_info(
        repository.id, revision=repository.revision, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
    )
    return {file.rfilename: file.size for file in info.siblings or ()}


def _download(repository: Repository, files: Mapping[str, int | None], check_all: bool) -> Path:
    """The repository's folder in the cache, with `files` in it. What is new, or all, is compared with its digest."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    cache = Path(constants.HF_HUB_CACHE)
    folder = _snapshot(repository, [_NO_FILE], local_files_only=True)
    missing = [name for name in files if folder is None or not (folder / name).exists()]
    _check_room(repository, cache, sum(files[name] or 0 for name in missing))
    to_check = list(files) if check_all else missing
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            folder = _snapshot(repository, [glob.escape(name) for name in files])
            break
        except _network_errors() as error:
            if isinstance(error, HfHubHTTPError):
                raise
            if attempt == _ATTEMPTS:
                message = f"the download broke off ({_cause(error)}); try again, finished files are kept"
                raise HubError(f"{repository}: {message}") from error
    missing = [name for name in files if folder is None or not (folder / name).is_file()]
    if missing or folder is None:
        raise HubError(f"{repository}: {missing[0]} was not downloaded; try again, finished files are kept")
    _check_digests(repository, folder, to_check)
    return folder


def _check_digests(repository: Repository, folder: Path, names: Iterable[str]) -> None:
    """Compare files with the digests that they are stored under, which the library does not. What differs is removed.

    Raises:
        HubError: one does not have the bytes that the hub has.
    """
    damaged = []
    for name in names:
        stored = (folder / name).resolve()
        # without links, as on some Windows machines, a file has its own name and no digest
        if _DIGEST.fullmatch(stored.name) and _digest_of(stored) != stored.name:
            damaged.append(name)
            for path in (folder / name, stored):
                path.unlink(missing_ok=True)
    if damaged:
        raise HubError(
            f"{repository}: {damaged[0]} came damaged, or was damaged in the cache: its bytes are not those that the "
            f"hub names; it was removed, try again"
        )


def _digest_of(path: Path) -> str:
    """What the hub calls the bytes of a file: SHA-256 of a large one (64 digits), else what Git calls them (40)."""
    digest = hashlib.sha256() if len(path.name) == 64 else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _snapshot(repository: Repository, patterns: list[str], local_files_only: bool = False) -> Path | None:
    """The repository's folder in the cache; None where it is not there and nothing may be downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository.id,
                revision=repository.revision,
                allow_patterns=patterns,
                local_files_only=local_files_only,
                library_name="skyinfer",
                library_version=__version__,
            )
        )
    except LocalEntryNotFoundError:
        if local_files_only:
            return None
        raise


def _cached(repository: Repository, checkpoint: bool) -> Path | None:
    """The model as an earlier call left it in the cache, if it is whole."""
    folder = _snapshot(repository, [_NO_FILE], local_files_only=True)
    if folder is None:
        return None
    # a file of the cache is a link to its bytes
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    try:
        chosen = _chosen(repository, names, checkpoint)
        if chosen.listing is not None:
            _shards(repository, folder / chosen.listing, chosen.folder, names)
    except (HubError, FormatError):
        return None
    return folder / chosen.path


def _check_room(repository: Repository, cache: Path, wanted: int) -> None:
    """Refuse to begin what the disk has no room for."""
    standing = next((path for path in (cache, *cache.parents) if path.exists()), None)
    free = shutil.disk_usage(standing).free if standing else wanted
    if free < wanted:
        raise HubError(
            f"{repository}: {size(wanted)} are to be downloaded and {cache} has room for {size(free)}; free some, or "
            f"set HF_HUB_CACHE to a directory on another disk"
        )


@contextmanager
def _progress() -> Iterator[None]:
    """The library's progress bars on a terminal and in a notebook only, unless HF_HUB_DISABLE_PROGRESS_BARS decides."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    seen = (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules
    if seen or "HF_HUB_DISABLE_PROGRESS_BARS" in os.environ or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


# -------------------------------------------------------------------------------------------- what fails


def _network_errors() -> tuple[type[BaseException], ...]:
    """The base class of what the library's HTTP client raises: it has had three clients, and none is our dependency."""
    from huggingface_hub.errors import HfHubHTTPError

    clients = ("requests", "httpx", "httpx2")
    return tuple(cls for cls in HfHubHTTPError.__mro__ if cls.__module__.partition(".")[0] in clients)


def _cause(error: BaseException) -> str:
    """The first line of what the library says; but not where it quotes the header that holds the token."""
    if "bearer" in str(error).lower():
        return "HF_TOKEN holds what no HTTP header can"
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


@contextmanager
def _faults_told(repository: Repository) -> Iterator[None]:
    """Every error of the library as a HubError that says what was looked for and what to do."""
    from huggingface_hub import constants, errors

    page = f"{constants.ENDPOINT}/{repository.id}"
    try:
        yield
    except (HubError, FormatError):
        raise
    except errors.GatedRepoError as error:
        raise HubError(
            f"{repository}: the repository is gated; accept its conditions at {page}, then set HF_TOKEN to a token of "
            f"that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(f"{repository}: {_unknown(page)}") from error
    except errors.RevisionNotFoundError as error:
        raise HubError(
            f"{repository}: the repository has no branch, tag or commit {repository.revision!r}; {page}/tree/main "
            f"lists them"
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise HubError(
            f"{repository}: not (or not whole) in the cache {constants.HF_HUB_CACHE}, and HF_HUB_OFFLINE forbids to "
            f"ask the hub; unset it once, or copy the cache of another machine"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise HubError(
            f"{repository}: not (or not whole) in the cache, and {page} cannot be reached ({_cause(error)})"
        ) from error
    except errors.HfHubHTTPError as error:
        raise HubError(f"{repository}: {_of_status(error, page)}") from error
    except _network_errors() as error:
        raise HubError(
            f"{repository}: there is no such file here, and {constants.ENDPOINT} cannot be reached ({_cause(error)}); "
            f"check the network, HF_ENDPOINT and proxies, or name a file"
        ) from error
    except OSError as error:
        raise HubError(f"{repository}: {_of_disk(error, constants.HF_HUB_CACHE)}") from error
    except ValueError as error:
        # a name that the library refuses, or a token that no header can carry
        raise HubError(f"{repository}: cannot be asked for ({_cause(error)}); check the name and HF_TOKEN") from error


def _unknown(page: str) -> str:
    return (
        f"there is no such file here and no such repository at {page}; check the spelling, or set HF_TOKEN where it is "
        f"private"
    )


def _of_status(error: Any, page: str) -> str:
    from huggingface_hub import get_token

    status = getattr(error.response, "status_code", None)
    if status == 401 and get_token() is None:  # of a hub at another address
        return _unknown(page)
    if status == 401:
        return "the hub refuses the token; check HF_TOKEN, or unset it where the repository is public"
    if status == 403:
        return f"the hub forbids it to this token; ask for access at {page}, or use another HF_TOKEN"
    if status == 429:
        return "the hub has had too many requests from here; wait some minutes, or set HF_TOKEN"
    return f"the hub answered {status} for {page} ({_cause(error)}); try again later"


def _of_disk(error: OSError, cache: str) -> str:
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None)):
        return f"the disk of {cache} is full; free some room, or set HF_HUB_CACHE to a directory on another disk"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the cache {cache} cannot be written ({error.strerror}); set HF_HUB_CACHE to a directory that can"
    return f"the download failed ({error.strerror or _cause(error)}); try again, finished files are kept"
