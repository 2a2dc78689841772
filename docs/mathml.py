r"""mkdocs hook: turns the LaTeX that pymdownx.arithmatex found into MathML, which browsers draw without any script.

It knows what these pages use: letters, numbers, Greek, _ and ^, \frac, \sqrt, \hat, \text. The rest stops the build.
"""

import html
import re

from mkdocs.exceptions import PluginError

IDENTIFIERS = (
    "alpha beta gamma delta epsilon lambda mu phi pi rho sigma tau theta Delta nabla".split()
)
IDENTIFIERS = dict(zip(IDENTIFIERS, "αβγδελμφπρστθΔ∇"))
OPERATORS = (
    "cdot pm leftarrow sim lVert rVert lfloor rfloor lceil rceil ldots lt gt le ge sum in".split()
)
OPERATORS = dict(zip(OPERATORS, "·±←~‖‖⌊⌋⌈⌉…<>≤≥∑∈"))
WORDS = "min max mean log exp tanh softplus clip sign arg Var".split()


def parse(tokens):
    """One element for each atom, with its _ and ^, up to the end or the closing brace."""
    row = []
    while tokens and tokens[0] != "}":
        base, scripts = atom(tokens), {}
        while tokens and tokens[0] in "_^":
            kind = tokens.pop(0)
            scripts[kind] = atom(tokens)
        tag = {"": "mrow", "_": "msub", "^": "msup", "^_": "msubsup"}["".join(sorted(scripts))]
        row.append(f"<{tag}>{base}{scripts.get('_', '')}{scripts.get('^', '')}</{tag}>")
    return "".join(row)


def atom(tokens):
    token = tokens.pop(0)
    if token == "{":
        inner = parse(tokens)
        tokens.pop(0)
        return f"<mrow>{inner}</mrow>"
    if not token.startswith("\\"):
        tag = "mi" if token.isalpha() else "mn" if token[0].isdigit() else "mo"
        text = html.escape(token.replace("-", "\u2212"))
        return f'<mo stretchy="false">{text}</mo>' if token in "()[]|" else f"<{tag}>{text}</{tag}>"
    name = token[1:]
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


def on_page_content(content, page, config, files):
    def replace(match):
        latex = html.unescape(match[2]).strip()
        display = "block" if latex.startswith("\\[") else "inline"
        tokens = re.findall(
            r"\\text\{[^}]*\}|\\[A-Za-z]+|[A-Za-z]|\d+(?:\.\d+)?|[^\s\\]", latex[2:-2]
        )
        return f'<{match[1]} class="arithmatex"><math display="{display}">{parse(tokens)}</math></{match[1]}>'

    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', replace, content, flags=re.S)
