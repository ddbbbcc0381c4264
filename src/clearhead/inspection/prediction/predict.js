"use strict";
// The page of `clearhead predict`: choose a token to see what was likely in its place.
// Texts are written by textContent alone.
{
  const data = JSON.parse(document.getElementById("data").textContent);
  const buttons = [...document.querySelectorAll("#tokens button")];
  const candidates = document.getElementById("candidates");

  function make(name, className, text) {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  }

  function entry([token, probability], following) {
    const item = make("li", token === following ? "true" : "", "");
    const bar = make("span", "bar", "");
    const filled = make("i", "", "");
    filled.style.setProperty("--p", probability.toFixed(4));
    bar.append(filled);
    item.append(make("span", "token", token), bar, make("b", "", (100 * probability).toFixed(1) + "%"));
    return item;
  }

  function show(button) {
    const position = data.positions[Number(button.dataset.position)];
    document.getElementById("heading").textContent = position.heading;
    document.getElementById("sentence").textContent = position.sentence;
    candidates.replaceChildren(...position.top.map((pair) => entry(pair, position.following)));
    buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
  }

  buttons.forEach((button, index) => {
    button.addEventListener("click", () => show(button));
    button.addEventListener("focus", () => show(button));
    button.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = move === undefined ? undefined : buttons[index + move];
      if (next) {
        event.preventDefault();
        next.focus();
      }
    });
  });
}
