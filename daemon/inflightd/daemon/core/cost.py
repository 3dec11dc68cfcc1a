"""The loop's expectation of how long steps take, learned from the steps it has seen."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import Final

from inflightd.daemon.core.least_squares import normal_sums, solve_non_negative

_KNEE_TOKENS: Final = 192  # from about here on a GPU's step is bound by arithmetic, below by reading the weights
_GROWTH: Final = 65 / 64  # weight of a step to that of the one before of its kind: a kind remembers its last hundred
_WRONG_KEPT: Final = 0.6  # of all the past at each solution while the model is wrong: the machine has changed
_SOLVE_STEPS: Final = 32  # steps from one solution to the next; fewer in the beginning
_RECENT: Final = 32  # steps that a recent mean is about
_OUTLIER: Final = 3.0  # times the usual error: beyond this a step counts for less (Huber)
_LEAST_OUTLIER: Final = 0.02  # of the expected time: a smaller error is none
_SURE_STEPS: Final = 32  # with prompt tokens, and as many with decoding sequences
_SURE_ERROR: Final = 0.15  # becomes sure at or below,
_UNSURE_ERROR: Final = 0.25  # and unsure above
_SWAPS_TRUSTED: Final = 4  # from so many swaps on, one is taken for at most 4 times as slow as usual

# The prior is a small model on a few CPU cores.  In the order of the features of a step.
_PRIOR: Final = (8e6, 200e3, 500e3, 1e3, 0.0, 0.0)


class LearnedCost:
    """t = fixed + prefill tokens + decoding sequences + context tokens + attended pairs + tokens beyond the knee, each
    times its own nanoseconds; none is negative, so that more of anything is never expected to be faster.

    Steps are linear in the first four.  The attention of prompt chunks goes with the pairs of a chunk's tokens and the
    tokens before them: on a CPU half of a chunk's time at a context of 1000.  The knee is a GPU's: without it a line
    through 1 to 4096 tokens is wrong by up to 20 % in between, with it by 10 % (Vidur's kernel tables).

    Learned by weighted least squares.  Errors count relative to what was expected, so that short steps matter as much
    as long ones; larger ones than usual count less (Huber 1964), so that a machine's hiccups do not.  The past fades
    per kind of step (with few, some, many prompt tokens or streams): hours of plain decodes do not wash out what
    long prompts have taught.  Each solution is drawn to the one before (Levenberg-Marquardt's damping; the first one
    to a prior): what the steps do not tell apart, as when a batch never changes, stays as it was.  A fixed sequence of
    steps gives fixed numbers.

    Implements `inflightd.schedulers.api.CostModel`.  `observe` is called by the loop after each step: a few
    microseconds.
    """

    __slots__ = (
        "_counts",
        "_gains",
        "_ns",
        "_prompt_error",
        "_spread",
        "_sums",
        "error",
        "steps",
        "sure",
        "swap_block_ns",
    )

    def __init__(self) -> None:
        self.sure = False  # decisions may be built on it
        self.error = 0.0  # recent mean of |measured - expected| / measured, each at most 1
        self.steps = 0  # learned from
        self.swap_block_ns = 1e6
        self._ns = list(_PRIOR)
        self._spread = 1.0  # recent mean of |measured - expected| / expected, outliers cut
        self._prompt_error = 0.0  # `error` of steps with prompt tokens only
        self._counts = [0, 0, 0]  # steps with prompt tokens, steps with decoding sequences, swaps
        self._sums: dict[int, list[float]] = {}  # kind of step -> normal sums
        self._gains: dict[int, float] = {}  # kinds seen since the last solution -> what their last step counts

    @property
    def coefficients_ns(self) -> dict[str, float]:
        """Nanoseconds of each feature of a step, by name."""
        names = ("fixed", "prefill_token", "decode", "context_token", "attended_pair", "token_beyond_knee")
        return dict(zip(names, self._ns, strict=True))

    # --- expectations -----------------------------------------------------------------------------------------------

    def step_ns(self, prefill_tokens: int, decode_sequences: int, context_tokens: int, attended_pairs: int = 0) -> int:
        """See `CostModel`."""
        fixed, prefill, decode, context, pair, beyond = self._ns
        tokens_beyond = prefill_tokens + decode_sequences - _KNEE_TOKENS
        return int(
            fixed
            + prefill * prefill_tokens
            + decode * decode_sequences
            + context * context_tokens
            + pair * attended_pairs
            + (beyond * tokens_beyond if tokens_beyond > 0 else 0.0)
        )

    def prefill_ns(self, tokens: int) -> int:
        """See `CostModel`: the tokens of a whole prompt, in full steps."""
        return int((self._ns[1] + self._ns[5] + self._ns[4] * tokens / 2) * tokens)

    def swap_ns(self, blocks: int) -> int:
        """See `CostModel`."""
        return int(self.swap_block_ns * blocks)

    # --- learning ---------------------------------------------------------------------------------------------------

    def observe(
        self,
        prefill_tokens: int,
        decode_sequences: int,
        context_tokens: int,
        duration_ns: int,
        expected_ns: int,
        attended_pairs: int = 0,
    ) -> None:
        """A step has taken `duration_ns`, block moves left out, and `expected_ns` was said of it before."""
        if duration_ns <= 0 or prefill_tokens + decode_sequences <= 0:
            return
        self.steps += 1
        self._judge(prefill_tokens > 0, decode_sequences > 0, min(1.0, abs(duration_ns - expected_ns) / duration_ns))
        expected_ns = max(1, expected_ns)
        error = abs(duration_ns - expected_ns) / expected_ns
        outlier = max(_LEAST_OUTLIER, _OUTLIER * self._spread)
        self._spread += (min(error, 2 * outlier) - self._spread) / _RECENT
        weight = (1.0 if error <= outlier else outlier / error) / expected_ns / expected_ns
        tokens_beyond = max(0, prefill_tokens + decode_sequences - _KNEE_TOKENS)
        # Both counts in groups: none, 1 to 7, 8 to 63, 64 to 511 and so on.
        kind = (prefill_tokens.bit_length() + 2) // 3 * 16 + (decode_sequences.bit_length() + 2) // 3
        gain = self._gains.get(kind, 1.0) * _GROWTH
        self._gains[kind] = gain
        step = normal_sums(
            weight * gain, prefill_tokens, decode_sequences, context_tokens, attended_pairs, tokens_beyond, duration_ns
        )
        past = self._sums.get(kind)
        self._sums[kind] = step if past is None else list(map(add, past, step))
        if self.steps % _SOLVE_STEPS == 0 or (self.steps < 2 * _SOLVE_STEPS and self.steps % 4 == 0):
            self._solve()

    def observe_swap(self, blocks: int, duration_ns: int) -> None:
        """That many blocks were moved to or from host memory."""
        if blocks <= 0 or duration_ns <= 0:
            return
        self._counts[2] += 1
        block_ns, usual_ns = duration_ns / blocks, self.swap_block_ns
        if self._counts[2] > _SWAPS_TRUSTED:
            block_ns = min(block_ns, 4 * usual_ns)
        self.swap_block_ns = usual_ns + (block_ns - usual_ns) / min(self._counts[2], _RECENT)

    def _solve(self) -> None:
        # The newest step of each kind counts once and the past less; all of it, where it has led astray.
        faded = _WRONG_KEPT if self.error > _UNSURE_ERROR else 1.0
        for kind, sums in self._sums.items():
            scale = faded / self._gains.get(kind, 1.0)
            if scale != 1.0:
                self._sums[kind] = [scale * value for value in sums]
        self._gains.clear()
        self._ns = solve_non_negative([sum(column) for column in zip(*self._sums.values(), strict=True)], self._ns)

    def _judge(self, prompts: bool, decodes: bool, error: float) -> None:
        counts = self._counts
        self.error += (error - self.error) / min(self.steps, _RECENT)
        counts[1] += decodes
        if prompts:
            counts[0] += 1
            self._prompt_error += (error - self._prompt_error) / min(counts[0], _RECENT)
        if self.sure:
            self.sure = self.error <= _UNSURE_ERROR and self._prompt_error <= _UNSURE_ERROR
        elif self.error <= _SURE_ERROR and self._prompt_error <= _SURE_ERROR:
            self.sure = counts[0] >= _SURE_STEPS and counts[1] >= _SURE_STEPS

    # --- from one process to another --------------------------------------------------------------------------------

    def snapshot(self) -> list[float]:
        """All it knows as plain numbers, for `restore`."""
        head = [float(self.sure), self.error, float(self.steps), self.swap_block_ns, self._spread, self._prompt_error]
        numbers = [*head, *map(float, self._counts), *self._ns]
        for kind, sums in self._sums.items():
            gain = self._gains.get(kind, 1.0)
            numbers += [float(kind), *(value / gain for value in sums)]
        return numbers

    @classmethod
    def restore(cls, numbers: Sequence[float]) -> LearnedCost:
        """The model that gave `numbers`: it expects the same and learns on from there.

        Raises ValueError if they are not what `snapshot` gives.
        """
        cost, width = cls(), len(normal_sums(0.0, 0, 0, 0, 0, 0, 0)) + 1
        head, tail = numbers[:15], numbers[15:]
        if len(head) < 15 or len(tail) % width or not all(0 <= number < float("inf") for number in numbers):
            raise ValueError(f"{len(numbers)} numbers are no snapshot of a cost model")
        cost.sure, cost.error, cost.steps, cost.swap_block_ns = bool(head[0]), head[1], int(head[2]), head[3]
        cost._spread, cost._prompt_error = head[4], head[5]
        cost._counts, cost._ns = [int(count) for count in head[6:9]], list(head[9:])
        cost._sums = {int(tail[at]): list(tail[at + 1 : at + width]) for at in range(0, len(tail), width)}
        return cost
