"""Small documents of office programs, books and PDF files, written by hand."""

from __future__ import annotations

import io
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
_OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"


def zipped(parts: dict[str, bytes | str], mimetype: str = "") -> bytes:
    """A zip file of these parts, behind the stored entry `mimetype` if there is one."""
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:
        if mimetype:
            archive.writestr("mimetype", mimetype, ZIP_STORED)
        for name, data in parts.items():
            archive.writestr(name, data)
    return file.getvalue()


def word(text: str) -> str:
    return f'<w:p><w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def docx(body: str) -> bytes:
    document = f'<w:document xmlns:w="{_WORD}"><w:body>{body}</w:body></w:document>'
    return zipped({"[Content_Types].xml": "<Types/>", "word/document.xml": document})


def odt(body: str, **parts: str) -> bytes:
    content = (
        f'<o:document-content xmlns:o="{_OFFICE}" xmlns:text="{_TEXT}">'
        f"<o:body><o:text>{body}</o:text></o:body></o:document-content>"
    )
    return zipped({"content.xml": content, **parts}, "application/vnd.oasis.opendocument.text")


def epub(chapters: dict[str, str], spine: list[str]) -> bytes:
    """A book of these chapters by name, read in this order."""
    container = (
        '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>'
        '<rootfile full-path="OPS/book.opf"/></rootfiles></container>'
    )
    items = "".join(f'<item id="{name}" href="{name}" media-type="application/xhtml+xml"/>' for name in chapters)
    order = "".join(f'<itemref idref="{name}"/>' for name in spine)
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{order}</spine></package>'
    )
    parts: dict[str, bytes | str] = {"META-INF/container.xml": container, "OPS/book.opf": package}
    return zipped(parts | {f"OPS/{name}": text for name, text in chapters.items()}, "application/epub+zip")


def pdf(pages: list[list[str]], trailer: bytes = b"") -> bytes:
    """A PDF with these lines on its pages."""
    kids = b" ".join(b"%d 0 R" % (4 + 2 * number) for number in range(len(pages)))
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, len(pages)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, lines in enumerate(pages):
        shown = b" ".join(b"(%s) Tj T*" % line.encode() for line in lines)
        content = b"BT /F1 10 Tf 72 750 Td 12 TL " + shown + b" ET"
        resources = b"/MediaBox[0 0 612 792]/Resources<</Font<</F1 3 0 R>>>>"
        objects.append(b"<</Type/Page/Parent 2 0 R%s/Contents %d 0 R>>" % (resources, 5 + 2 * number))
        objects.append(b"<</Length %d>>\nstream\n%s\nendstream" % (len(content), content))
    return _numbered(objects, trailer)


def pdf_of_forms(depth: int) -> bytes:
    """A PDF whose page draws a form in a form and so on. The page and each form show a line."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[4 0 R]/Count 1>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for level in range(depth + 1):
        inner = b"/XObject<</X %d 0 R>>" % (6 + 2 * level) if level < depth else b""
        resources = b"/Resources<</Font<</F1 3 0 R>>%s>>" % inner
        content = b"BT /F1 10 Tf 72 750 Td (Line %d.) Tj ET" % level + b" /X Do" * (level < depth)
        if level == 0:
            objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]%s/Contents 5 0 R>>" % resources)
        kind = b"/Type/XObject/Subtype/Form/BBox[0 0 612 792]" + resources if level else b""
        stream = b"<<%s/Length %d>>\nstream\n%s\nendstream" % (kind, len(content), content)
        objects += [stream] if level == 0 else [stream, b"null"]
    return _numbered(objects)


def _numbered(objects: list[bytes], trailer: bytes = b"") -> bytes:
    data = b"%PDF-1.7\n"
    places: list[int] = []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    end = b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (count, trailer, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n" % count + table + end
