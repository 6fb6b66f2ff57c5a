"""Wikitext becomes the paragraphs that a reader of the page sees, in linear time whatever the markup is."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.readers.wikitext import MAX_DEPTH, NestingError, plain_text

TABLE = '{| class="wikitable"\n! A\n|-\n| cell || [[link]]\n{|\n| inner\n|}\n|}'

SHOWN = [
    ("italic-after-an-elision", "Dans l'''Iliade'' il lit.", "Dans l'Iliade il lit."),
    ("italic-after-an-elision-at-the-start", "L'''Odyssée'' et '''gras'''.", "L'Odyssée et gras."),
    ("bold-and-italic-that-end", "'''''Both''' italic'' none '''bold'''.", "Both italic none bold."),
    ("four-and-six-apostrophes", "a ''''b''' c ''''''d'''''.", "a 'b c 'd."),
    ("text-behind-a-table", "{|\n| a\n|}Text on the same line.", "Text on the same line."),
    ("text-behind-a-nested-table", "{|\n|\n{|\n| a\n|}in\n|}out", "out"),
    ("quotes", "'''Bold''' and ''italic'' and '''''both'''''.", "Bold and italic and both."),
    ("quotes-of-words", "It's the dogs' ''l'''''homme''' and ''''x''''.", "It's the dogs' lhomme and 'x'."),
    ("link", "[[Cat]]s and [[Dog|dogs]] and [[Fish#Eggs|eggs]].", "Cats and dogs and eggs."),
    ("pipe-trick", "[[Mercury (planet)|]], [[Help:Links|]] and [[Paris, Texas|]].", "Mercury, Links and Paris."),
    ("link-to-category", "See [[:Category:Cats]] and [[:File:A.png|a file]].", "See Category:Cats and a file."),
    ("link-to-title-with-colon", "[[2001: A Space Odyssey]] and [[Re:Zero]].", "2001: A Space Odyssey and Re:Zero."),
    ("link-over-lines", "[[not a\nlink]] here.", "not a link here."),
    ("interwiki", "A [[wikt:word|word]] here.", "A word here."),
    ("languages", "Text.\n[[de:Katze]]\n[[zh-yue:貓]]\n[[Kategorie:Tier|Katze]][[Категория:Кошки]]", "Text."),
    (
        "category-in-a-line",
        "Ein Text.[[Kategorie:Tier|Katze]] [[Категорія:Коти]] [[分类:猫]][[Catégorie : Chat]]",
        "Ein Text.",
    ),
    ("category", "Text. [[Category:Cats|*]]", "Text."),
    (
        "file",
        "[[File:A.jpg|thumb|A [[cat]] with {{nowrap|a [[tail]]}} and [[File:B.png]]]] Text.\n"
        "[[Datei:Ä.svg|mini|Eine [[Katze]]]]",
        "Text.",
    ),
    ("site", "See [https://x.org/a?b=c the site] and [http://x.org] and [//x.org y].", "See the site and and y."),
    ("site-in-link-brackets", "See [[http://x.org the site]].", "See the site."),
    ("template", "A {{a|b={{c|[[d]]}}|e}} word{{f}}.{{g}}", "A word."),
    ("template-in-link", "A [[cat|{{x|y}}small {{nowrap|[[a|black]] cat}}]] here.", "A small black cat here."),
    ("parameter", "A {{{1|{{PAGENAME}}}}} word {{{{{x}}}|y}}.", "A word."),
    (
        "template-of-a-character",
        "L{{'}}''Iliade'' {{ndash}} a{{nbsp}}b{{=}}c; ''Sun''{{'s}} d.",
        "L'Iliade – a b=c; Sun's d.",
    ),
    (
        "template-around-text",
        "{{lang|fr|''le [[chat]]''}}, {{lang-de|Katze}}, {{Transl|ru|ISO|kot}}, {{small|1=a = b}}.",
        "le chat, Katze, kot, a = b.",
    ),
    ("template-in-template", "A {{nowrap|{{convert|5|km|mi|abbr=on}} {{cn}}long}} road.", "A 5 km long road."),
    (
        "measures",
        "{{convert|5|to|10|km2|sqmi|0}}, {{convert|6|ft|2|in|cm}}, {{cvt|3|x|4.5|m}}, {{val|2.5|u=kg}}, "
        "{{convert|12950|km}}, {{convert|-|}}",
        "5 to 10 km², 6 ft 2 in, 3 × 4.5 m, 2.5 kg, 12,950 km,",
    ),
    (
        "numbers",
        "{{frac|1|2}}, {{frac|3|1|2}}, {{frac|4}}, {{chem|H|2|O}}, {{formatnum:1234}}, {{c.|1066}}, "
        "{{As of|2010|5}}, {{as of|2009|lc=y}}.",
        "1/2, 3 1/2, 1/4, H2O, 1234, c. 1066, As of May 2010, as of 2009.",
    ),
    (
        "quotation",
        "He said:{{quote|That is [[one]] step.|Armstrong}}Then:\n{{blockquote|text=Two.|sign=x}}",
        "He said:\n\nThat is one step.\n\nThen:\n\nTwo.",
    ),
    ("template-large-number", "A {{nowrap|1=green|123456789=x}} word.", "A green word."),
    ("template-without-arguments", "A {{lang}}{{convert}}{{nowrap|}}{{frac}}{{as of}}{{quote}} word.", "A word."),
    ("template-in-quotes", "a ''{{GGY}}'' (UK), '''{{x}}''' b ''<ref>c</ref>'' d.", "a  (UK),  b  d."),
    ("template-over-lines", "{{Infobox\n| a = [[b]]\n| c = {{d\n|e}}\n}}\nText.", "Text."),
    ("table-in-template", "{{box|\n" + TABLE + "\n}}\nText.", "Text."),
    (
        "gap",
        "Cat ({{audio|x.ogg}}; {{IPA|kat}}) sat {{x}}, then ({{y}}; born 1950) left <ref>z</ref>.",
        "Cat sat, then (born 1950) left.",
    ),
    ("table", "Before.\n" + TABLE + "\nAfter.", "Before.\n\nAfter."),
    ("indented-table", ":{|\n|a\n|}\nAfter.", "After."),
    ("table-closed-by-a-template", "{| class=x\n| cell\n{{end}}\nlost\n== Next ==\nText.", "Next\n\nText."),
    ("ref", 'One.<ref name="a">B [[c]] {{cite|d}}</ref> Two.<ref name=a /> Three.<references />', "One. Two. Three."),
    ("ref-without-end", "One.<ref>Two. Three.", "One.Two. Three."),
    ("ref-with-marks", "One.<ref>[[a</ref> Two {{x<!-- }} -->}}.", "One. Two."),
    ("comment", "One <!-- two\n\nthree -->four.\n<!-- line -->\nFive.", "One four. Five."),
    ("comment-without-end", "One. <!-- two", "One."),
    ("nowiki", "Write <nowiki>[[x]] ''y'' &lt; {{z}}</nowiki>, ''a''<nowiki/>'s.", "Write [[x]] ''y'' < {{z}}, a's."),
    ("math", "Let <math>x</math> be <chem>H2O</chem>, <code>f(x)</code> m<sup>2</sup>.", "Let be, f(x) m2."),
    (
        "code",
        '<syntaxhighlight lang="c">\nint x;\n</syntaxhighlight>\n<pre>p</pre>Text <source lang=c inline>y</source>.',
        "Text y.",
    ),
    ("gallery", "<gallery mode=packed>\nA.jpg|A [[cat]]\n</gallery>\nText.", "Text."),
    (
        "html",
        '<div class="x">One<br />two <span style="a">three</span></div>\n<blockquote>Four.</blockquote>',
        "One\n\ntwo three\n\nFour.",
    ),
    ("not-html", "If a <n and c> d, 1 < 2 <foo>.", "If a <n and c> d, 1 < 2 <foo>."),
    ("tag-without-end", "One <i>two <small>three.", "One two three."),
    (
        "entities",
        "A&nbsp;b &amp; c &lt;d&gt; &#8211; &#x41; AT&T &copy &bogus; &#xD800;",
        "A\xa0b & c <d> – A AT&T &copy &bogus; \ufffd",
    ),
    ("switches", "__NOTOC__ Text __INHALTSVERZEICHNIS__ with __init__.\n__目次__", "Text  with __init__."),
    ("lists", "* One\n** Two\n# Three\n:Four\n*: Five", "One\n\nTwo\n\nThree\n\nFour\n\nFive"),
    ("definitions", "; Term : Its meaning\n;Other\n: More: or less", "Term\n\nIts meaning\n\nOther\n\nMore: or less"),
    ("paragraphs", "One\ntwo.\n\nThree.\n----\nFour.\n\n\n Five.", "One two.\n\nThree.\n\nFour.\n\nFive."),
    ("headings", "= A =\n== B ==\nText.\n=== C ===\n== D ==\n=== E ===\n{{x}}\n", "A\n\nB\n\nText."),
    (
        "headings-of-levels",
        "== A ==\n=== B ===\n* Item\n== C ==\n=== D ===\n== E ===\nText.",
        "A\n\nB\n\nItem\n\nE =\n\nText.",
    ),
    ("not-a-heading", "=\n=====\na = b\n= x", "a = b\n\n= x"),
    ("right-to-left", "'''القط''' هو [[حيوان|الحيوان]].\n[[تصنيف:قطط]]", "القط هو الحيوان."),
    ("hebrew", "[[קובץ:Cat.jpg|ממוזער|חתול]]'''חתול''' {{אנ|cat}}הוא.", "חתול הוא."),
    ("variants", "-{zh-hans:软件; zh-hant:軟體}- -{T|x}--{人}-", "软件 人"),
    ("unclosed", "{{One [[two ''three {| four", "One two three {| four"),
    ("closing-alone", "One }} two ]] three |}\n|}\n| cell", "One  two  three |}"),
    ("nothing", "{{x}}\n[[Category:A]]\n== A ==\n* \n—", ""),
]


@pytest.mark.parametrize(("written", "shown"), [row[1:] for row in SHOWN], ids=[row[0] for row in SHOWN])
def test_a_reader_sees(written: str, shown: str) -> None:
    assert plain_text(written) == shown


def test_what_is_nested_too_deeply_is_an_error() -> None:
    assert plain_text("{{" * (MAX_DEPTH // 2) + "}}" * (MAX_DEPTH // 2) + "Text.") == "Text."
    for mark in ("[[", "{{a"):
        with pytest.raises(NestingError):
            plain_text(mark * (MAX_DEPTH + 1))


MARKS = ["{{", "}}", "{{{", "}}}", "[[", "]]", "[[a|b]]", "[[a:b]]", "[[File:x.jpg|", "{{a}}", "{{a|", "{{quote|"]
MARKS += ["{{nowrap|", "({{a}}", "<ref>", "</ref>", "<ref/>", "<!--", "-->", "<nowiki>", "<b", "<br>", "''", "'''"]
MARKS += ["{|", "|}", "|", "|-", "=", "==", ";", ":", "*", "-", "-{", "}-", "__", "__A__", "[http://x", "]", "&"]
MARKS += ["&amp;", "&#", "<math>", "(", ")", ",", "word"]


def seconds(text: str) -> float:
    start = time.process_time()
    with contextlib.suppress(NestingError):
        plain_text(text)
    return time.process_time() - start


@pytest.mark.parametrize("mark", [*MARKS, "[[" * 99 + "a" + "]]" * 99, "{|\n= a =", "; a : b", "({{a}} ; "])
def test_time_grows_with_the_length_alone(mark: str) -> None:
    repeated = [mark, mark + " ", mark + "\n"]
    # Of quadratic time, ten times the text would take a hundred times as long.
    for unit in repeated:
        few = 10_000 // len(unit)
        assert seconds(unit * few * 10) < 30 * max(0.01, seconds(unit * few)), unit
    # A long text before the marks.
    assert seconds("a" * 400_000 + repeated[1] * 10_000) < 30 * max(
        0.01, seconds("a" * 40_000 + repeated[1] * 1_000)
    ), mark
    for run in ("a", " ", "a ", ".", ",", "\n"):
        few = 10_000 // len(run)
        assert seconds(mark + run * few * 10) < 30 * max(0.01, seconds(mark + run * few)), (mark, run)


@pytest.mark.parametrize("name", ["quote", "nowrap", "convert", "as of", "frac", "val", "chem", "lang"])
@pytest.mark.parametrize("run", ["a", " ", "1", "1|", "a=", "=", "|", "1|-|", "|to", "9|ft|", "\n", "[[a]]", "{{'}}"])
def test_arguments_of_a_template_take_linear_time(name: str, run: str) -> None:
    few = 10_000 // len(run)
    few_seconds = seconds(f"{{{{{name}|{run * few}}}}}")
    assert seconds(f"{{{{{name}|{run * few * 10}}}}}") < 30 * max(0.01, few_seconds)


@given(st.lists(st.sampled_from([*MARKS, "\n", "\n\n", " ", "é"]), max_size=60).map("".join))
@settings(max_examples=200)
def test_any_markup_becomes_paragraphs_without_marks_of_the_steps(text: str) -> None:
    shown = plain_text(text)
    assert not set(shown) & set("\x01\x02\x03\x04")
    assert all(block.strip() for block in shown.split("\n\n")) or not shown
