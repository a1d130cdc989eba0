"""The text of a growing answer: pieces that no later token changes, together the whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from quadriga.engine.models.image_text.generation import IncrementalDetokenizer, TextFiles

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTERS = "é你🎉"


def sentencepiece():
    return decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )


KINDS = {
    "byte level": (BYTES, decoders.ByteLevel()),
    "byte fallback": (["▁a", "▁", "b", "你", *FALLBACK], sentencepiece()),
    "word pieces": (["do", "##ing", "n", "'", "t", ".", ",", "not", "s"], decoders.WordPiece()),
    "metaspace": (["▁a", "▁", "b", "▁▁", "é"], decoders.Metaspace()),
    "end of word": (["a</w>", "b", "c</w>", "é"], decoders.BPEDecoder("</w>")),
    "none": (["a", "b", "c"], None),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    by_kind = {}
    for kind, (words, decoder) in KINDS.items():
        vocabulary = {word: index for index, word in enumerate([*words, "<end>"])}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, words[0]))
        if decoder is not None:
            tokenizer.decoder = decoder
        tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
        folder = tmp_path_factory.mktemp("tokenizer")
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "generation_config.json").write_text(f'{{"eos_token_id": {len(words)}}}')
        by_kind[kind] = TextFiles(folder, {})
    return by_kind


def pieces(files, tokens):
    text = IncrementalDetokenizer(files)
    texts = [text.append(tokens[:count]) for count in range(1, len(tokens) + 1)]
    return [*texts, text.append(tokens, ended=True)]


def tokens_of(kind):
    words, _ = KINDS[kind]
    vocabulary_ids = st.lists(st.integers(0, len(words)), max_size=12)
    if "<0x00>" not in words and len(words) < 256:
        return vocabulary_ids
    names = {name: index for index, name in enumerate(words)}
    as_name = FALLBACK if "<0x00>" in words else by_byte()
    texts = st.text(st.sampled_from("a " + CHARACTERS), max_size=6)
    return vocabulary_ids | texts.map(lambda text: [names[as_name[byte]] for byte in text.encode()])


def by_byte():
    """Name each byte as GPT-2 does, by encoding the characters that hold it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_pieces_together_are_the_text_whatever_the_tokens(files, kind, data):
    tokens = data.draw(tokens_of(kind))
    texts = pieces(files[kind], tokens)
    assert "".join(texts) == files[kind].decode(tokens)


@pytest.mark.parametrize("character", CHARACTERS)
@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_a_character_comes_whole(files, kind, character):
    names = by_byte() if kind == "byte level" else FALLBACK
    words, _ = KINDS[kind]
    tokens = [words.index(names[byte]) for byte in character.encode()]
    next_token = words.index("b")
    assert [piece for piece in pieces(files[kind], [*tokens, next_token]) if piece] in (
        [character, "b"],
        [f"{character}b"],
    )


def test_words_come_as_their_tokens_do(files):
    assert pieces(files["none"], [0, 1, 2, 3]) == ["a", " b", " c", "", ""]
