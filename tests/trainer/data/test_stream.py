"""The micro-batches of each step: which rows, which masks, on which rank, in which form, and read early."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from schemas import shards
from schemas.errors import ClozelineError, DataError
from schemas.manifest import read_manifest
from schemas.masking import KINDS, Kind, Masking
from trainer.config.load import load_recipe
from trainer.data.batches import BatchShape, shape_for
from trainer.data.folder import PairFolder, open_folders
from trainer.data.order import build_sources
from trainer.data.share import RankShare, share_of
from trainer.data.stream import BatchFormat, MaskingSchedule, Stream, build_stream
from trainer.models.batch import IGNORE_INDEX, PackedBatch


@pytest.fixture
def folder(pairs: Path) -> Iterator[PairFolder]:
    opened = PairFolder(str(pairs))
    yield opened
    opened.close()


WHOLE_WORDS = MaskingSchedule(Masking("whole_word"))


@contextmanager
def streaming(
    pairs: Path | list[Path],
    rank: int = 0,
    world_size: int = 1,
    micro_batches: int = 1,
    size: int = 24,
    by_tokens: bool = False,
    schedule: MaskingSchedule = WHOLE_WORDS,
    shape: BatchShape | None = None,
    weights: list[float] | None = None,
) -> Iterator[Stream]:
    folders = [PairFolder(str(path)) for path in (pairs if isinstance(pairs, list) else [pairs])]
    sources = build_sources(folders, weights, 3, by_tokens)
    share = RankShare(rank, world_size, micro_batches, size)
    stream = Stream(sources, share, schedule, 3, BatchFormat(shape))
    yield stream
    stream.close()


def rows_of(batch: PackedBatch) -> list[str]:
    """Each sequence with its segments, masks and labels, in a form that can be compared."""
    found = []
    for sequence, label in enumerate(batch.pair_labels_S.tolist()):
        tokens = (batch.sequence_T == sequence).nonzero().flatten()
        real = batch.labels_K != IGNORE_INDEX
        masks = ((batch.sequence_T[batch.masked_positions_K] == sequence) & real).nonzero().flatten()
        places = batch.positions_T[batch.masked_positions_K[masks]].tolist()
        truths = batch.labels_K[masks].tolist()
        seen = batch.ids_T[tokens].tolist()
        segments = batch.segments_T[tokens].tolist()
        found.append(json.dumps([seen, segments, places, truths, label]))
    return found


def global_batches(pairs: Path, steps: range | tuple[int, ...], world_size: int, micro_batches: int, **options):
    """{step: the rows of all ranks, sorted}."""
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(streaming(pairs, rank, world_size, micro_batches, **options))
            for rank in range(world_size)
        ]
        return {step: sorted(row for rank in ranks for b in rank.batch(step) for row in rows_of(b)) for step in steps}


@pytest.mark.parametrize("options", [{}, {"size": 700, "by_tokens": True}], ids=["rows", "tokens"])
@pytest.mark.parametrize(("world_size", "micro_batches"), [(1, 3), (2, 1), (2, 3), (3, 1), (4, 1), (8, 1)])
def test_global_batches_do_not_depend_on_the_ranks(pairs: Path, world_size, micro_batches, options) -> None:
    steps = (0, 1, 17, 40)
    assert global_batches(pairs, steps, world_size, micro_batches, **options) == global_batches(
        pairs, steps, 1, 1, **options
    )


@pytest.mark.parametrize("options", [{}, {"size": 700, "by_tokens": True}], ids=["rows", "tokens"])
def test_resumes_of_resumes_on_other_ranks_equal_the_unbroken_stream(pairs: Path, options) -> None:
    """At the start, in an epoch, at its edge and at the end, each time with another number of ranks."""
    totals = read_manifest(str(pairs), "pairs").totals
    epoch = totals["tokens" if options else "rows"] // options.get("size", 24)
    whole = global_batches(pairs, range(2 * epoch + 1), 1, 1, **options)
    places = [0, 1, epoch // 2, epoch - 1, epoch, epoch + 1, 2 * epoch, 2 * epoch + 1]
    for start, stop, world_size in zip(places, places[1:], [1, 2, 3, 4, 8, 2, 1], strict=False):
        found = global_batches(pairs, range(start, stop), world_size, 1, **options)
        assert found == {step: whole[step] for step in range(start, stop)}


@pytest.mark.parametrize("kind", KINDS)
def test_masks_differ_between_epochs_and_rows_do_not(pairs: Path, kind: Kind) -> None:
    size = read_manifest(str(pairs), "pairs").totals["rows"]
    with streaming(pairs, size=size, schedule=MaskingSchedule(Masking(kind))) as one:
        first, second = (one.batch(epoch)[0] for epoch in (0, 1))

    def restored(batch: PackedBatch) -> list[str]:
        ids = batch.ids_T.clone()
        ids[batch.masked_positions_K] = batch.labels_K
        return sorted(str(ids[batch.sequence_T == s].tolist()) for s in range(len(batch.sequence_starts_S)))

    assert restored(first) == restored(second)
    assert sorted(rows_of(first)) != sorted(rows_of(second))


def test_the_first_rows_are_what_they_were() -> None:
    """Rows and masks of a resumed run depend on it: a change here is a change of major version."""
    pairs = Path(__file__).parents[2] / "golden" / "v2" / "pairs"
    with streaming(pairs, size=4) as one:
        rows = [row for step in range(16) for row in rows_of(one.batch(step)[0])]
    assert hashlib.sha256("\n".join(rows).encode()).hexdigest() == GOLDEN_64_ROWS


GOLDEN_64_ROWS = "4d9f6c4f9dae9eda130983fcf2b1354a8fb68f1123be653acb8cf40745b9f883"


def test_stored_masks_are_used_as_they_are(command, text: Path, vocab: Path, tmp_path: Path) -> None:
    """Another variant each epoch; an epoch's edge inside a batch changes it row by row."""
    made = ("--text", text, "--vocab", vocab, "--output", tmp_path / "p", "--objective", "sop", "--max_length", 40)
    assert command("pairs", *made, "--static_masks", 2).returncode == 0
    found = read_manifest(str(tmp_path / "p"), "pairs")
    schema = shards.pairs_schema(found.options["vocabulary_size"], static_masks=True)
    expected: list[Counter[str]] = [Counter(), Counter()]
    for shard in found.shards:
        for row in shards.decode_table((tmp_path / "p" / shard.path).read_bytes(), "x", schema).to_pylist():
            for variant in (0, 1):
                positions = row["mask_positions"][variant]
                ids = list(row["input_ids"])
                truths = [ids[i] for i in positions]
                for i, token in zip(positions, row["mask_tokens"][variant], strict=True):
                    ids[i] = token
                segments = [int(i >= row["segment_b_start"]) for i in range(len(ids))]
                expected[variant][json.dumps([ids, segments, positions, truths, row["pair_label"]])] += 1
    with streaming(tmp_path / "p", size=24, schedule=MaskingSchedule(Masking(), stored=True)) as one:
        rows = [row for step in range(-(-3 * found.totals["rows"] // 24)) for row in rows_of(one.batch(step)[0])]
    n = found.totals["rows"]
    assert [Counter(rows[i * n : (i + 1) * n]) for i in range(3)] == [expected[0], expected[1], expected[0]]


def test_a_schedule_of_mask_shares(pairs: Path) -> None:
    schedule = MaskingSchedule(Masking(prob=0.5), final_prob=0.1, last_number=10)
    with streaming(pairs, size=200, schedule=schedule) as one:
        shares = [
            len(batch.masked_positions_K) / len(batch.ids_T) for step in (0, 5, 10, 50) for batch in one.batch(step)
        ]
    assert shares == pytest.approx([0.5, 0.3, 0.1, 0.1], abs=0.02)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("by_tokens", [False, True])
def test_one_shape_a_step_and_the_same_rows(pairs: Path, by_tokens: bool, padded: bool) -> None:
    size = 1200 if by_tokens else 24
    most = -(-(size + 32) // 2) + 32 if by_tokens else 12 * 32
    shape = shape_for(most, 25.0, 32, 0.15, padded)
    plain = global_batches(pairs, range(6), 2, 1, size=size, by_tokens=by_tokens)
    shapes = set()
    with ExitStack() as stack:
        ranks = [stack.enter_context(streaming(pairs, rank, 2, 1, size, by_tokens, shape=shape)) for rank in range(2)]
        for step in range(6):
            batches = [batch for rank in ranks for batch in rank.batch(step)]
            real = [row for batch in batches for row in rows_of(batch) if is_real(row)]
            assert sorted(real) == plain[step]
            for batch in batches:
                shapes.add(
                    (
                        batch.ids_T.shape,
                        batch.sequence_starts_S.shape,
                        batch.masked_positions_K.shape,
                        batch.pair_labels_S.shape,
                    )
                )
                fillers = batch.ids_T[batch.tokens :]
                assert (fillers == 0).all() and batch.tokens <= len(batch.ids_T)
                assert int(batch.positions_T.max()) < 32 == batch.longest
                assert (batch.sequence_T.bincount() <= 32).all()
    assert padded or len(shapes) == 1


def is_real(row: str) -> bool:
    """Whether a sequence is not padding."""
    return any(json.loads(row)[0])


@pytest.mark.parametrize("change", ["cut", "flip", "gone"])
def test_a_bad_shard_is_named_before_a_row_is_trained_on(pairs: Path, tmp_path: Path, change: str) -> None:
    copy = tmp_path / "pairs"
    (copy / "vocabulary").mkdir(parents=True)
    for path in [*pairs.glob("*.*"), *(pairs / "vocabulary").iterdir()]:
        (copy / path.relative_to(pairs)).write_bytes(path.read_bytes())
    shard = sorted(copy.glob("*.arrow"))[1]
    data = bytearray(shard.read_bytes())
    if change == "gone":
        shard.unlink()
    else:
        data[len(data) // 3] ^= 4
        shard.write_bytes(data[:-5] if change == "cut" else data)
    with streaming(copy) as damaged, pytest.raises(DataError, match=shard.name):
        damaged.batch(0)


def test_a_foreign_vocabulary_in_the_folder_is_refused(pairs: Path, tmp_path: Path) -> None:
    (tmp_path / "vocabulary").mkdir()
    (tmp_path / "manifest.json").write_bytes((pairs / "manifest.json").read_bytes())
    content = json.loads((pairs / "vocabulary" / "tokenizer.json").read_text())
    content["normalizer"] = None
    (tmp_path / "vocabulary" / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="but the pairs are of"):
        PairFolder(str(tmp_path))


@pytest.mark.gpu
def test_batches_on_a_gpu_are_those_of_the_cpu(pairs: Path) -> None:
    with streaming(pairs) as here:
        sources = build_sources([PairFolder(str(pairs))], None, 3, False)
        on_first_gpu = BatchFormat(device=torch.device("cuda", 0))
        there = Stream(sources, RankShare(0, 1, 1, 24), WHOLE_WORDS, 3, on_first_gpu)
        for step in range(4):
            on_cpu = here.batch(step)[0].tensors()
            on_gpu = there.batch(step)[0].tensors()
            assert all(on_gpu[name].is_cuda and torch.equal(on_gpu[name].cpu(), on_cpu[name]) for name in on_cpu)
        there.close()


def test_causal_batches_predict_each_next_token(pairs: Path) -> None:
    """Of its own row: the last token of a row predicts nothing. Ids are as they are stored, and pairs have no label."""
    shape = shape_for(2000, 30.0, 64, 1.0, padded=False)
    for batch_format in (BatchFormat(causal=True), BatchFormat(shape, causal=True)):
        folder = PairFolder(str(pairs))
        sources = build_sources([folder], None, 3, False)
        stream = Stream(sources, RankShare(0, 1, 1, 24), MaskingSchedule(Masking()), 3, batch_format)
        (batch,) = stream.batch(0)
        stream.close()
        folder.close()

        assert batch.causal and batch.paired == 0 and (batch.pair_labels_S == IGNORE_INDEX).all()
        positions_K = batch.masked_positions_K[: batch.predicted]
        assert (batch.labels_K[: batch.predicted] == batch.ids_T[positions_K + 1]).all()
        assert (batch.labels_K[batch.predicted :] == IGNORE_INDEX).all()
        assert (batch.sequence_T[positions_K] == batch.sequence_T[positions_K + 1]).all()
        assert batch.predicted == batch.tokens - 24
        assert not (batch.ids_T[: batch.tokens] == folder.vocabulary.special_id("mask")).any()


# Read early


OURS = torch.device("cuda", 3)


def test_the_loader_s_thread_sets_no_other_device(pairs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.stream ends by setting the device of the thread again, which is GPU 0 in a new one."""
    current = threading.local()
    touched: set[int] = set()

    def set_device(device: torch.device) -> None:
        current.device = device
        touched.add(device.index)

    @contextmanager
    def on_stream(stream: torch.device) -> Iterator[None]:
        before = getattr(current, "device", torch.device("cuda", 0))
        set_device(stream)
        yield
        set_device(before)

    monkeypatch.setattr(torch.cuda, "Stream", lambda device: SimpleNamespace(device=device, record_event=lambda: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: on_stream(stream.device))
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(PackedBatch, "pinned", lambda self: self)
    monkeypatch.setattr(PackedBatch, "to", lambda self, device: self)

    sources = build_sources([PairFolder(str(pairs))], None, 3, False)
    stream = Stream(sources, RankShare(0, 1, 1, 24), MaskingSchedule(Masking()), 3, BatchFormat(device=OURS))
    for step in range(3):
        stream.batch(step)
    stream.close()
    assert touched == {OURS.index}


# The stream of a recipe


TOKENS = ["batch.global_batch=none", "batch.micro_batch=none", "batch.global_tokens=600", "batch.micro_tokens=100"]


def build(pairs: object, *changes: str) -> None:
    """As far as a run on two ranks goes before it builds its model."""
    recipe = load_recipe("tests/recipes/small_bert.toml", [f"data.pairs={pairs}", *changes])
    folders = open_folders(recipe)
    build_stream(recipe, folders, share_of(recipe, 0, 2, folders)).close()


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["masking.stored=true", "masking.prob=0.15"], 3, "holds no masks for masking.stored"),
        (["batch.global_batch=8000000"], 3, "fewer than one global batch of 8,000,000"),
        (["model.max_position_embeddings=16"], 3, "rows of up to 32 tokens, but model.max_position_embeddings is 16"),
        (TOKENS, 2, "Give at least 128"),
        (["data.pairs=[]"], 2, "names no folder"),
        (["data.vocab={byte_vocab}"], 3, "Rebuild the pairs with it, or remove data.vocab"),
        (['data.pairs=["{pairs}", "{byte_rows}"]'], 3, "Rebuild one with the other's"),
        (["batch.global_batch=15", "batch.micro_batch=15"], 2, "cut into micro-batches of 15 rows on 2 ranks"),
    ],
)
def test_what_does_not_fit_is_refused(
    pairs: Path, byte_vocab: Path, byte_rows: Path, changes: list[str], code: int, message: str
) -> None:
    build(pairs)
    with pytest.raises(ClozelineError, match=message) as caught:
        build(pairs, *(change.format(pairs=pairs, byte_vocab=byte_vocab, byte_rows=byte_rows) for change in changes))
    assert caught.value.exit_code == code
