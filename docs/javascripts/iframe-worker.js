// Browsers start no worker from a file. Where the site is opened from a folder, a hidden frame takes its place, so that
// the search works without a server, and nothing is loaded from elsewhere for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((done) => {
        const script = frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = done;
        frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
