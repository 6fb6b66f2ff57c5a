"""Languages of documents: all kinds of script, and texts whose beginning is not what they are."""

from __future__ import annotations

import pytest

from pipeline.shard.detection import (
    SAMPLE_CHARACTERS,
    SAMPLES,
    UNKNOWN,
    detect_language,
    model_hash,
    sampled,
    shares_of_scripts,
)

# Article 1 of the Universal Declaration of Human Rights, as the United Nations publish it.
ARTICLE = {
    "en": "All human beings are born free and equal in dignity and rights. They are endowed with reason.",
    "de": "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und Gewissen begabt.",
    "fr": "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de raison.",
    "es": "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de razón.",
    "it": "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di ragione.",
    "tr": "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler.",
    "ru": "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и совестью.",
    "uk": "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і совістю.",
    "ar": "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا.",
    "hi": "सभी मनुष्यों को गौरव और अधिकारों के मामले में जन्मजात स्वतन्त्रता और समानता प्राप्त है।",
    "zh": "人人生而自由,在尊严和权利上一律平等。他们赋有理性和良心,并应以兄弟关系的精神相对待。",
    "ja": "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。",
    "th": "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ",
    "ko": "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다.",
}


@pytest.mark.parametrize("language", ARTICLE)
def test_a_sentence_is_known(language: str) -> None:
    found, confidence = detect_language(ARTICLE[language])
    assert found == language
    assert 0.6 < confidence <= 1
    assert confidence == round(confidence, 3)


UNKNOWN_LANGUAGES = {
    "Cherokee": "ᏂᎦᏓ ᎠᏂᏴᏫ ᏂᎨᎫᏓᎸᎾ ᎠᎴ ᎤᏂᏠᏱ ᎤᎾᏕᎿ ᏚᏳᎧᏛ ᎨᏒᎢ. ᎨᏥᏁᎳ ᎤᎾᏓᏅᏖᏗ ᎠᎴ ᎤᏃᏟᏍᏗ ᎠᎴ ᏌᏊ ᎨᏒ ᏧᏂᎸᏫᏍᏓᏁᏗ ᎠᎾᎵᏅᏟ ᎠᏓᏅᏙ ᎬᏗ.",
    "Yoruba": "Gbogbo ènìyàn ni a bí ní òmìnira; iyì àti ẹ̀tọ́ kọ̀ọ̀kan sì dọ́gba. Wọ́n ní ẹ̀bùn làákàyè àti ti ẹ̀rí-ọkàn.",
    "Syriac": "ܒܪܫܝܬ ܐܝܬܘܗܝ ܗܘܐ ܡܠܬܐ ܘܗܘ ܡܠܬܐ ܐܝܬܘܗܝ ܗܘܐ ܠܘܬ ܐܠܗܐ ܘܐܠܗܐ ܐܝܬܘܗܝ ܗܘܐ ܗܘ ܡܠܬܐ",
}


@pytest.mark.parametrize("text", UNKNOWN_LANGUAGES.values(), ids=UNKNOWN_LANGUAGES)
def test_a_guess_is_no_language(text: str) -> None:
    code, confidence = detect_language(text)
    assert code == UNKNOWN and confidence < 0.5


def test_scripts_are_known_by_their_characters() -> None:
    assert shares_of_scripts(ARTICLE["ja"])["ideographs"] > 0.9
    assert shares_of_scripts(ARTICLE["th"])["unspaced"] > 0.9
    assert not any(any(shares_of_scripts(text).values()) for text in UNKNOWN_LANGUAGES.values())


def test_a_license_at_the_beginning_does_not_decide() -> None:
    book = 20 * f"{ARTICLE['en']}\n" + 400 * f"{ARTICLE['fr']}\n"
    assert detect_language(book)[0] == "fr"
    assert len(sampled(book)) < SAMPLES * (SAMPLE_CHARACTERS + 1)


@pytest.mark.parametrize(
    "text", ["", " \n ", "1234", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace")]
)
def test_a_text_without_a_language_has_some(text: str) -> None:
    code, confidence = detect_language(text)
    assert code
    assert 0 <= confidence <= 1


def test_samples_are_from_the_whole_text() -> None:
    text = "".join(f"{number:05d}" for number in range(10_000))
    parts = sampled(text).split(" ")
    assert [len(part) for part in parts] == [SAMPLE_CHARACTERS] * SAMPLES
    assert (parts[0], parts[-1]) == (
        text[:SAMPLE_CHARACTERS],
        text[-SAMPLE_CHARACTERS - (len(text) - SAMPLE_CHARACTERS) % (SAMPLES - 1) :][:SAMPLE_CHARACTERS],
    )
    assert sampled("one\ntwo\t three") == "one two three"


def test_the_model_has_an_identity() -> None:
    assert model_hash() == "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"
