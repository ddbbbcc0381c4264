// Translations, the best first; pointing at a word shows the words that it was translated from or to.

import { element, post, printable, Sender } from "/page/api.js";

const words = (text, side) =>
  text.split(/\s+/).filter(Boolean).map((word, index) => {
    return element("span", { class: "word", "data-side": side, "data-index": index }, printable(word));
  });

// With a space after each, which is text like any other.
const line = (spans) => spans.flatMap((span) => [span, " "]);

function highlight(card, pairs) {
  const all = [...card.querySelectorAll(".word")];
  const of = (side, index) => all.find((word) => word.dataset.side === side && Number(word.dataset.index) === index);
  for (const word of all) {
    const isSource = word.dataset.side === "source";
    const partners = pairs
      .filter((pair) => pair[isSource ? 0 : 1] === Number(word.dataset.index))
      .map((pair) => (isSource ? of("target", pair[1]) : of("source", pair[0])));
    for (const [event, on] of [["mouseenter", true], ["mouseleave", false]]) {
      word.addEventListener(event, () => [word, ...partners].forEach((span) => span?.classList.toggle("on", on)));
    }
  }
}

function card(source, { text, score, alignment }) {
  const box = element(
    "article",
    { class: "translation" },
    element("p", { class: "source" }, ...line(words(source, "source"))),
    element("p", {}, ...line(words(text, "target"))),
    element("p", { class: "score" }, `score ${score.toFixed(2)}`),
  );
  highlight(box, alignment ?? []);
  return box;
}

export function setUpTranslation(section, page) {
  const form = section.querySelector("form");
  const place = section.querySelector(".texts");
  const sender = new Sender(form, page.report);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const lines = form.elements.text.value.split("\n").filter((text) => text.trim());
    if (!lines.length) return;
    const numbers = sender.numbers("beam_size", "n_best", "length_penalty");
    const body = { model: page.run(), text: lines, align: true, ...numbers };
    page.show("/translate", body);
    sender.run(async (signal) => {
      const { translations } = await post("/translate", body, signal);
      place.replaceChildren(...translations.flatMap((best, index) => best.map((one) => card(lines[index], one))));
    });
  });
}
