"""Going on from prompts: against `transformers`, alone and together, whole and as a stream."""

from functools import cache

import pytest
import torch
from transformers import GenerationConfig

from qkv.config import DecodeConfig
from qkv.decode import Engine, Request, complete, noise
from qkv.errors import UserError
from tests.decode.helpers import assert_same, cut, stream, streams
from tests.parity.pairs import gpt2_pair, gpt3_pair, llama_pair

EOS, PAD = 3, 0
PAIRS = {
    "gpt2": lambda: gpt2_pair(3),
    "gpt3": lambda: gpt3_pair(3),
    "llama": lambda: llama_pair(3, max_position_embeddings=48),
    "window": lambda: llama_pair(3, sliding_window=4, max_position_embeddings=48),
}
PROMPTS = [[5, 6, 7, 8, 9], [11], [12, 13, 14, 15, 16, 17, 18, 19, 20], [21, 22]]
CONFIGS = [
    DecodeConfig(beams=1, max_length=14),
    DecodeConfig(beams=1, max_length=14, repetition_penalty=1.4),
    DecodeConfig(beams=3, n_best=2, max_length=14),
    DecodeConfig(beams=3, n_best=2, max_length=14, repetition_penalty=1.2),
    DecodeConfig(sample=True, temperature=1.3, max_length=14, seed=5),
    DecodeConfig(
        sample=True,
        temperature=2.0,
        top_k=40,
        top_p=0.9,
        max_length=14,
        seed=1,
        repetition_penalty=1.1,
    ),
    DecodeConfig(sample=True, temperature=1.5, min_p=0.05, max_length=14, seed=2),
    DecodeConfig(beams=1, max_length=14, no_repeat=2, min_length=9, repetition_penalty=0.5),
    DecodeConfig(beams=1, max_length=14, no_repeat=3, min_length=14, repetition_penalty=0.4),
    DecodeConfig(beams=4, n_best=4, length_penalty=0.5, max_length=14, no_repeat=1, min_length=6),
    DecodeConfig(
        beams=4, n_best=2, max_length=14, no_repeat=2, min_length=3, repetition_penalty=0.7
    ),
    DecodeConfig(sample=True, temperature=2.0, top_k=5, max_length=14, no_repeat=1, min_length=9),
]


pair_of = cache(lambda name: PAIRS[name]())


def spread(configs, n_pairs=1):
    """Each config with `n_pairs` of the models in turn: what a rule does depends on no model."""
    names = list(PAIRS)
    cases = [
        pytest.param(names[(number + step) % len(names)], config, id=f"{number}-{step}")
        for step in range(n_pairs)
        for number, config in enumerate(configs)
    ]
    return pytest.mark.parametrize(("name", "config"), cases)


@pytest.fixture(scope="module", params=PAIRS)
def pair(request):
    return pair_of(request.param)


def theirs(model, prompt, config, monkeypatch, row):
    """`transformers`' tokens, its draws made with our random numbers."""
    step = torch.zeros((), dtype=torch.int64)

    def draw(probabilities, num_samples):
        stream_of_row = streams(config.seed, [row], 1)[0]
        found = probabilities.log() + noise.gumbel(stream_of_row, step, probabilities.shape[-1])
        step.add_(1)
        return found.argmax(dim=-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", draw)
    sampling = {
        "temperature": config.temperature,
        "top_k": config.top_k,
        "top_p": config.top_p,
        "min_p": config.min_p or None,
    }
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        generation_config=GenerationConfig(
            max_new_tokens=config.max_length,
            do_sample=config.sample,
            num_beams=1 if config.sample else config.beams,
            num_return_sequences=1 if config.sample else config.n_best,
            eos_token_id=EOS,
            pad_token_id=PAD,
            repetition_penalty=config.repetition_penalty,
            length_penalty=config.length_penalty,
            no_repeat_ngram_size=config.no_repeat,
            min_new_tokens=config.min_length or None,
            **(sampling if config.sample else {}),
        ),
    )
    rows = [cut(found[len(prompt) :], EOS, -1) for found in output.tolist()]
    return [[token for token in row if token != EOS] for row in rows]


@spread(CONFIGS, 2)
def test_tokens_equal_transformers(name, config, monkeypatch):
    model, ours = pair_of(name)
    found = complete(ours, PROMPTS, config)
    for row, (prompt, each) in enumerate(zip(PROMPTS, found, strict=True)):
        expected = theirs(model, prompt, config, monkeypatch, row)
        assert [one.tokens for one in each] == expected


@spread(CONFIGS, 2)
def test_together_equals_alone_and_fixed_equals_growing(name, config):
    _, ours = pair_of(name)
    together = complete(ours, PROMPTS, config)
    assert_same(complete(ours, PROMPTS, config, fixed=True), together)
    for row, prompt in enumerate(PROMPTS):
        assert_same(complete(ours, [prompt], config, ids=[row]), [together[row]])


@spread([config for config in CONFIGS if config.sample or config.beams == 1])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_stream_equals_the_whole(name, config, fixed):
    _, ours = pair_of(name)
    expected = [each[0].tokens for each in complete(ours, PROMPTS, config)]
    found = [
        list(stream(Engine(ours, fixed=fixed), prompt, config, id=row))
        for row, prompt in enumerate(PROMPTS)
    ]
    assert found == expected


def test_without_a_cache(pair):
    """Greedy by hand, the whole text read anew for each token."""
    _, ours = pair
    for prompt, each in zip(PROMPTS, complete(ours, PROMPTS, CONFIGS[0]), strict=True):
        tokens = list(prompt)
        for _ in range(14):
            tokens.append(int(ours(torch.tensor([tokens]))[0, -1].argmax()))
            if tokens[-1] == EOS:
                break
        assert tokens[len(prompt) :] == each[0].tokens + [EOS] * each[0].finished


@pytest.mark.parametrize("fixed", [False, True])
def test_a_kept_prompt_is_read_once(pair, fixed):
    _, ours = pair
    engine, config = Engine(ours, fixed=fixed), DecodeConfig(beams=1, max_length=6)
    prompt = [*PROMPTS[0], *range(20, 40)]
    first = list(stream(engine, prompt, config))
    longer = [*prompt, *first, 30, 31]
    handle = engine.submit(Request(tuple(longer), 6, (EOS,), config, keep=True))
    again = [event.token for event in engine.stream(handle) if event.token != EOS]
    assert again == complete(ours, [longer], config)[0][0].tokens
    # what was generated had been read by the steps themselves, all but the last token
    assert handle.n_read <= 3
    other = [5, 6, 40, 41]
    assert list(stream(engine, other, config)) == complete(ours, [other], config)[0][0].tokens


@pytest.mark.parametrize("fixed", [False, True])
def test_a_stream_that_is_left_early_changes_no_later_one(pair, fixed):
    _, ours = pair
    engine, config = Engine(ours, fixed=fixed), DecodeConfig(beams=1, max_length=12)
    prompt = [*PROMPTS[0], *range(20, 40)]
    tokens = stream(engine, prompt, config)
    heard = [next(tokens), next(tokens), next(tokens)]
    tokens.close()
    longer = [*prompt, *heard, 8]
    found = list(stream(engine, longer, config))
    assert found == complete(ours, [longer], config)[0][0].tokens


def test_a_stream_that_breaks_while_it_reads_remembers_nothing_wrong(pair, monkeypatch):
    _, ours = pair
    engine, config = Engine(ours), DecodeConfig(beams=1, max_length=6)
    list(stream(engine, PROMPTS[2], config))
    plain = ours.hidden

    def interrupted(*arguments, **more):
        plain(*arguments, **more)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ours, "hidden", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream(engine, [*range(30, 40)], config))
    found = list(stream(engine, PROMPTS[2], config))
    assert found == complete(ours, [PROMPTS[2]], config)[0][0].tokens


def test_more_ends_than_one(pair):
    _, ours = pair
    plain = complete(ours, PROMPTS, CONFIGS[0], suppress=[EOS])
    end = plain[0][0].tokens[3]
    found = complete(ours, PROMPTS, CONFIGS[0], suppress=[EOS], ends=[EOS, end])
    for each, other in zip(found, plain, strict=True):
        tokens = other[0].tokens
        expected = tokens[: tokens.index(end)] if end in tokens else tokens
        assert each[0].tokens == expected and each[0].finished == (end in tokens)
    streamed = list(stream(Engine(ours), PROMPTS[0], CONFIGS[0], suppress=(EOS,), ends=(EOS, end)))
    assert streamed == found[0][0].tokens


def test_limits_are_each_prompts_own_and_end_with_the_context(pair):
    _, ours = pair
    context = ours.config.max_length if ours.config.max_length < 1000 else 48
    prompts = [[7] * (context - 3), [9, 10]]
    config = DecodeConfig(beams=1, max_length=20)
    for fixed in (False, True):
        found = complete(ours, prompts, config, suppress=[EOS], fixed=fixed)
        assert [len(each[0].tokens) for each in found] == [3, 20]
        alone = complete(ours, prompts[1:], config, suppress=[EOS])
        assert found[1][0].tokens == alone[0][0].tokens


@pytest.mark.parametrize(
    "config",
    [
        DecodeConfig(beams=1, max_length=14),
        DecodeConfig(beams=2, max_length=14, no_repeat=1, min_length=5),
    ],
    ids=["greedy", "rules"],
)
def test_an_engine_of_fixed_shapes_is_used_again(config):
    """Later batches are copied into the memory of the first, and leave each other no trace."""
    _, ours = pair_of("llama")
    engine = Engine(ours, fixed=True)
    for prompts in (PROMPTS, PROMPTS[::-1], [[4, 5], [6, 7, 8], [9], [10, 11]], [[12, 13]]):
        found = complete(ours, prompts, config, engine=engine)
        assert_same(found, complete(ours, prompts, config))


@pytest.mark.parametrize("beams", [1, 3])
def test_no_end_comes_early(pair, beams):
    _, ours = pair
    config = DecodeConfig(beams, max_length=14, min_length=9, no_repeat=2)
    plain = complete(ours, PROMPTS, DecodeConfig(beams, max_length=14, no_repeat=2))
    ends = [EOS, *{each[0].tokens[2] for each in plain}]
    for each in complete(ours, PROMPTS, config, ends=ends):
        assert len(each[0].tokens) >= 9 and not set(ends) & {*each[0].tokens}


@pytest.mark.parametrize(
    ("prompts", "words"), [([[5], []], "prompt 2 is empty"), ([[7] * 48], "context of 48")]
)
def test_prompts_that_cannot_be_continued(prompts, words):
    _, ours = pair_of("gpt2")
    with pytest.raises(UserError, match=words):
        complete(ours, prompts, DecodeConfig(beams=1))
