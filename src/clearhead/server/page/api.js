// Requests to the server that sent this page, and what a text must be before it is shown.

const TOKEN = "clearhead-token"; // kept until the tab is closed

export const token = {
  get: () => sessionStorage.getItem(TOKEN) ?? "",
  set: (value) => sessionStorage.setItem(TOKEN, value),
};

export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

function headers() {
  const fields = { "content-type": "application/json" };
  if (token.get()) fields.authorization = `Bearer ${token.get()}`;
  return fields;
}

export async function refuse(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // no envelope: the status has to do
  }
  throw new ServerError(response.status, message);
}

export async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) await refuse(response);
  return response.json();
}

export async function post(path, body, signal) {
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) await refuse(response);
  return response.json();
}

// The events of a streamed answer, each parsed.
export async function* stream(path, body, signal) {
  const request = { method: "POST", headers: headers(), body: JSON.stringify({ ...body, stream: true }), signal };
  const response = await fetch(path, request);
  if (!response.ok) await refuse(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ServerError(200, event.error.message);
      yield event;
    }
  }
}

// As `clearhead.pages.printable`: controls become their pictures, and nothing changes the direction of what is beside it.
export function printable(text) {
  return text
    .replaceAll("\r\n", "\n")
    .replace(/[\x00-\x08\x0b-\x1f]/g, (sign) => String.fromCharCode(0x2400 + sign.charCodeAt(0)))
    .replaceAll("\x7f", "\u2421")
    .replace(/[\x80-\x9f\u2028-\u202e\u2066-\u2069]/g, "\ufffd")
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "?");
}

export function curl(path, body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const key = token.get() ? " -H \"Authorization: Bearer $CLEARHEAD_TOKEN\"" : "";
  return `curl ${location.origin}${path}${key} -H 'Content-Type: application/json' -d '${quoted}'`;
}

export function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children); // strings become text, never markup
  return node;
}

// A form that sends one request at a time: its buttons, and what stops it.
export class Sender {
  constructor(form, report) {
    this.form = form;
    this.report = report;
    this.submit = form.querySelector("button[type=submit]");
    this.cancel = form.querySelector("button[name=cancel]");
    this.cancel.addEventListener("click", () => this.controller?.abort());
  }

  // Runs `work(signal)`; whether it came to its end.
  async run(work) {
    if (this.controller) return false;
    this.controller = new AbortController();
    this.submit.disabled = true;
    this.cancel.disabled = false;
    this.report("");
    try {
      await work(this.controller.signal);
      return true;
    } catch (error) {
      if (error.name !== "AbortError") this.report(error.message);
      return false;
    } finally {
      this.controller = null;
      this.submit.disabled = false;
      this.cancel.disabled = true;
    }
  }

  // The named numbers of the form that are filled in.
  numbers(...names) {
    const filled = names.filter((name) => this.form.elements[name].value !== "");
    return Object.fromEntries(filled.map((name) => [name, Number(this.form.elements[name].value)]));
  }
}
