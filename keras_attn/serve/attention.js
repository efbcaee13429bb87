// The panel in which the attention for the text is explored: a page of the server's, in a frame that can reach nothing else.

const WAITING = "The attention is being computed. The first time takes a while.";
const HOW_TO =
  "This export does not tell its attention. Export it again with the signature attention, " +
  "keras-attn export TASK FOLDER --attention, or serve the run or the saved task itself.";

/** One page is loaded at a time, the newest that was wanted, and only while the panel is open. */
export class AttentionPanel {
  constructor({ panel, note, frame, link }) {
    Object.assign(this, { panel, note, frame, link });
    this.wanted = this.shown = null; // addresses of pages
    this.isLoading = false;
  }

  /** Wants the page of what was asked: `text`, with `pair` if the model reads two texts, or `image`, its name at the server. */
  want(model, asked) {
    if (!model.shows_attention) return this.clear(HOW_TO);
    const given = new URLSearchParams({ model: model.name });
    for (const [name, value] of Object.entries(asked)) if (value !== undefined) given.set(name, value);
    this.wanted = `/page/attention?${given}`;
    this.link.href = this.wanted;
    this.link.hidden = false;
    this.note.textContent = this.wanted === this.shown ? "" : WAITING;
    this.load();
  }

  /** Shows no page, but a note. */
  clear(note = "") {
    this.wanted = this.shown = null;
    this.isLoading = false;
    this.link.hidden = true;
    this.frame.replaceChildren();
    this.note.textContent = note;
  }

  load() {
    if (this.isLoading || this.panel.hidden || this.wanted === null || this.wanted === this.shown) return;
    const address = this.wanted;
    const frame = document.createElement("iframe");
    frame.title = "The attention, layer by layer and head by head";
    frame.sandbox = "allow-scripts allow-downloads";
    frame.referrerPolicy = "no-referrer";
    frame.src = address;
    this.isLoading = true;
    frame.addEventListener("load", () => frame.isConnected && this.loaded(address), { once: true });
    this.frame.replaceChildren(frame);
  }

  loaded(address) {
    this.isLoading = false;
    this.shown = address;
    if (this.wanted === address) this.note.textContent = "";
    this.load();
  }
}
