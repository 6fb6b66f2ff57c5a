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
from trainer.finetune.job import FeatureSet
from trainer.finetune.kinds import kind_of
from trainer.finetune.kinds.kind import TARGETS, Feature, Kind, length_of
from trainer.finetune.kinds.span import OUTSIDE, FoundSpan, Spans, best_span
from trainer.finetune.kinds.tags import IGNORED, parts
from trainer.finetune.kinds.text import CHOICES, loss_of_choices
from trainer.finetune.opening import longest_row, open_tokenizer
from trainer.finetune.task import Task

SENTENCES = [
    "The cat sees the river under a grey sky.",
    "The baker finds the letter.",
    "The teacher counts the river in the morning.",
]


def kind_for(
    folder: Path, name: str, labels: tuple[str, ...] = (), longest: int | None = None, **training: object
) -> Kind:
    content = {"name": "test", "kind": name, "data": {"train": "t.jsonl", "dev": "d.jsonl"}, "training": training}
    if name in ("sentence", "pair") and not labels:
        content["data"]["labels"] = "number"
    return kind_of(Task.model_validate(content), labels, open_tokenizer(str(folder), name), longest)


def model_for(folder: Path, kind: Kind) -> torch.nn.Module:
    config = AutoConfig.from_pretrained(folder, num_labels=kind.outputs)
    torch.manual_seed(0)
    return getattr(transformers, kind.model_class).from_pretrained(folder, config=config).eval()


def batch_of(kind: Kind, features: list[Feature]) -> dict[str, torch.Tensor]:
    """The batch that a model gets, with the labels and what the loss of choices takes."""
    items = FeatureSet([], features)
    return kind.collate([items[number] for number in range(len(items))])


def logits_of(kind: Kind, model: torch.nn.Module, features: list[Feature]) -> list[np.ndarray]:
    """The logits of each feature, without padding."""
    inputs = {name: v for name, v in batch_of(kind, features).items() if name not in (*TARGETS, CHOICES)}
    with torch.inference_mode():
        logits = kind.logits(model(**inputs), inputs).numpy()
    return [kind.logits_of(feature, of_row) for feature, of_row in zip(features, logits, strict=True)]


FAMILIES = ["bert", "roberta", "electra", "modernbert", "xlnet"]


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_each_example_alone(encoder, family: str) -> None:
    """Whatever the side of the padding is."""
    examples: dict[str, list] = {
        "sentence": [TextExample(str(i), text, None, i) for i, text in enumerate(SENTENCES)],
        "tags": [TagExample(str(i), tuple(text.split()), None) for i, text in enumerate(SENTENCES)],
        "span": [SpanExample(str(i), "What?", text, (), False) for i, text in enumerate(SENTENCES)],
    }
    for name, of_kind in examples.items():
        kind = kind_for(encoder(family), name, () if name == "span" else ("a", "b", "c"))
        features = kind.features(of_kind)
        model = model_for(encoder(family), kind)
        for feature, together in zip(features, logits_of(kind, model, features), strict=True):
            [alone] = logits_of(kind, model, [feature])
            assert together.shape == alone.shape and together == pytest.approx(alone, abs=1e-4), name


@pytest.mark.parametrize("family", FAMILIES)
def test_examples_may_have_different_numbers_of_choices(encoder, family: str) -> None:
    examples = [
        ChoiceExample("0", SENTENCES[0], ("The baker finds it.", "The river.", "As always."), 2),
        ChoiceExample("1", SENTENCES[1], ("The cat sees the letter in the morning.", "The cat."), 1),
    ]
    kind = kind_for(encoder(family), "choice")
    features = kind.features(examples)
    model = model_for(encoder(family), kind)

    alone = []
    for feature in features:
        batch = batch_of(kind, [feature])
        batch.pop(CHOICES)
        alone.append(model(**batch).loss.item())
    batch = batch_of(kind, features)
    choices, labels = batch.pop(CHOICES), batch.pop("labels")
    with torch.inference_mode():
        loss = loss_of_choices(model(**batch).logits, choices, labels)
    assert float(loss) == pytest.approx(sum(alone) / 2, rel=1e-4)
    logits = logits_of(kind, model, features)
    assert [len(of_feature) for of_feature in logits] == [3, 2]

    # A short example is padded with copies of its first choice, which have no share in the probability.
    for prediction, of_feature in zip(kind.predictions(examples, features, logits), logits, strict=True):
        shares = torch.tensor(of_feature).softmax(0)
        assert (prediction, kind.probability(prediction)) == (int(shares.argmax()), pytest.approx(float(shares.max())))


@pytest.mark.parametrize("family", FAMILIES)
def test_tags_are_those_of_first_pieces(encoder, family: str) -> None:
    words = [tuple(text.replace(".", " .").split()) for text in SENTENCES]
    examples = [TagExample(str(i), w, tuple((i + j) % 3 for j in range(len(w)))) for i, w in enumerate(words)]
    kind = kind_for(encoder(family), "tags", ("O", "B-X", "I-X"))
    features = kind.features(examples)
    model = model_for(encoder(family), kind)

    batch = batch_of(kind, features)
    expected = torch.full(batch["input_ids"].shape, IGNORED)
    for row, example in enumerate(examples):
        encoding = kind.tokenizer(
            list(example.words), is_split_into_words=True, padding="max_length", max_length=expected.shape[1]
        )
        previous = None
        for place, word in enumerate(encoding.word_ids()):
            if word is not None and word != previous:
                expected[row, place] = example.tags[word] if example.tags else IGNORED
            previous = word
    assert batch["labels"].tolist() == expected.tolist()

    with torch.inference_mode():
        best = model(**{name: values for name, values in batch.items() if name != "labels"}).logits.argmax(-1)
    predicted = kind.predictions(examples, features, logits_of(kind, model, features))
    assert [tag for tags in predicted for tag in tags] == best[expected != IGNORED].tolist()


def test_a_long_sentence_gets_all_its_tags(encoder) -> None:
    words = tuple(word for text in SENTENCES * 4 for word in text.split())
    tags = tuple(i % 2 for i in range(len(words)))
    kind = kind_for(encoder("bert"), "tags", ("O", "B-X"), max_length=16)
    features = kind.features([TagExample("0", words, tags)])
    assert len(features) > 4 and all(length_of(feature) <= 16 for feature in features)
    assert [word for feature in features for word in feature["words"]] == list(range(len(words)))
    assert [tag for f in features for tag in f["labels"] if tag != IGNORED] == list(tags)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 12))
def test_parts_hold_every_word_once_and_fit(pieces: list[int], room: int) -> None:
    cut = list(parts(pieces, room))
    assert [word for first, end in cut for word in range(first, end)] == list(range(len(pieces)))
    for first, end in cut:
        assert sum(pieces[first:end]) <= room or end == first + 1 or not any(pieces[first + 1 : end])
    for (first, end), (_, next_end) in pairwise(cut):
        assert sum(pieces[first:end]) + pieces[end] > room and next_end > end


CONTEXT = " ".join(SENTENCES * 6)


def target_of(feature: Feature) -> tuple[int, int]:
    return feature["start_positions"], feature["end_positions"]


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
        assert len(features) > 2 and all(length_of(feature) <= 40 for feature in features)

        seen = {place for f in features for span in f["offsets"] for place in range(*span)}
        assert {i for i, letter in enumerate(CONTEXT) if letter != " "} <= seen

        pointed = [f for f in features if target_of(f) != (f["classification"], f["classification"])]
        assert pointed, "an answer shorter than the shared tokens is whole in some window"
        for feature in pointed:
            first, last = (feature["offsets"][place] for place in target_of(feature))
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
            first, last = (feature["offsets"][place] for place in target_of(feature))
            if first[0] != OUTSIDE:
                pointed.append(context[first[0] : last[1]])
        assert pointed and set(pointed) == {word}


@pytest.mark.parametrize("family", FAMILIES)
def test_targets_of_spans_are_places_in_the_padded_row(encoder, family: str) -> None:
    kind = kind_for(encoder(family), "span", max_length=64)
    start = CONTEXT.index("letter")
    short = SpanExample("1", "What?", "The letter.", (Answer("letter", 4),), False)
    features = kind.features([span_example("letter", start), short])
    batch = batch_of(kind, features)
    for row, ids in enumerate(batch["input_ids"]):
        first, last = int(batch["start_positions"][row]), int(batch["end_positions"][row])
        if target_of(features[row])[0] != features[row]["classification"]:
            assert kind.tokenizer.decode(ids[first : last + 1]).strip() == "letter"


def test_no_answer_points_at_the_classification_token(encoder) -> None:
    for family in ("bert", "xlnet"):
        kind = kind_for(encoder(family), "span", max_length=64)
        question = f"What is a {kind.tokenizer.cls_token}?"  # a token of the text is not the one of the row
        features = kind.features([SpanExample("0", question, f"{CONTEXT} {kind.tokenizer.cls_token}", (), True)])
        for feature in features:
            place = feature["classification"]
            assert place == (0 if family == "bert" else length_of(feature) - 1)
            assert target_of(feature) == (place, place)
            assert feature["input_ids"][place] == kind.tokenizer.cls_token_id


def test_a_question_as_long_as_a_row_leaves_room_for_the_context(encoder, caplog, monkeypatch) -> None:
    """And is truncated without a warning of transformers that it is too long for the model."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    kind = kind_for(encoder("bert"), "span", max_length=32, stride=128)
    kind.tokenizer.model_max_length = 32
    features = kind.features([SpanExample("0", CONTEXT, CONTEXT, (Answer("letter", CONTEXT.index("letter")),), False)])
    assert all(length_of(feature) <= 32 for feature in features)
    assert any(target_of(feature)[0] != feature["classification"] for feature in features)
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
    found = best_span(np.array([starts, ends], np.float32).T, np.array(characters, np.int32), most)

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
    logits = [np.zeros((length_of(feature), 2), np.float32) for feature in features]
    place = next(i for i, (begin, _) in enumerate(features[1]["offsets"]) if begin != OUTSIDE)
    logits[1][place] = 3.0
    logits[0][0] = 1.0

    prediction = kind.predictions([example], features, logits)[0]
    begin, end = features[1]["offsets"][place]
    assert prediction.text == CONTEXT[begin:end]
    assert prediction.null_score == pytest.approx(0.0 - 6.0), "the lowest sum of all windows, 0 in the others"


@pytest.mark.parametrize(("family", "longest"), [("bert", 96), ("roberta", 94), ("modernbert", 96), ("xlnet", None)])
def test_rows_are_no_longer_than_the_encoder_s_positions(encoder, family: str, longest: int | None) -> None:
    config = AutoConfig.from_pretrained(encoder(family))
    assert longest_row(config) == longest
    if longest is None:
        return

    kind = kind_for(encoder(family), "sentence", ("a", "b"), longest, max_length=256)
    features = kind.features([TextExample("0", CONTEXT * 3, None, 0)])
    assert length_of(features[0]) == longest
    assert np.isfinite(logits_of(kind, model_for(encoder(family), kind), features)).all()


def test_a_tokenizer_of_a_decoder_is_refused(encoder, tmp_path: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder("roberta"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer).save_pretrained(tmp_path)
    shutil.copy(encoder("roberta") / "config.json", tmp_path)
    with pytest.raises(UsageError, match="Decoders"):
        open_tokenizer(str(tmp_path), "sentence")
