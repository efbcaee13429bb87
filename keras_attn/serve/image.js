// The image that a model is asked about: chosen, dropped or pasted, and shown.

import { element } from "./options.js";

const TYPES = ["image/png", "image/jpeg"];

export class ImageBox {
  /** `changed` is called when there is another image. */
  constructor({ box, input, shown, paste }, changed) {
    Object.assign(this, { box, input, shown, changed });
    this.file = this.content = null;
    input.accept = TYPES.join(",");
    input.addEventListener("change", () => this.take(input.files[0]));
    box.addEventListener("dragover", (event) => event.preventDefault());
    box.addEventListener("drop", (event) => {
      event.preventDefault();
      this.take(event.dataTransfer.files[0]);
    });
    paste.addEventListener("paste", (event) => {
      if (box.checkVisibility()) this.take([...event.clipboardData.files].find(({ type }) => TYPES.includes(type)));
    });
  }

  /** Reads a file: `content` is then what a request holds of it. */
  async take(file) {
    if (!file) return;
    this.file = file;
    const url = await dataUrlOf(file);
    if (this.file !== file) return; // another one was chosen
    this.content = { b64: url.slice(url.indexOf(",") + 1) };
    this.shown.replaceChildren(element("img", { src: url, alt: file.name }));
    this.changed();
  }
}

function dataUrlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}
