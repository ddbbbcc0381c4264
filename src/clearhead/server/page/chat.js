// A conversation: the whole of it is sent each time, and the server reads only what is new.

import { element, printable, Sender, stream } from "/page/api.js";

const ROLES = { user: "You", assistant: "Model" };

export function setUpChat(section, page) {
  const form = section.querySelector("form");
  const list = section.querySelector(".turns");
  const { undo, clear, message, system } = form.elements;
  const sender = new Sender(form, page.report);
  let turns = []; // {role, content}

  function draw() {
    list.replaceChildren(
      ...turns.map(({ role, content }) =>
        element(
          "li",
          { class: role },
          element("p", { class: "role" }, ROLES[role]),
          element("p", { class: "content" }, printable(content)),
        ),
      ),
    );
    undo.disabled = clear.disabled = turns.length === 0;
  }

  async function answer(signal) {
    const before = system.value ? [{ role: "system", content: system.value }] : [];
    const numbers = sender.numbers("max_tokens", "temperature", "seed");
    const body = { model: page.run(), messages: [...before, ...turns], ...numbers };
    page.show("/v1/chat/completions", body);
    const reply = { role: "assistant", content: "" };
    turns.push(reply);
    draw();
    const shown = list.lastElementChild.querySelector(".content");
    for await (const { choices } of stream("/v1/chat/completions", body, signal)) {
      reply.content += choices[0]?.delta.content ?? "";
      shown.textContent = printable(reply.content);
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!message.value || sender.controller) return;
    const before = turns;
    turns = [...turns, { role: "user", content: message.value }];
    const text = message.value;
    message.value = "";
    draw();
    await sender.run(answer);
    if (turns.at(-1).content === "") {
      turns = before; // nothing came: the message can be sent again
      message.value = text;
    }
    draw();
    message.focus();
  });
  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  undo.addEventListener("click", () => {
    sender.controller?.abort();
    while (turns.length && turns.pop().role !== "user");
    draw();
  });
  clear.addEventListener("click", () => {
    sender.controller?.abort();
    turns = [];
    draw();
  });
}
