// A browser starts no worker for a page that was opened from a folder; there the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      inside.importScripts = (...scripts) => scripts.reduce((done, src) => done.then(() => load(inside, src)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      load(inside, new URL(url, location)).then(() => {
        this.inside = inside;
        this.waiting.forEach((data) => this.postMessage(data));
      });
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event));
    }
    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
    terminate() {}
  };
  const load = (inside, src) =>
    new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src, onload: resolve, onerror: reject });
      inside.document.body.append(script);
    });
}
