// A page that is complete in itself, in a frame of the studio.

import { element, printable, refuse } from "/page/api.js";

const RETRY = 5000; // milliseconds

// A frame below some controls. What it returns shows another page: `page` has its `key`, its `title`, the sentence that
// is shown while it is `waiting`, and `address`, which finds out where it is.
export function setUpFrame(section, studio) {
  const status = element("p", { role: "status" });
  let frame = null;
  let loaded = "";
  section.append(status);

  function clear(sentence) {
    frame?.remove(); // it is of another run, or of what this one was
    frame = null;
    status.textContent = sentence;
  }

  async function show({ key, title, waiting, address, mayCome }) {
    if (loaded === key) return;
    loaded = key;
    clear(waiting);
    try {
      const source = await address();
      // A frame does not say why it stays empty, so the page is asked for first; the server keeps it for the frame.
      const response = await fetch(source);
      if (!response.ok) await refuse(response);
      await response.text();
      if (loaded !== key) return;
      frame = element("iframe", { title, class: "page" });
      frame.addEventListener("load", () => loaded === key && (status.textContent = ""));
      frame.setAttribute("src", source);
      section.append(frame);
    } catch (error) {
      if (loaded !== key) return;
      loaded = "";
      status.textContent = printable(error.message);
      // What could not be had now may be had later: another page is being made, or the model is still to come.
      if (error.status === undefined || error.status === 429 || mayCome) {
        setTimeout(() => section.hidden || loaded || studio.refresh(), RETRY);
      }
    }
  }

  function close(sentence) {
    loaded = "";
    clear(sentence);
  }

  // To the page in the frame, which listens to nobody else.
  function tell(message) {
    frame?.contentWindow.postMessage(message, location.origin);
  }

  function hear(listener) {
    window.addEventListener("message", (event) => {
      if (frame && event.source === frame.contentWindow && event.origin === location.origin) listener(event.data);
    });
  }

  return { show, close, tell, hear };
}
