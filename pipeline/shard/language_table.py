"""The languages that `--language` accepts, as data for languages.py.

One language per line: code, ISO 639-3 codes, rules, English name.

    code        of ISO 639-1, or of ISO 639-3 if there is none
    ISO 639-3   the three-letter code; if there are two, separated by a slash, the second is the bibliographic code of
                ISO 639-2
    rules       code of the language whose rules split the sentences. sentencex has its own rules for some thirty
                languages, uses those of a related language for others, and those of English for the rest. The column
                was measured with version 1.0.32 over 23,000 possible abbreviations. Ideographic full stops are rules
                of this package (sentences.py) and serve all Chinese languages.
"""

from __future__ import annotations

TABLE = """
aa aar en Afar
ab abk ru Abkhazian
ace ace en Acehnese
ady ady en Adyghe
ae ave en Avestan
af afr en Afrikaans
ak aka en Akan
am amh am Amharic
an arg es Aragonese
ang ang en Old English
ar ara ar Arabic
arz arz ar Egyptian Arabic
as asm en Assamese
ast ast es Asturian
av ava ru Avar
awa awa hi Awadhi
ay aym es Aymara
az aze en Azerbaijani
azb azb en South Azerbaijani
ba bak ru Bashkir
ban ban en Balinese
bar bar de Bavarian
bcl bcl en Central Bikol
be bel en Belarusian
bg bul bg Bulgarian
bho bho en Bhojpuri
bi bis en Bislama
bjn bjn en Banjar
bm bam fr Bambara
bn ben bn Bengali
bo bod/tib en Tibetan
bpy bpy bn Bishnupriya
br bre en Breton
bs bos en Bosnian
bug bug en Buginese
bxr bxr ru Russia Buriat
ca cat ca Catalan
cdo cdo zh Eastern Min
ce che ru Chechen
ceb ceb en Cebuano
ch cha en Chamorro
ckb ckb en Central Kurdish
co cos it Corsican
cop cop en Coptic
cr cre en Cree
crh crh en Crimean Tatar
cs ces/cze cs Czech
csb csb pl Kashubian
cu chu en Church Slavonic
cv chv ru Chuvash
cy cym/wel en Welsh
da dan da Danish
de deu/ger de German
diq diq en Zazaki
dsb dsb de Lower Sorbian
dv div en Dhivehi
dz dzo en Dzongkha
ee ewe en Ewe
el ell/gre el Greek
en eng en English
eo epo en Esperanto
es spa es Spanish
et est en Estonian
eu eus/baq en Basque
ext ext es Extremaduran
fa fas/per en Persian
ff ful en Fula
fi fin fi Finnish
fj fij en Fijian
fo fao en Faroese
fr fra/fre fr French
frp frp fr Arpitan
frr frr de North Frisian
fur fur it Friulian
fy fry en West Frisian
ga gle en Irish
gag gag en Gagauz
gan gan zh Gan Chinese
gd gla en Scottish Gaelic
gl glg pt Galician
gn grn es Guarani
gom gom en Goan Konkani
got got en Gothic
grc grc en Ancient Greek
gsw gsw de Swiss German
gu guj gu Gujarati
gv glv en Manx
ha hau en Hausa
hak hak zh Hakka Chinese
haw haw en Hawaiian
he heb en Hebrew
hi hin hi Hindi
hif hif en Fiji Hindi
hil hil en Hiligaynon
ho hmo en Hiri Motu
hr hrv en Croatian
hsb hsb de Upper Sorbian
ht hat fr Haitian Creole
hu hun en Hungarian
hy hye/arm hy Armenian
hz her en Herero
ia ina en Interlingua
id ind en Indonesian
ie ile en Interlingue
ig ibo en Igbo
ii iii en Sichuan Yi
ik ipk en Inupiaq
ilo ilo en Ilocano
inh inh ru Ingush
io ido en Ido
is isl/ice en Icelandic
it ita it Italian
iu iku en Inuktitut
ja jpn ja Japanese
jam jam en Jamaican Creole English
jbo jbo en Lojban
jv jav en Javanese
ka kat/geo en Georgian
kab kab fr Kabyle
kbd kbd en Kabardian
kg kon en Kongo
ki kik en Kikuyu
kj kua en Kuanyama
kk kaz kk Kazakh
kl kal da Greenlandic
km khm en Khmer
kn kan kn Kannada
ko kor en Korean
koi koi ru Komi-Permyak
kr kau en Kanuri
krc krc ru Karachay-Balkar
ks kas en Kashmiri
ksh ksh de Colognian
ku kur en Kurdish
kv kom ru Komi
kw cor en Cornish
ky kir en Kyrgyz
la lat en Latin
lad lad es Ladino
lb ltz de Luxembourgish
lbe lbe ru Lak
lez lez ru Lezghian
lfn lfn en Lingua Franca Nova
lg lug en Ganda
li lim nl Limburgish
lij lij it Ligurian
lmo lmo it Lombard
ln lin fr Lingala
lo lao en Lao
lt lit en Lithuanian
ltg ltg en Latgalian
lu lub en Luba-Katanga
lv lav en Latvian
lzh lzh zh Literary Chinese
mad mad en Madurese
mai mai hi Maithili
mdf mdf ru Moksha
mg mlg fr Malagasy
mh mah en Marshallese
mhr mhr ru Eastern Mari
mi mri/mao en Maori
min min en Minangkabau
mk mkd/mac en Macedonian
ml mal ml Malayalam
mn mon en Mongolian
mni mni en Manipuri
mr mar hi Marathi
mrj mrj ru Western Mari
ms msa/may en Malay
mt mlt en Maltese
mwl mwl pt Mirandese
my mya/bur my Burmese
myv myv ru Erzya
na nau en Nauru
nan nan zh Southern Min
nap nap it Neapolitan
nb nob en Norwegian Bokmal
nd nde en North Ndebele
nds nds de Low German
ne nep en Nepali
new new en Newari
ng ndo en Ndonga
nl nld/dut nl Dutch
nn nno en Norwegian Nynorsk
no nor en Norwegian
nov nov en Novial
nr nbl en South Ndebele
nv nav en Navajo
ny nya en Chichewa
oc oci ca Occitan
oj oji en Ojibwe
olo olo fi Livvi
om orm en Oromo
or ori en Odia
os oss ru Ossetian
pa pan pa Punjabi
pag pag en Pangasinan
pam pam en Kapampangan
pap pap en Papiamento
pcd pcd fr Picard
pfl pfl de Palatine German
pi pli en Pali
pl pol pl Polish
pms pms it Piedmontese
pnb pnb en Western Punjabi
ps pus en Pashto
pt por pt Portuguese
qu que es Quechua
rm roh de Romansh
rmy rmy en Vlax Romani
rn run en Kirundi
ro ron/rum en Romanian
ru rus ru Russian
rue rue uk Rusyn
rw kin en Kinyarwanda
sa san hi Sanskrit
sah sah ru Yakut
sat sat en Santali
sc srd en Sardinian
scn scn it Sicilian
sco sco en Scots
sd snd en Sindhi
se sme en Northern Sami
sg sag fr Sango
sgs sgs en Samogitian
sh hbs en Serbo-Croatian
shn shn en Shan
si sin en Sinhala
sk slk/slo cs Slovak
sl slv en Slovenian
sm smo en Samoan
smn smn fi Inari Sami
sn sna en Shona
so som en Somali
sq sqi/alb en Albanian
sr srp en Serbian
ss ssw en Swati
st sot en Southern Sotho
stq stq de Saterfriesisch
su sun en Sundanese
sv swe en Swedish
sw swa en Swahili
szl szl pl Silesian
ta tam ta Tamil
te tel te Telugu
tet tet pt Tetum
tg tgk en Tajik
th tha en Thai
ti tir en Tigrinya
tk tuk en Turkmen
tl tgl en Tagalog
tn tsn en Tswana
to ton en Tongan
tpi tpi en Tok Pisin
tr tur en Turkish
ts tso en Tsonga
tt tat ru Tatar
tw twi en Twi
ty tah fr Tahitian
tyv tyv ru Tuvinian
udm udm ru Udmurt
ug uig en Uyghur
uk ukr uk Ukrainian
und und en Undetermined
ur urd en Urdu
uz uzb en Uzbek
ve ven en Venda
vec vec it Venetian
vep vep en Veps
vi vie en Vietnamese
vls vls nl West Flemish
vo vol en Volapuk
vro vro en Voro
wa wln fr Walloon
war war en Waray
wo wol fr Wolof
wuu wuu zh Wu Chinese
xal xal ru Kalmyk
xh xho en Xhosa
xmf xmf en Mingrelian
yi yid en Yiddish
yo yor en Yoruba
yue yue zh Cantonese
za zha en Zhuang
zea zea en Zeeuws
zgh zgh en Standard Moroccan Tamazight
zh zho/chi zh Chinese
zu zul en Zulu
"""

OTHER_NAMES = {
    "arb": "ar",
    "azj": "az",
    "bangla": "bn",
    "bokmal": "nb",
    "castilian": "es",
    "cmn": "zh",
    "ekk": "et",
    "farsi": "fa",
    "fil": "tl",
    "filipino": "tl",
    "flemish": "nl",
    "gaelic": "gd",
    "gug": "gn",
    "haitian": "ht",
    "hindustani": "hi",
    "khk": "mn",
    "kirghiz": "ky",
    "lvs": "lv",
    "mandarin": "zh",
    "modern greek": "el",
    "myanmar": "my",
    "npi": "ne",
    "nynorsk": "nn",
    "oriya": "or",
    "ory": "or",
    "panjabi": "pa",
    "pes": "fa",
    "plt": "mg",
    "pushto": "ps",
    "simplified chinese": "zh",
    "sinhalese": "si",
    "slovene": "sl",
    "swh": "sw",
    "traditional chinese": "zh",
    "uighur": "ug",
    "uzn": "uz",
    "valencian": "ca",
    "zsm": "ms",
}
"""Other names, and codes of the single languages within what ISO 639-3 calls a macrolanguage, each with its code in
TABLE."""
