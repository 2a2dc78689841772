/* Browsers refuse workers in pages that are opened from the disk. Here a worker's script runs in a hidden frame of the
   page instead, and messages go from window to window. The site's search needs no more than that. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.onload = () => this.start(frame.contentWindow, new URL(url, location));
      document.documentElement.append(frame);
    }
    start(inside, url) {
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts = (...urls) => urls.reduce((last, next) => last.then(() => new Promise(done => {
        const script = inside.document.createElement("script");
        script.src = new URL(next, url);
        script.onload = script.onerror = done;
        inside.document.head.append(script);
      })), Promise.resolve());
      this.deliver = data => inside.dispatchEvent(new MessageEvent("message", { data }));
      inside.importScripts(url).then(() => {
        this.waiting.forEach(this.deliver);
        this.waiting = null;
      });
    }
    postMessage(data) {
      this.waiting ? this.waiting.push(data) : this.deliver(data);
    }
    terminate() {}
  };
}
