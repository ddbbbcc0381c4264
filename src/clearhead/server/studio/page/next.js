// What the model expects at each position: surprisal, odds under the sliders, the logit lens, and why.

import { element, post, printable } from "/page/api.js";
import { keep } from "/studio/page/keep.js";
import { noticed, visible } from "/studio/page/maps.js";
import { decodeFloats, probabilities } from "/studio/page/sampling.js";
import { change, headsOf, numberOf, pathOf, state } from "/studio/page/state.js";

const MOST_BITS = 12; // of surprisal: the darkest shade
const SHOWN = 20;
const SLIDERS = {
  temperature: { label: "Temperature", min: 0, max: 2, step: 0.05, off: 1 },
  top_k: { label: "Top k", min: 0, max: 200, step: 1, off: 0 },
  top_p: { label: "Top p", min: 0.01, max: 1, step: 0.01, off: 1 },
  min_p: { label: "Min p", min: 0, max: 1, step: 0.01, off: 0 },
};

const percent = (share) => (share >= 5e-5 || share === 0 ? `${(100 * share).toFixed(2)} %` : share.toExponential(0));

export function setUpNext(section, studio) {
  const verdict = element("p", { role: "status" });
  const [first, marks] = [element("span", { class: "token" }), element("span", {})];
  const strip = element("p", { class: "strip" }, first, marks);
  const heading = element("h2", {});
  const sliders = element("div", { class: "fields sliders" });
  const odds = element("ol", { class: "odds" });
  const tree = element("p", { class: "strip tree" });
  const lensBox = element("label", { class: "check" });
  const lensOn = element("input", { type: "checkbox" });
  lensBox.append(lensOn, " Logit lens: what the head would say between the layers");
  const lens = element("div", { class: "wide-table", tabindex: "0", role: "group", "aria-label": "The logit lens" });
  const why = element("div", { class: "why" });
  const content = element("div", { hidden: "" }, strip, heading, sliders, odds, tree, why, lensBox, lens);
  section.append(verdict, content);

  let read = "";
  let subject = ""; // the run and the text that are on the screen
  let prediction = null;
  let row = null; // the logits of the chosen position, and of the same without the heads that are off
  let rowKey = "";
  let generation = 0;

  const values = (now) =>
    Object.fromEntries(
      Object.entries(SLIDERS).map(([name, { off, min, max, step }]) => {
        const value = Number.parseFloat(now[name]);
        if (!Number.isFinite(value)) return [name, off];
        return [name, Math.min(max, Math.max(min, step === 1 ? Math.round(value) : value))];
      }),
    );

  const inputs = Object.fromEntries(
    Object.entries(SLIDERS).map(([name, { label, min, max, step, off }]) => {
      const input = element("input", { type: "range", min, max, step, name });
      const output = element("output", {});
      input.addEventListener("input", () => {
        output.textContent = input.value;
        change({ [name]: Number(input.value) === off ? null : input.value });
      });
      sliders.append(element("label", {}, `${label} `, output, input));
      return [name, { input, output }];
    }),
  );
  lensOn.addEventListener("change", () => change({ lens: lensOn.checked ? 1 : null }));

  const body = (now, ablated = true) => {
    const fields = studio.read();
    const without = ablated ? headsOf(now.without) : [];
    return without.length ? { ...fields, without } : fields;
  };

  function positionOf(now) {
    const last = prediction.positions.length - 1;
    const open = prediction.positions.findIndex((position) => position.following === null);
    const position = numberOf(now.position, prediction.objective === "masked" && open >= 0 ? open : last);
    return position >= 0 && position <= last ? position : last;
  }

  function drawStrip(now) {
    const isMasked = prediction.objective === "masked";
    const chosen = positionOf(now);
    first.hidden = isMasked;
    first.textContent = visible(prediction.positions[0].token);
    keep(marks, prediction.positions, {
      create(entry, position) {
        const mark = element("button", { type: "button", class: "token" });
        mark.addEventListener("click", () => change({ position }));
        return mark;
      },
      update(mark, entry, position) {
        const bits = entry.surprisal_bits;
        mark.textContent = visible(isMasked ? entry.token : (entry.following ?? "?"));
        mark.title = bits === null ? "" : `${bits.toFixed(2)} bits`;
        mark.style.setProperty("--w", bits === null ? 0 : Math.min(1, bits / MOST_BITS).toFixed(3));
        mark.setAttribute("aria-pressed", position === chosen);
      },
    });
    const loss = prediction.loss === null ? "" : `${prediction.loss.toFixed(4)} nats per token over the text. `;
    verdict.textContent = `${printable(noticed(prediction))}${loss}Shaded by surprisal; choose a token to see what was expected in its place.`;
  }

  function drawOdds(now) {
    const { temperature, top_k: topK, top_p: topP, min_p: minP } = values(now);
    const sampling = { temperature, topK: topK || null, topP, minP };
    const shares = probabilities(row.logits, sampling);
    const before = row.plain ? probabilities(row.plain, sampling) : null;
    const order = row.top.filter(([id]) => shares[id] > 0 || (before && before[id] > 0));
    order.sort(([a], [b]) => shares[b] - shares[a]);
    odds.replaceChildren(
      ...order.slice(0, SHOWN).map(([id, label]) => {
        const bar = element("span", { class: "bar" }, element("i"));
        bar.firstChild.style.setProperty("--p", shares[id].toFixed(4));
        const then = before ? element("small", {}, ` ${percent(before[id])} before`) : "";
        const canGoOn = prediction.objective === "causal";
        const go = canGoOn ? element("button", { type: "button", class: "link", title: "Go on from this token" }, visible(label)) : element("span", {}, visible(label));
        if (canGoOn) go.addEventListener("click", () => goOn(id));
        const explain = element("button", { type: "button", class: "small" }, "Why?");
        explain.addEventListener("click", () => explained(id, label));
        return element("li", { "data-id": id }, go, bar, element("b", {}, percent(shares[id]), then), explain);
      }),
    );
    for (const [name, { input, output }] of Object.entries(inputs)) {
      const value = values(now)[name];
      if (document.activeElement !== input) input.value = value;
      output.textContent = value;
    }
  }

  // The text up to the position, and the token that was chosen; the texts before it stay in a row, as a path.
  async function goOn(token) {
    const [now, of] = [state(), rowKey];
    const text = document.querySelector("#prompt [name=text]");
    const before = text.value;
    try {
      const answer = await post("/studio/continued", { ...studio.read(), position: positionOf(now), token });
      if (of !== rowKey) return;
      text.value = answer.text;
    } catch (error) {
      return studio.report(error.message);
    }
    const path = pathOf(now.path).slice(-20);
    change({ text: text.value, position: null, path: JSON.stringify([...path, before]) });
  }

  function drawTree(now) {
    const path = pathOf(now.path);
    tree.replaceChildren(
      ...path.map((text, index) => {
        const back = element("button", { type: "button", class: "chip", title: printable(text) }, `back to “…${visible(text.slice(-16))}”`);
        back.addEventListener("click", () => {
          document.querySelector("#prompt [name=text]").value = text;
          change({ text, position: null, path: index ? JSON.stringify(path.slice(0, index)) : null });
        });
        return back;
      }),
    );
  }

  // Nothing of another run or text stays on the screen, under the name of this.
  function clear(next = "") {
    if (subject === next && next) return;
    subject = next;
    read = rowKey = "";
    prediction = row = null;
    content.hidden = true;
    why.replaceChildren();
  }

  async function explained(id, label) {
    const of = rowKey;
    why.replaceChildren(element("p", { class: "soft" }, "Following the gradients…"));
    try {
      const { tokens, value, baseline, gap } = await post("/studio/attribution", { ...body(state()), position: positionOf(state()), token: id });
      if (of !== rowKey) return;
      const most = Math.max(...tokens.map(({ score }) => Math.abs(score)), 1e-9);
      const marks = tokens.map(({ token, score }) => {
        const mark = element("span", { class: `token ${score < 0 ? "below" : "above"}`, title: score.toFixed(4) }, visible(token), element("small", {}, score.toFixed(2)));
        mark.style.setProperty("--w", (Math.abs(score) / most).toFixed(3));
        return mark;
      });
      why.replaceChildren(
        element("h3", {}, `Why “${visible(label)}”`),
        element("p", { class: "strip" }, ...marks),
        element("p", { class: "soft" }, `Integrated gradients: the logit is ${value.toFixed(3)}, and ${baseline.toFixed(3)} without any token; ${gap.toFixed(3)} is not accounted for.`),
      );
    } catch (error) {
      if (of !== rowKey) return;
      why.replaceChildren();
      studio.report(error.message);
    }
  }

  function drawLens() {
    lens.hidden = lensBox.hidden = false;
    if (!prediction.lens) return lens.replaceChildren();
    const head = element("tr", {}, element("td"), ...prediction.positions.map((entry) => element("th", { scope: "col" }, visible(entry.token))));
    const rows = prediction.lens.map((cells, layer) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, layer ? `after block ${layer - 1}` : "input"),
        ...cells.map((cell) => {
          const box = element("td", { title: percent(cell.probability) }, visible(cell.token), element("small", {}, cell.rank === null ? "" : `#${cell.rank}`));
          box.style.setProperty("--w", cell.probability.toFixed(3));
          return box;
        }),
      ),
    );
    lens.replaceChildren(element("table", { class: "lens" }, element("thead", {}, head), element("tbody", {}, ...rows.reverse())));
  }

  return async function show(now, run) {
    const mine = ++generation;
    if (!studio.canRead()) {
      verdict.textContent = "";
      return clear();
    }
    clear(JSON.stringify(studio.read()));
    lensOn.checked = Boolean(now.lens);
    const fields = JSON.stringify([body(now), run.step, Boolean(now.lens)]);
    try {
      if (read !== fields) {
        verdict.textContent = "Reading…";
        const answer = await post("/studio/predict", { ...body(now), lens: Boolean(now.lens) });
        if (mine !== generation) return;
        prediction = answer;
        read = fields;
        rowKey = "";
        why.replaceChildren();
        studio.report("");
      }
      const position = positionOf(now);
      if (rowKey !== `${fields}:${position}`) {
        const answer = await post("/studio/logits", { ...body(now), position });
        const plain = headsOf(now.without).length ? await post("/studio/logits", { ...body(now, false), position }) : null;
        if (mine !== generation) return;
        row = { logits: decodeFloats(answer.logits), top: answer.top, plain: plain && decodeFloats(plain.logits) };
        rowKey = `${fields}:${position}`;
        why.replaceChildren();
      }
      const entry = prediction.positions[position];
      heading.textContent = prediction.objective === "masked" ? `In place of “${visible(entry.token)}”` : `After “${visible(entry.token)}” (${position})`;
      content.hidden = false;
      drawStrip(now);
      drawTree(now);
      drawOdds(now);
      drawLens();
    } catch (error) {
      if (mine !== generation) return;
      clear();
      verdict.textContent = "";
      studio.report(error.message);
    }
  };
}
