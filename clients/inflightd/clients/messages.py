"""Between the plain values and the messages of `inflightd.v1.Inference`."""

from __future__ import annotations

from inflightd.clients.prompts import ChatPrompt, GenerateOptions, Prompt, TextPrompt, TokenPrompt
from inflightd.clients.results import (
    Choice,
    Delta,
    Generation,
    Model,
    Timings,
    TokenLogprob,
    TopLogprob,
    Usage,
)
from inflightd.v1 import inference_pb2 as pb

_FINISH_REASON = {
    number: name.removeprefix("FINISH_REASON_").lower() for name, number in pb.FinishReason.items() if number
}


def chat_message(prompt: ChatPrompt) -> pb.Chat:
    return pb.Chat(
        messages=[pb.Message(role=each.role, content=each.content) for each in prompt.messages],
        add_generation_prompt=prompt.add_generation_prompt,
    )


def generate_request(prompt: Prompt, options: GenerateOptions) -> pb.GenerateRequest:
    """Raises ValueError or TypeError for a number the protocol cannot carry, such as a negative token id."""
    request = pb.GenerateRequest(
        request_id=options.request_id,
        model=options.model,
        sampling=pb.Sampling(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
            presence_penalty=options.presence_penalty,
            frequency_penalty=options.frequency_penalty,
            logit_bias=options.logit_bias,
            bad_words=options.bad_words,
            seed=options.seed,
            n=options.n,
        ),
        stopping=pb.Stopping(
            max_tokens=options.max_tokens,
            min_tokens=options.min_tokens,
            stop=options.stop,
            stop_token_ids=options.stop_token_ids,
            ignore_eos=options.ignore_eos,
            include_stop=options.include_stop,
        ),
        output=pb.OutputOptions(logprobs=options.logprobs),
        service_class=options.service_class,
        tenant=options.tenant,
        deadline_ms=options.deadline_ms,
    )
    if options.skip_special_tokens is not None:
        request.output.skip_special_tokens = options.skip_special_tokens
    match prompt:
        case TextPrompt():
            request.text = prompt.text
            request.parse_special_tokens = prompt.parse_special_tokens
        case TokenPrompt():
            request.token_ids.ids.extend(prompt.token_ids)
            request.token_ids.SetInParent()  # an empty list is still this kind of prompt
        case ChatPrompt():
            request.chat.CopyFrom(chat_message(prompt))
    return request


def delta(message: pb.GenerateResponse) -> Delta:
    """Called for each message of each stream: what a plain token does not have is not looked at twice."""
    result = Delta(message.sample, message.text, tuple(message.token_ids))
    if message.logprobs:
        result.logprobs = _logprobs(message)
    reason = message.finish_reason
    if reason:
        result.finish_reason = _FINISH_REASON.get(reason, str(reason))
        result.matched_stop, result.matched_token_id = _matched(message)
    if message.HasField("usage"):
        result.usage = usage(message.usage)
    if message.HasField("timings"):
        result.timings = timings(message.timings)
    result.request_id = message.request_id
    return result


def generation(message: pb.GenerateOnceResponse) -> Generation:
    return Generation(
        choices=tuple(
            Choice(
                each.sample,
                each.text,
                tuple(each.token_ids),
                _logprobs(each),
                _FINISH_REASON.get(each.finish_reason),
                *_matched(each),
            )
            for each in message.choices
        ),
        usage=usage(message.usage),
        timings=timings(message.timings),
        request_id=message.request_id,
    )


def usage(message: pb.Usage) -> Usage:
    return Usage(
        message.prompt_tokens,
        message.completion_tokens,
        message.cached_tokens,
        message.effective_max_tokens,
        message.seed,
    )


def timings(message: pb.Timings) -> Timings:
    return Timings(message.queued_ns, message.first_token_ns, message.last_token_ns, message.preemptions)


def model(message: pb.Model) -> Model:
    return Model(
        name=message.name,
        engine=message.engine,
        max_sequence_tokens=message.max_sequence_tokens,
        default_max_tokens=message.default_max_tokens,
        vocab_size=message.vocab_size,
        eos_token_ids=tuple(message.eos_token_ids),
        has_chat_template=message.has_chat_template,
        max_batch_size=message.max_batch_size,
        max_num_tokens=message.max_num_tokens,
        max_message_bytes=message.max_message_bytes,
        service_classes=tuple(message.service_classes),
    )


def _logprobs(message: pb.GenerateResponse | pb.Choice) -> tuple[TokenLogprob, ...]:
    return tuple(
        TokenLogprob(
            each.token_id, each.logprob, tuple(TopLogprob(other.token_id, other.logprob) for other in each.top)
        )
        for each in message.logprobs
    )


def _matched(message: pb.GenerateResponse | pb.Choice) -> tuple[str | None, int | None]:
    kind = message.WhichOneof("matched")
    return (
        message.matched_stop if kind == "matched_stop" else None,
        message.matched_token_id if kind == "matched_token_id" else None,
    )
