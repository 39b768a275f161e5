"""Settings of a window stream, in a module that does not import torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import Parameter, cleandoc, signature
from numbers import Integral
from typing import Any, TypedDict, TypeVar

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.schema import CLEAN, WORDS, Actions

DEFAULT_POOL_STEPS = 1 << 20
Method = TypeVar("Method", bound=Callable[..., Any])


class StreamSettings(TypedDict, total=False):
    """Keyword arguments of every `windows` method; see `StreamConfig`."""

    fields: Sequence[str]
    seed: int
    epoch: int
    rank: int
    world_size: int
    prefix_len: int
    return_to_go: bool
    last_action: bool
    transitions: bool
    actions: str
    executed_actions: tuple[int, int] | None
    partial_returns: bool
    drop_last: bool
    smallest_batch: int
    pool_steps: int
    workers: int
    prefetch: int
    pin_memory: bool


@dataclass(frozen=True)
class StreamConfig:
    """Settings of a window stream; DatasetError for a value outside its range.

    Attributes:
        window_len: steps of a window; 1 gives single shuffled steps.
        batch_size: windows per batch on each rank.
        fields: step fields to put into the batches.
        seed, epoch: with the selection, `window_len` and `pool_steps` they determine the
            order.
        rank, world_size: ranks take every `world_size`-th window of one global order.
        prefix_len: steps before each window that are read as its history, fewer at an episode's
            start. A batch has K = prefix_len + window_len steps; the order does not depend on it.
        return_to_go: add `return_to_go` (B, K) and `ending` (B,) from the field `reward`.
        last_action: add `last_action` (B, K, *shape), the `action` of the previous step of the
            episode, zeros at the episode's first step.
        transitions: add what follows each step, `next_obs` and `next_action` (B, K, *shape),
            and whether it is its episode's `last`, and `terminal`: the last of an episode that
            terminated, (B, K) bool. Time limits and cut-offs are not terminal. After the last step
            comes the episode's `final_obs` and no action (zeros); where no `final_obs` is
            stored, `mask` is false for the last step of an episode that did not terminate.
        actions: "clean" or "executed": which ones `action`, `next_action` and `last_action` are.
            By default executed ones with `transitions`, whose rewards and next observations are
            theirs, where the schema tells them; else those that the selection has. Executed ones
            are those that the next observation shows; at an episode's last step, where no
            `final_obs` is stored, the stored action. See `Selection.with_actions`.
        executed_actions: (start, stop) within `obs` of the previous step's executed action, to
            read executed actions where the schema does not tell them.
        partial_returns: accept cut-off episodes, with the sum of their stored rewards.
        drop_last: drop windows that do not fill a batch on every rank.
        smallest_batch: an epoch's last batch joins the previous one if all ranks together have
            fewer windows than this or than ranks. Up to this number of ranks, the ranks' batches
            together are those of one rank.
        pool_steps: steps shuffled together; memory is bounded by two pools (of one shard's episodes
            at least) and `prefetch + 3` batches. A materialised selection needs no pools.
        workers: threads that read and decode; 0 does all work in the calling thread with one pool.
            The order does not depend on it.
        prefetch: batches prepared ahead, if there are workers.
        pin_memory: put batches into pinned memory, for asynchronous copies to an accelerator.
    """

    window_len: int = 64
    batch_size: int = 1024
    fields: Sequence[str] = ("obs", "action")
    seed: int = 0
    epoch: int = 0
    rank: int = 0
    world_size: int = 1
    prefix_len: int = 0
    return_to_go: bool = False
    last_action: bool = False
    transitions: bool = False
    actions: str = ""
    executed_actions: tuple[int, int] | None = None
    partial_returns: bool = False
    drop_last: bool = False
    smallest_batch: int = 1
    pool_steps: int = DEFAULT_POOL_STEPS
    workers: int = 2
    prefetch: int = 2
    pin_memory: bool = False

    def __post_init__(self) -> None:
        sizes = ("window_len", "batch_size", "smallest_batch", "pool_steps", "prefetch")
        lowest = dict.fromkeys((*sizes, "world_size"), 1) | {"seed": 0, "epoch": 0}
        lowest |= {"prefix_len": 0, "workers": 0}
        for name, low in lowest.items():
            _check_whole(name, getattr(self, name))
            if getattr(self, name) < low:
                raise DatasetError(f"{name} must be {low} or more, not {getattr(self, name)}")
        if self.actions not in WORDS:
            raise DatasetError(
                f"no actions {self.actions!r}; allowed: {listed(filter(None, WORDS))}"
            )
        if self.executed_actions is not None and self.actions == CLEAN:
            raise DatasetError("give actions=clean or a place of executed_actions, not both")
        _check_whole("rank", self.rank)
        if not 0 <= self.rank < self.world_size:
            raise DatasetError(f"rank must be in 0..{self.world_size - 1}, not {self.rank}")
        object.__setattr__(self, "fields", tuple(self.fields))

    @property
    def chosen_actions(self) -> Actions | None:
        """The choice for `Selection.with_actions`; None to read what the selection has."""
        if self.executed_actions is not None:
            return self.executed_actions
        return self.actions if self.actions or self.transitions else None


def _check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise DatasetError(f"{name} must be a whole number, not {value!r}")


def with_settings(**defaults: object) -> Callable[[Method], Method]:
    """Show a `windows` method's settings by name, as `help` and `inspect.signature` tell them.

    Type checkers and editors know them by `StreamSettings`.

    Args:
        defaults: those of the method that are others than `StreamConfig`'s.
    """

    def decorate(method: Method) -> Method:
        shown = signature(method)
        parameters = [p for p in shown.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        for name, setting in signature(StreamConfig).parameters.items():
            if name not in shown.parameters:
                default = defaults.get(name, setting.default)
                parameters.append(setting.replace(kind=Parameter.KEYWORD_ONLY, default=default))
        vars(method)["__signature__"] = shown.replace(parameters=parameters)
        if method.__doc__ and StreamConfig.__doc__:  # `python -OO` drops docstrings
            settings = cleandoc(StreamConfig.__doc__).partition("Attributes:")[2]
            method.__doc__ = f"{cleandoc(method.__doc__)}\n\nArgs:{settings}"
        return method

    return decorate
