"""Upload a part to object storage: all its objects, then the catalog file that commits it."""

from concurrent.futures import ThreadPoolExecutor

from gaitforge.datasets.errors import DatasetError, disk_failures
from gaitforge.datasets.files import check_inside
from gaitforge.datasets.layout import CATALOG, PARTS
from gaitforge.datasets.storage.s3.bucket import Bucket
from gaitforge.datasets.storage.store import Store

PARALLEL_REQUESTS = 8


def send_objects(bucket: Bucket, source: Store, stem: str) -> None:
    """Upload the objects of one of a local store's part folders, or compare existing ones.

    Raises DatasetError if one exists with other content or cannot be read here.
    """
    prefix = f"{PARTS}/{stem}/"
    there = bucket.list(prefix)

    def send(name: str) -> bool:
        with disk_failures(f"part {stem} of {source.address}: object {name} cannot be read"):
            content = (source.path / PARTS / stem / name).read_bytes()
        key = prefix + name
        return bucket.read(key) == content if key in there else bucket.create_equal(key, content)

    names = sorted(source.files.manifest(stem).objects)
    check_inside(source.path, [source.path / PARTS / stem / name for name in names])
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as threads:
        sent = dict(zip(names, threads.map(send, names), strict=True))
    for name in names:
        if not sent[name]:
            _refuse_commit(bucket, stem, f"object {name} is there with other content")


def commit_part(bucket: Bucket, source: Store, stem: str) -> None:
    """Commit the uploaded objects, unless another writer has; DatasetError if one is absent."""
    there = bucket.list(f"{PARTS}/{stem}/")
    for name in sorted(source.files.manifest(stem).objects):
        if f"{PARTS}/{stem}/{name}" not in there:
            _refuse_commit(bucket, stem, f"object {name} was removed")
    bucket.create(f"{CATALOG}/{stem}.parquet", source.files.path(stem).read_bytes())


def _refuse_commit(bucket: Bucket, stem: str, problem: str) -> None:
    """Raise the problem of a commit, unless the part was committed meanwhile."""
    if bucket.read(f"{CATALOG}/{stem}.parquet") is None:
        raise DatasetError(
            f"part {stem} was not committed to {bucket.url}: {problem}; `gc` removes "
            "uncommitted objects"
        )
