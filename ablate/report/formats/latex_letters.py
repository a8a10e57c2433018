"""Spells letters outside ASCII for pdflatex: those of the Latin and Greek blocks, composed or not,
and digits above and below the line.

Accents are LaTeX's own commands; what it has no command for is set over or under the letter. Left
out, since neither T1 nor TS1 has a sign for them: letters with a horn, a hook above or an inverted
breve, most letters of phonetics and of African and old alphabets (Latin Extended-B), old Greek
letters and Coptic.

Used by `latex.py` alone.
"""

from __future__ import annotations

import unicodedata

T1_COMMANDS = (  # which need that encoding
    *(r"\DH{}", r"\dh{}", r"\TH{}", r"\th{}", r"\DJ{}", r"\dj{}", r"\NG{}", r"\ng{}", r"\k{"),
    *(r"\guillemotleft{}", r"\guillemotright{}", r"\IJ{}", r"\ij{}"),
)
LETTERS = {
    **{"¡": r"\textexclamdown{}", "¿": r"\textquestiondown{}", "¢": r"\textcent{}"},
    **{"£": r"\textsterling{}", "¤": r"\textcurrency{}", "¥": r"\textyen{}"},
    **{"¦": r"\textbrokenbar{}", "§": r"\textsection{}", "¨": r"\textasciidieresis{}"},
    **{"©": r"\textcopyright{}", "ª": r"\textordfeminine{}", "«": r"\guillemotleft{}"},
    **{"¬": r"\textlnot{}", "®": r"\textregistered{}", "¯": r"\textasciimacron{}"},
    **{"°": r"\textdegree{}", "²": r"\texttwosuperior{}", "³": r"\textthreesuperior{}"},
    **{"´": r"\textasciiacute{}", "¶": r"\textparagraph{}", "¸": r"\c{}"},
    **{"¹": r"\textonesuperior{}", "º": r"\textordmasculine{}", "»": r"\guillemotright{}"},
    **{"¼": r"\textonequarter{}", "½": r"\textonehalf{}", "¾": r"\textthreequarters{}"},
    **{"÷": r"$\div$", "Æ": r"\AE{}", "Ð": r"\DH{}", "Ø": r"\O{}", "Þ": r"\TH{}"},
    **{"ß": r"\ss{}", "æ": r"\ae{}", "ð": r"\dh{}", "ø": r"\o{}", "þ": r"\th{}"},
    **{"Đ": r"\DJ{}", "đ": r"\dj{}", "ı": r"\i{}", "ȷ": r"\j{}", "Ł": r"\L{}", "ł": r"\l{}"},
    **{"Ŋ": r"\NG{}", "ŋ": r"\ng{}", "Œ": r"\OE{}", "œ": r"\oe{}", "ƒ": r"\textflorin{}"},
    **{"Ĳ": r"\IJ{}", "ĳ": r"\ij{}", "ħ": r"$\hbar$", "\u00ad": r"\-", "\u00a0": "~", "ʼ": "'"},
    # Greek letters that look like Latin ones, and forms of others
    **dict(zip("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο", "ABEZHIKMNOPTYXo", strict=True)),
    **{"ς": r"$\varsigma$", "ϑ": r"$\vartheta$", "ϕ": r"$\phi$", "ϖ": r"$\varpi$"},
    **{"ϱ": r"$\varrho$", "ϵ": r"$\epsilon$", "ϒ": r"$\Upsilon$", "΄": r"\textasciiacute{}"},
}
MARKS = {  # combining mark: the command of the accent, and the sign that can be set alone
    "\u0300": (r"\`", r"\textasciigrave"),
    "\u0301": (r"\'", r"\textasciiacute"),
    "\u0302": (r"\^", r"\textasciicircum"),
    "\u0303": (r"\~", r"\textasciitilde"),
    "\u0304": (r"\=", r"\textasciimacron"),
    "\u0306": (r"\u", r"\textasciibreve"),
    "\u0307": (r"\.", "."),
    "\u0308": (r"\"", r"\textasciidieresis"),
    "\u030a": (r"\r", r"\textdegree"),
    "\u030b": (r"\H", r"\textacutedbl"),
    "\u030c": (r"\v", r"\textasciicaron"),
    "\u030f": ("", r"\textgravedbl"),
    "\u0323": (r"\d", ""),
    "\u0326": (r"\textcommabelow", ""),
    "\u0327": (r"\c", ""),
    "\u0328": (r"\k", ""),
    "\u0331": (r"\b", ""),
    "\u0324": ("", r"\textasciidieresis"),
    "\u0325": ("", r"\textdegree"),
    "\u032d": ("", r"\textasciicircum"),
    "\u032e": ("", r"\textasciibreve"),
    "\u0330": ("", r"\textasciitilde"),
}
GREEK_MARKS = {"\u0301": r"\acute", "\u0308": r"\ddot"}  # in formulas
BELOW = 220  # Unicode's class of marks that stand below; 202: attached below


def spell(character: str, spellings: dict[str, str]) -> str | None:
    """Spell a character with these `spellings`, too; None where LaTeX has no such sign.
    `character` may have combining marks behind it."""
    if character in spellings:
        return spellings[character]
    if character in LETTERS:
        return LETTERS[character]
    if len(character) == 1 and character.isascii():
        return character
    if len(character) == 1:
        tag, parts = _decomposed(character)
        if not parts:
            return None
        if tag:
            return _compatible(tag, parts, spellings)
        character = parts
    base, mark = character[:-1], character[-1]
    if not unicodedata.combining(mark):
        return None
    return _accented(base, mark, spellings)


def _decomposed(character: str) -> tuple[str, str]:
    """Return (tag, characters) of Unicode's decomposition: ("<super>", "3"), ("", "a" + mark)."""
    tag, _, codes = f" {unicodedata.decomposition(character)}".rpartition("> ")
    return tag.strip() + ">" * bool(tag), "".join(chr(int(code, 16)) for code in codes.split())


def _compatible(tag: str, parts: str, spellings: dict[str, str]) -> str | None:
    texts = [spell(part, spellings) for part in parts]
    if None in texts:
        return None
    text = "".join(filter(None, texts))
    command = {"<super>": r"\textsuperscript", "<sub>": r"\textsubscript"}.get(tag)
    return f"{command}{{{text}}}" if command else text


def _accented(base: str, mark: str, spellings: dict[str, str]) -> str | None:
    text = spell(base, spellings)
    if text is None:
        return None
    if text.startswith("$") and text != r"$\hbar$":
        accent = GREEK_MARKS.get(mark)
        return f"${accent}{{{text[1:-1]}}}$" if accent else None
    if mark not in MARKS:
        return None
    command, sign = MARKS[mark]
    below = unicodedata.combining(mark) in (BELOW, 202)
    if command and (below or text.isalpha()):
        if not below and text in ("i", "j"):
            text = rf"\{text}"
        return f"{command}{{{text}}}"
    shift = "-1.4ex" if below else ".6ex" if text.startswith("\\") or text.isupper() else "0pt"
    raised_sign = rf"\hidewidth\raisebox{{{shift}}}{{{sign}}}\hidewidth"
    return rf"{{\ooalign{{{raised_sign}\crcr\hfil {text}\hfil\crcr}}}}"
