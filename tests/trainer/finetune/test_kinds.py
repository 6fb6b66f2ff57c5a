"""What the kinds compute: losses as transformers' own classes, features that lose nothing, the best span of all."""

from __future__ import annotations

import json
import logging
import random
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from schemas.errors import UsageError
from trainer.finetune.examples import Answer, ChoiceExample, SpanExample, TagExample, TextExample
from trainer.finetune.kinds.kind import Feature, Kind, Row
from trainer.finetune.kinds.span import Spans
from trainer.finetune.kinds.table import kind_of
from trainer.finetune.kinds.tags import parts
from trainer.finetune.kinds.windows import OUTSIDE, FoundSpan, Window, best_span
from trainer.finetune.opening import longest_row, open_tokenizer
from trainer.finetune.task import Task

SENTENCES = [
    "The cat sees the river under a grey sky.",
    "The baker finds the letter.",
    "The teacher counts the river in the morning.",
]


def kind_for(folder: Path, name: str, labels: tuple[str, ...] = (), **training: object) -> Kind:
    content = {"name": "test", "kind": name, "data": {"train": "t.jsonl", "dev": "d.jsonl"}, "training": training}
    if name in ("sentence", "pair") and not labels:
        content["data"]["labels"] = "number"
    return kind_of(Task.model_validate(content), labels, open_tokenizer(str(folder), name))


def model_for(folder: Path, kind: Kind) -> torch.nn.Module:
    config = AutoConfig.from_pretrained(folder, num_labels=kind.outputs)
    torch.manual_seed(0)
    return getattr(transformers, kind.model_class).from_pretrained(folder, config=config).eval()


def loss_of(kind: Kind, model: torch.nn.Module, features: list[Feature]) -> float:
    with torch.inference_mode():
        return float(kind.loss_sum(model(**kind.batch(features)), features))


FAMILIES = ["bert", "roberta", "electra", "modernbert", "xlnet"]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_sentences_is_that_of_transformers(encoder, family: str) -> None:
    kind = kind_for(encoder(family), "sentence", ("a", "b", "c"))
    features = kind.features([TextExample(str(i), text, None, i % 3) for i, text in enumerate(SENTENCES)])
    model = model_for(encoder(family), kind)
    theirs = model(**kind.batch(features), labels=torch.tensor([0, 1, 2])).loss
    assert loss_of(kind, model, features) == pytest.approx(3 * float(theirs), rel=1e-5)


def test_the_loss_of_numbers_is_the_squared_error(encoder) -> None:
    kind = kind_for(encoder("bert"), "pair")
    features = kind.features([TextExample(str(i), text, SENTENCES[0], i / 2) for i, text in enumerate(SENTENCES)])
    model = model_for(encoder("bert"), kind)
    theirs = model(**kind.batch(features), labels=torch.tensor([0.0, 0.5, 1.0])).loss
    assert loss_of(kind, model, features) == pytest.approx(3 * float(theirs), rel=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_may_have_different_numbers_of_choices(encoder, family: str) -> None:
    examples = [
        ChoiceExample("0", SENTENCES[0], ("The baker finds it.", "The river.", "As always."), 2),
        ChoiceExample("1", SENTENCES[1], ("The cat sees the letter in the morning.", "The cat."), 1),
    ]
    kind = kind_for(encoder(family), "choice")
    features = kind.features(examples)
    model = model_for(encoder(family), kind)

    alone = 0.0
    for feature, example in zip(features, examples, strict=True):
        alone += float(model(**kind.batch([feature]), labels=torch.tensor([example.label])).loss)
    assert loss_of(kind, model, features) == pytest.approx(alone, rel=1e-4)
    with torch.inference_mode():
        scores = kind.scores(model(**kind.batch(features)), features)
    assert [len(score) for score in scores] == [3, 2]

    # A short example is padded with copies of its first choice, which have no share in the probability.
    for prediction, score in zip(kind.predictions(examples, features, scores), scores, strict=True):
        shares = torch.tensor(score).softmax(0)
        assert (prediction, kind.probability(prediction)) == (int(shares.argmax()), pytest.approx(float(shares.max())))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_of_tags_is_that_of_first_pieces(encoder, family: str) -> None:
    words = [tuple(text.replace(".", " .").split()) for text in SENTENCES]
    examples = [TagExample(str(i), w, tuple((i + j) % 3 for j in range(len(w)))) for i, w in enumerate(words)]
    kind = kind_for(encoder(family), "tags", ("O", "B-X", "I-X"))
    features = kind.features(examples)
    model = model_for(encoder(family), kind)

    batch = kind.batch(features)
    labels = torch.full(batch["input_ids"].shape, -100)
    tokenizer = kind.tokenizer
    for row, example in enumerate(examples):
        encoding = tokenizer(
            list(example.words), is_split_into_words=True, padding="max_length", max_length=labels.shape[1]
        )
        previous = None
        for place, word in enumerate(encoding.word_ids()):
            if word is not None and word != previous:
                labels[row, place] = example.tags[word] if example.tags else -100
            previous = word
    count = sum(map(len, words))
    theirs = model(**batch, labels=labels).loss
    assert loss_of(kind, model, features) == pytest.approx(count * float(theirs), rel=1e-5)

    with torch.inference_mode():
        output = model(**batch)
    predicted = kind.predictions(examples, features, kind.scores(output, features))
    best = output.logits.argmax(-1)
    assert [tag for tags in predicted for tag in tags] == best[labels != -100].tolist()


def test_a_long_sentence_gets_all_its_tags(encoder) -> None:
    words = tuple(word for text in SENTENCES * 4 for word in text.split())
    tags = tuple(i % 2 for i in range(len(words)))
    kind = kind_for(encoder("bert"), "tags", ("O", "B-X"), max_length=16)
    features = kind.features([TagExample("0", words, tags)])
    assert len(features) > 4 and all(feature.length <= 16 for feature in features)
    assert [word for feature in features for word in feature.part.words] == list(range(len(words)))
    assert [tag for feature in features for tag in feature.target] == list(tags)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 12))
def test_parts_hold_every_word_once_and_fit(pieces: list[int], room: int) -> None:
    cut = list(parts(pieces, room))
    assert [word for first, end in cut for word in range(first, end)] == list(range(len(pieces)))
    for first, end in cut:
        assert sum(pieces[first:end]) <= room or end == first + 1 or not any(pieces[first + 1 : end])
    for (first, end), (_, next_end) in pairwise(cut):
        assert sum(pieces[first:end]) + pieces[end] > room and next_end > end


CONTEXT = " ".join(SENTENCES * 6)


def span_example(text: str, start: int) -> SpanExample:
    return SpanExample("0", "What does the baker find?", CONTEXT, (Answer(text, start),), False)


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "modernbert", "xlnet"])
def test_windows_cover_the_context_and_find_every_answer(encoder, family: str) -> None:
    kind = kind_for(encoder(family), "span", max_length=40, stride=12)
    assert isinstance(kind, Spans)
    random_numbers = random.Random(0)
    for _ in range(20):
        begin = CONTEXT.index(" ", random_numbers.randrange(len(CONTEXT) - 60)) + 1
        end = CONTEXT.index(" ", begin + random_numbers.randrange(1, 20))
        features = kind.features([span_example(CONTEXT[begin:end], begin)])
        assert len(features) > 2 and all(feature.length <= 40 for feature in features)

        seen = {place for f in features for span in f.part.characters_T2 for place in range(*span)}
        assert {i for i, letter in enumerate(CONTEXT) if letter != " "} <= seen

        pointed = [f for f in features if f.target != (f.part.classification, f.part.classification)]
        assert pointed, "an answer shorter than the shared tokens is whole in some window"
        for feature in pointed:
            first, last = (feature.part.characters_T2[place] for place in feature.target)
            assert CONTEXT[first[0] : last[1]].strip() == CONTEXT[begin:end]


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
OFFSETS: dict[str, tuple[str, dict]] = {
    "leave out a word's first letter": (
        "roberta",
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}, BYTES]}},
    ),
    "begin with the space": (
        "roberta",
        {
            "pre_tokenizer": BYTES | {"trim_offsets": False},
            "post_processor": {
                "type": "RobertaProcessing",
                "sep": ["</s>", 2],
                "cls": ["<s>", 0],
                "trim_offsets": False,
                "add_prefix_space": True,
            },
        },
    ),
    "leave out marks of direction": ("bert", {}),
}


@pytest.mark.parametrize("offsets", OFFSETS)
def test_answers_are_whole_words_whatever_the_offsets(encoder, tmp_path: Path, offsets: str) -> None:
    family, rules = OFFSETS[offsets]
    folder = shutil.copytree(encoder(family), tmp_path / "encoder")
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | rules))
    kind = kind_for(folder, "span", max_length=40, stride=12)

    context = "The baker finds (with the cat) \u200f letters\u200f, \u2066mountains\u2069 and a river. " * 3
    for word in ("letters", "mountains", "river", "cat", "baker", "(with"):
        answer = Answer(word, context.index(word))
        pointed = []
        for feature in kind.features([SpanExample("0", "What is it?", context, (answer,), False)]):
            first, last = (feature.part.characters_T2[place] for place in feature.target)
            if first[0] != OUTSIDE:
                pointed.append(context[first[0] : last[1]])
        assert pointed and set(pointed) == {word}


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "modernbert"])
def test_the_loss_of_spans_is_that_of_transformers(encoder, family: str) -> None:
    kind = kind_for(encoder(family), "span", max_length=64)
    start = CONTEXT.index("letter")
    features = kind.features([span_example("letter", start), span_example("baker finds the letter", start - 16)])
    model = model_for(encoder(family), kind)
    targets = torch.tensor([feature.target for feature in features])
    theirs = model(**kind.batch(features), start_positions=targets[:, 0], end_positions=targets[:, 1]).loss
    assert loss_of(kind, model, features) == pytest.approx(len(features) * float(theirs), rel=1e-5)


def test_no_answer_points_at_the_classification_token(encoder) -> None:
    for family in ("bert", "xlnet"):
        kind = kind_for(encoder(family), "span", max_length=64)
        question = f"What is a {kind.tokenizer.cls_token}?"  # a token of the text is not the one of the row
        features = kind.features([SpanExample("0", question, f"{CONTEXT} {kind.tokenizer.cls_token}", (), True)])
        for feature in features:
            place = feature.part.classification
            assert place == (0 if family == "bert" else feature.length - 1)
            assert feature.target == (place, place)
            assert feature.rows[0].ids[place] == kind.tokenizer.cls_token_id


def test_a_question_as_long_as_a_row_leaves_room_for_the_context(encoder, caplog, monkeypatch) -> None:
    """And is truncated without a warning of transformers that it is too long for the model."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    kind = kind_for(encoder("bert"), "span", max_length=32, stride=128)
    kind.tokenizer.model_max_length = 32
    features = kind.features([SpanExample("0", CONTEXT, CONTEXT, (Answer("letter", CONTEXT.index("letter")),), False)])
    assert all(feature.length <= 32 for feature in features)
    assert any(feature.target[0] != feature.part.classification for feature in features)
    assert not caplog.records


SCORES = st.integers(2, 12).flatmap(
    lambda length: st.tuples(
        *[st.lists(st.integers(-5, 5), min_size=length, max_size=length) for _ in range(2)],
        st.lists(st.booleans(), min_size=length, max_size=length),
        st.integers(1, 6),
    )
)


@given(SCORES)
def test_the_best_span_is_the_best_of_all(case) -> None:
    starts, ends, is_context, most = case
    characters = [(i, i + 1) if inside else (OUTSIDE, OUTSIDE) for i, inside in enumerate(is_context)]
    window = Window(np.array(characters, np.int32), 0)
    found = best_span(np.array([starts, ends], np.float32), window, most)

    possible = [
        FoundSpan(i, j + 1, float(starts[i] + ends[j]))
        for i in range(len(starts))
        for j in range(i, min(i + most, len(ends)))
        if is_context[i] and is_context[j]
    ]
    if not possible:
        assert found is None
    else:
        assert found == max(possible, key=lambda span: (span.score, -span.begin, -span.end))


def test_the_best_window_answers_and_the_surest_one_says_whether(encoder) -> None:
    kind = kind_for(encoder("bert"), "span", max_length=40, stride=12)
    example = SpanExample("0", "What?", CONTEXT, (), False)
    features = kind.features([example])
    scores = [torch.zeros(2, feature.length).numpy() for feature in features]
    place = next(i for i, (begin, _) in enumerate(features[1].part.characters_T2) if begin != OUTSIDE)
    scores[1][:, place] = 3.0
    scores[0][:, 0] = 1.0

    prediction = kind.predictions([example], features, scores)[0]
    begin, end = features[1].part.characters_T2[place]
    assert prediction.text == CONTEXT[begin:end]
    assert prediction.null_score == pytest.approx(0.0 - 6.0), "the lowest sum of all windows, 0 in the others"


@pytest.mark.parametrize(("family", "longest"), [("bert", 96), ("roberta", 94), ("modernbert", 96), ("xlnet", None)])
def test_rows_are_no_longer_than_the_encoder_s_positions(encoder, family: str, longest: int | None) -> None:
    config = AutoConfig.from_pretrained(encoder(family))
    assert longest_row(config) == longest
    if longest is None:
        return

    task = Task.model_validate(
        {
            "name": "test",
            "kind": "sentence",
            "data": {"train": "t.jsonl", "dev": "d.jsonl"},
            "training": {"max_length": 256},
        }
    )
    kind = kind_of(task, ("a", "b"), open_tokenizer(str(encoder(family)), "sentence"), longest)
    features = kind.features([TextExample("0", CONTEXT * 3, None, 0)])
    assert features[0].length == longest
    assert loss_of(kind, model_for(encoder(family), kind), features) > 0


def test_a_tokenizer_of_a_decoder_is_refused(encoder, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder("roberta"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer).save_pretrained(tmp_path)
    shutil.copy(encoder("roberta") / "config.json", tmp_path)
    with pytest.raises(UsageError, match="Decoders"):
        open_tokenizer(str(tmp_path), "sentence")


def test_rows_without_segments(encoder) -> None:
    kind = kind_for(encoder("roberta"), "pair", ("a", "b"))
    feature = kind.features([TextExample("0", SENTENCES[0], SENTENCES[1], 0)])[0]
    assert isinstance(feature.rows[0], Row) and "token_type_ids" not in kind.batch([feature])
