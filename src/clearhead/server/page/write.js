// Texts from a prompt, several side by side, each as it is written.

import { element, printable, Sender, stream } from "/page/api.js";

const ENDS = { stop: "came to an end", length: "reached the number of tokens", cancelled: "stopped" };

function newText(prompt, label, into) {
  const start = element("span", { class: "prompt" }, printable(prompt));
  const body = element("span", {});
  const end = element("p", { class: "end" });
  const pre = element("pre", { tabindex: "0", "aria-label": label }, start, body);
  into.append(element("article", { class: "text" }, pre, end));
  return { body, end, written: "", tokens: 0 };
}

export function setUpWriting(section, page) {
  const form = section.querySelector("form");
  const place = section.querySelector(".texts");
  const sender = new Sender(form, page.report);

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const prompt = form.elements.prompt.value;
    const numbers = sender.numbers("max_tokens", "temperature", "top_p", "seed", "n");
    const body = { model: page.run(), prompt, ...numbers };
    if (form.elements.stop.value) body.stop = form.elements.stop.value;
    page.show("/v1/completions", body);
    place.replaceChildren();
    const texts = Array.from({ length: body.n ?? 1 }, (_, index) => newText(prompt, `Sample ${index + 1}`, place));
    const start = performance.now();
    const end = (text, reason) => {
      const seconds = ((performance.now() - start) / 1000).toFixed(1);
      text.end.textContent = `${ENDS[reason] ?? reason} after ${seconds} s`;
      text.ended = true;
    };
    sender
      .run(async (signal) => {
        for await (const { choices } of stream("/v1/completions", body, signal)) {
          for (const choice of choices) {
            const text = texts[choice.index];
            text.written += choice.text;
            text.body.textContent = printable(text.written);
            if (choice.finish_reason) end(text, choice.finish_reason);
          }
        }
      })
      .then(() => texts.filter((text) => !text.ended).forEach((text) => end(text, "cancelled")));
  });
}
