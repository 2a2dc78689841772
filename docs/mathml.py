r"""mkdocs hook: turns LaTeX that pymdownx.arithmatex found into MathML.

Browsers draw that without any script. It knows what these pages use: letters, numbers, Greek, _ and
^, \frac, \sqrt, \hat, \text. The rest stops the build.
"""

import html
import re

from mkdocs.exceptions import PluginError

IDENTIFIERS = {
    "alpha": "α",
    "beta": "β",
    "gamma": "γ",
    "delta": "δ",
    "epsilon": "ε",
    "lambda": "λ",
    "mu": "μ",
    "phi": "φ",
    "pi": "π",
    "rho": "ρ",
    "sigma": "σ",
    "tau": "τ",
    "theta": "θ",
    "Delta": "Δ",
    "nabla": "∇",
}
OPERATORS = {
    "cdot": "·",
    "pm": "±",
    "leftarrow": "←",
    "sim": "~",
    "lVert": "‖",
    "rVert": "‖",
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lceil": "⌈",
    "rceil": "⌉",
    "ldots": "…",
    "lt": "<",
    "gt": ">",
    "le": "≤",
    "ge": "≥",
    "sum": "∑",
    "in": "∈",
}
WORDS = {"min", "max", "log", "exp", "tanh", "arg"}  # what code hosts know, too
TAGS = {"": "mrow", "_": "msub", "^": "msup", "^_": "msubsup"}
TOKEN = re.compile(r"\\text\{[^}]*\}|\\[A-Za-z]+|\\,|[A-Za-z]|\d+(?:\.\d+)?|[^\s\\]")


def parse(tokens):
    """One element for each atom, with its _ and ^, up to the end or the closing brace."""
    row = []
    while tokens and tokens[0] != "}":
        base = atom(tokens)
        scripts = {}
        while tokens and tokens[0] in "_^":
            kind = tokens.pop(0)
            scripts[kind] = atom(tokens)
        tag = TAGS["".join(sorted(scripts))]
        row.append(f"<{tag}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{tag}>")
    return "".join(row)


def atom(tokens):
    token = tokens.pop(0)
    if token == "{":
        inner = parse(tokens)
        tokens.pop(0)
        return f"<mrow>{inner}</mrow>"
    if not token.startswith("\\"):
        return symbol(token)
    name = token[1:]
    if name == ",":
        return '<mspace width="0.2em"/>'
    if name == "frac":
        return f"<mfrac>{atom(tokens)}{atom(tokens)}</mfrac>"
    if name == "sqrt":
        return f"<msqrt>{atom(tokens)}</msqrt>"
    if name == "hat":
        return f"<mover>{atom(tokens)}<mo>^</mo></mover>"
    if name.startswith("text{"):
        return f"<mtext>{html.escape(name[5:-1]).replace(' ', '&nbsp;')}</mtext>"
    if name in IDENTIFIERS:
        return f"<mi>{IDENTIFIERS[name]}</mi>"
    if name in WORDS:
        return f'<mo lspace="0.2em" rspace="0">{name}</mo>'
    if name in OPERATORS:
        return f'<mo stretchy="false">{html.escape(OPERATORS[name])}</mo>'
    if name == "quad":
        return '<mspace width="1.5em"/>'
    raise PluginError(f"docs/mathml.py does not know {token}")


def symbol(token):
    """A letter, a number or a sign."""
    text = html.escape(token.replace("-", "\u2212").replace("'", "\u2032"))
    if token in "()[]|":
        return f'<mo stretchy="false">{text}</mo>'
    if token.isalpha():
        return f"<mi>{text}</mi>"
    if token[0].isdigit():
        return f"<mn>{text}</mn>"
    return f"<mo>{text}</mo>"


def on_page_content(content, page, config, files):
    def replace(match):
        latex = html.unescape(match[2]).strip()
        display = "block" if latex.startswith("\\[") else "inline"
        inner = parse(TOKEN.findall(latex[2:-2]))
        math = f'<math display="{display}">{inner}</math>'
        return f'<{match[1]} class="arithmatex">{math}</{match[1]}>'

    pattern = r'<(span|div) class="arithmatex">(.*?)</\1>'
    return re.sub(pattern, replace, content, flags=re.S)
