"""Windows: who may see whom by what the config declares."""

from clearhead.doctor.calling.names import is_of_a_library
from clearhead.doctor.checks.base import SOUND, Finding, Skipped, Status, Subject, attempt, finding, model_check
from clearhead.doctor.probes.attention import AttentionCall, attentions

WINDOWS = ("window", "sliding_window", "window_size", "attention_window", "local_window", "local_attention_window")
LONGEST = 80  # tokens: to see a window, rows must be longer


@model_check("M16", "windows", order=105, needs=SOUND, of_tokens=True)
def windows(subject: Subject) -> list[Finding]:
    """Layers that the config limits to a window are limited to it, and no others are."""
    if not subject.looks_back_only or subject.spec.window is not None:
        raise Skipped("it may look ahead, or its window was declared")
    settings, is_own = subject.settings, not is_of_a_library(type(subject.original))
    kinds = [str(kind) for kind in settings.get("layer_types") or []]
    name, window = _named_window(settings, kinds)
    T = max(subject.calling.T, window + 3) if is_own and not subject.is_hurried else subject.calling.T
    if not 1 < window < T - 1 or T > LONGEST:
        raise Skipped("its config declares no window, or none that its rows can exceed")
    maps: list[AttentionCall] = []
    with attempt() as attempted:
        maps = list(attentions(subject.operations(subject.inputs(2, T=T))))
    maps = [attention for attention in maps if attention.allowed.shape == (T, T)]
    if not maps:
        if attempted.failed:
            subject.journal.untried(f"rows of {T} tokens, longer than {name}", attempted)
        raise Skipped("no attention over all of its tokens was found")
    reaches = [int(attention.allowed[-1].sum()) for attention in maps]
    limited = [any(word in kind for word in ("sliding", "local")) for kind in kinds]
    if len(limited) != len(maps) or not is_own:  # which layers it means is not said
        limited = [True] * len(maps) if all(reach == T for reach in reaches) else [reach < T for reach in reaches]
    subject.journal.paths.append(f"rows of {T} tokens, longer than {name}")
    for layer, (reach, is_limited) in enumerate(zip(reaches, limited, strict=True)):
        expected = window if is_limited else T
        if reach != expected:
            witness = f"token {T - 1} sees {reach} of {T} tokens in attention {layer}, and by {name}={window}"
            witness += f"{' and layer_types' if kinds else ''} it should see {expected}"
            is_sure = is_own and T in (reach, expected)  # some windows do not count the token itself
            where = subject.place_of(maps[layer].call)
            status: Status = "fail" if is_sure else "warn"
            return [finding("M16", witness, value=reach, threshold=expected, where=where, status=status)]
    return []


def _named_window(settings: dict[str, object], kinds: list[str]) -> tuple[str, int]:
    """The name and width of the window in the config; 0 if there is none, or it is switched off."""
    if settings.get("use_sliding_window") is False or not any("sliding" in kind for kind in kinds or ["sliding"]):
        return "", 0
    windows = ((name, settings.get(name)) for name in WINDOWS)
    return next(((name, size) for name, size in windows if isinstance(size, int) and size is not True), ("", 0))
