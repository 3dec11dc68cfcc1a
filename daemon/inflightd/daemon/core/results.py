"""What an engine computed, put where it belongs: tokens to sequences, blocks to the prefix cache, counts to totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from inflightd.daemon.core.wire import FinishReason, TokenDelta
from inflightd.schedulers.api import is_decoding

if TYPE_CHECKING:
    from inflightd.daemon.core.roster import Roster
    from inflightd.daemon.core.sequence import Sequence
    from inflightd.daemon.core.step import StepInHand, Totals
    from inflightd.daemon.core.view import LoopView
    from inflightd.daemon.engines.api import StepResult


class Results:
    """One for the life of the loop."""

    def __init__(self, roster: Roster, view: LoopView, totals: Totals) -> None:
        self._roster = roster
        self._view = view
        self._totals = totals

    def apply(self, step: StepInHand, result: StepResult, now_ns: int) -> list[TokenDelta]:
        """The step's tokens, for the frame."""
        roster = self._roster
        roster.block_moves = []
        samples = self._samples(step, now_ns)
        each_token = [[token_id] for token_id in result.token_ids]  # of the delta now, of the row in the next step
        if result.logprobs is None:
            deltas = [
                TokenDelta(sample.request, sample.sample, token_ids)
                for sample, token_ids in zip(samples, each_token, strict=True)
            ]
        else:
            deltas = [
                TokenDelta(sample.request, sample.sample, token_ids, None if logprob is None else [logprob])
                for sample, token_ids, logprob in zip(samples, each_token, result.logprobs, strict=True)
            ]
        for sample, token_ids in zip(samples, each_token, strict=True):  # the hot loop: a turn per token
            token_id = token_ids[0]
            sample.token_ids.append(token_id)
            sampling = sample.sampling
            sampling.output_ids.append(token_id)  # `SamplingState.observe` in line
            if sampling.tally is not None:
                sampling.tally.observe(token_id)
            sample.computed_tokens = computed_tokens = sample.total_tokens
            sample.total_tokens = computed_tokens + 1
            sample.generated_tokens = generated_tokens = sample.generated_tokens + 1
            sample.last_token_ns = now_ns
            row = sample.row
            row.token_ids, row.past_tokens, row.draws[0].position = token_ids, computed_tokens, generated_tokens
            # An end token counts as the answer's last even where the limit is met with it.
            if token_id in sample.stop_token_ids and generated_tokens > sampling.params.min_tokens:
                roster.finish(sample, FinishReason.STOP, token_id)
            elif generated_tokens >= sample.max_new_tokens:
                roster.finish(sample, FinishReason.LENGTH)
        totals, plan = self._totals, step.plan
        totals.prefilled_tokens += step.prefill_tokens
        totals.recomputed_tokens += step.recomputed_tokens
        totals.generated_tokens += len(samples)
        totals.padding_tokens += plan.padding_tokens
        totals.decoded_tokens += len(plan.decode)
        totals.swapped_out_blocks += step.swapped_out_blocks
        totals.swapped_in_blocks += step.swapped_in_blocks
        return deltas

    def _samples(self, step: StepInHand, now_ns: int) -> list[Sequence]:
        """Whose tokens the step computed, now that it has; those that get a new one, in the order of the draws."""
        roster, decode, prefix = self._roster, step.plan.decode, self._roster.kv.prefix
        roster.decoding.advance(decode)
        if prefix.enabled:
            block_size_tokens = self._view.limits.block_size_tokens
            full = roster.decoding.at_edge() if decode is self._view.decoding else decode
            for sequence in full:
                if sequence.total_tokens % block_size_tokens == 0:
                    prefix.fill(sequence.number, sequence.row.block_table, sequence.total_tokens, sequence.token_ids)
        samples = list(decode)
        for (sequence, tokens), row in zip(step.plan.prefill, step.rows[len(decode) :], strict=True):
            roster.decoding.leave(sequence)  # a policy may feed it its one token as a prompt
            sequence.computed_tokens += tokens
            prefix.fill(sequence.number, row.block_table, sequence.computed_tokens, sequence.token_ids)
            if row.draws:
                if not sequence.generated_tokens:
                    sequence.first_token_ns = now_ns
                new = roster.fork(sequence, row) if sequence.forks_to_come else [sequence]
                for sample in new:
                    roster.join_decodes(sample)
                samples += new
            elif is_decoding(sequence):
                roster.begin_decode(sequence)  # resumed, with a last chunk that stopped one token short
        return samples
