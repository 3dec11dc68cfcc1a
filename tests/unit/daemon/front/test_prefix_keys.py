"""Keys of prompts' beginnings: equal where these are equal, and of no use to anybody else."""

from __future__ import annotations

from inflightd.daemon.front.prefix_keys import PrefixKeys


def test_as_many_keys_as_the_prompt_has_beginnings() -> None:
    keys = PrefixKeys()
    assert [len(keys.of(range(tokens))) for tokens in (0, 1, 31, 32, 127, 128, 511, 512, 9_000)] == [
        *(0, 0, 0, 1, 1, 2, 2, 3, 3)
    ]


def test_equal_beginnings_have_equal_keys_as_far_as_they_go() -> None:
    keys = PrefixKeys()
    common = list(range(200))
    one, other = keys.of([*common, *[7] * 400]), keys.of([*common, *[8] * 400])
    assert one[:2] == other[:2]
    assert one[2] != other[2]
    assert len(set(one)) == 3


def test_any_token_of_a_beginning_counts() -> None:
    keys = PrefixKeys()
    prompt = list(range(512))
    for at, differ in ((0, 0), (31, 0), (32, 1), (127, 1), (128, 2), (511, 2)):
        changed = [*prompt[:at], 2**31 - 1, *prompt[at + 1 :]]
        same = [one == other for one, other in zip(keys.of(prompt), keys.of(changed), strict=True)]
        assert same == [length < differ for length in range(3)]


def test_another_process_has_other_keys() -> None:
    assert PrefixKeys().of(range(32)) != PrefixKeys().of(range(32))


def test_json_carries_every_key_exactly() -> None:
    keys = PrefixKeys()
    assert all(0 <= key < 2**53 for salt in range(200) for key in keys.of([salt] * 512))
