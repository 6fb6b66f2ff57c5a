"""Reads the input of `shard`: files of several formats, compressions and encodings become records.

listing        patterns and folders become a list of files, with the size and version of each
inputs         files become splits, one worker's task each
formats        which format is a file of? Recognized by name or by the first bytes; what is not text is refused
table          the formats, and the reading of one range of a file
text, jsonl, json_values, csv_rows, columnar, wikiextractor, mediawiki, warc, html_pages
               the format's records: the text of one document, or the reason why there is none
office, pdf    documents of office programs, books and PDF
wikitext       the markup of MediaWiki becomes paragraphs
archives, members
               the files in an archive become ranges, each read as a file of its name
corpora        --inputs: several corpora with their own options
sampling       evenly spaced records, for --sample
ranges         byte ranges of files in a store
open           .gz, .bz2, .xz and .zst become plain bytes in bounded memory; bombs are refused
frames, cut_files
               a range of a large compressed file becomes the plain bytes of its frames
encodings      text in another encoding (--encoding) becomes UTF-8
file_encoding  the encoding that the bytes of a file show (--encoding auto), and guesses for messages
undecodable    counts bytes outside the encoding, and refuses files that have too many
record         what all of them share
"""
