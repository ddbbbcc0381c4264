"""What is said of a score: shares of what was read, and where they may lie."""

import re

from clearhead.data import GrammarScore


def test_an_interval_lies_between_none_and_all_and_around_the_share() -> None:
    for sentences in range(1, 1000, 3):
        for accepted in (0, sentences // 2, sentences):
            line = GrammarScore(sentences, accepted / sentences, None).line()
            [bounds] = re.findall(r"\(95% interval: (-?\d+)% to (\d+)%\)", line)
            low, high = map(int, bounds)
            assert "-" not in bounds[0], line
            assert 0 <= low <= round(100 * accepted / sentences) <= high <= 100, line
