"""clearhead completion"""

import argparse

from clearhead.cli.arguments import Parser
from clearhead.cli.output import json_line, standard_output
from clearhead.errors import UsageError
from clearhead.suggestions import did_you_mean

# Each script asks this command for the words that may come next, so that it never has to be made anew.
SCRIPTS = {
    "bash": r"""_clearhead() {
    local word about
    COMPREPLY=()
    while IFS=$'\t' read -r word about; do
        COMPREPLY+=("$word")
    done < <(clearhead completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o default -F _clearhead clearhead
""",
    "zsh": r"""#compdef clearhead
_clearhead() {
    local word about
    local -a candidates
    while IFS=$'\t' read -r word about; do
        candidates+=("${word//:/\\:}:$about")
    done < <(clearhead completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)
    if (( $#candidates )); then _describe clearhead candidates; else _files; fi
}
if [ "$funcstack[1]" = _clearhead ]; then _clearhead "$@"; else compdef _clearhead clearhead; fi
""",
    "fish": r"""function __clearhead_candidates
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    clearhead completion fish -- $words[2..-1] "$current" 2>/dev/null
end
complete -c clearhead -a '(__clearhead_candidates)'
""",
}


def parser() -> Parser:
    """What `clearhead completion` understands."""
    parser = Parser(
        "completion",
        "Print a script for your shell. With it, the Tab key completes verbs, options, their values, runs, presets and "
        "corpora.",
        [
            ("clearhead completion bash >> ~/.bashrc", "bash"),
            ("clearhead completion zsh >> ~/.zshrc", "zsh, below the line with compinit"),
            ("clearhead completion fish > ~/.config/fish/completions/clearhead.fish", "fish"),
        ],
    )
    parser.add_argument("shell", nargs="?", metavar="{bash,zsh,fish}", help="your shell")
    parser.add_argument("words", nargs="*", help="after --: words of a command; prints what the last one may become")
    return parser


def run(args: argparse.Namespace) -> None:
    """Print the script, or the words that may come next, one a line."""
    if "shell" not in args:
        raise UsageError("name your shell: clearhead completion bash, zsh or fish")
    if args.shell not in SCRIPTS:
        known = ", ".join(SCRIPTS)
        raise UsageError(f"there is no script for '{args.shell}'{did_you_mean(args.shell, SCRIPTS)} (shells: {known})")
    if "words" not in args:
        script = SCRIPTS[args.shell]
        standard_output().text(json_line({"script": script}) if args.json else script)
        return
    from clearhead.cli.candidates import candidates

    matches = dict(candidates(args.words))
    lines = "".join(f"{word}\t{about}\n" for word, about in matches.items())
    standard_output().text(json_line({"candidates": matches}) if args.json else lines)
