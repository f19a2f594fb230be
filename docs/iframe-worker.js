// A page that is opened from disk may start no worker; there the search's runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script>postMessage = (data) => parent.postMessage(data, "*");</script><script src="${new URL(address, location)}"></script>`;
      this.loaded = new Promise((done) => frame.addEventListener("load", () => done(frame.contentWindow)));
      addEventListener("message", ({ source, data }) => {
        if (source === frame.contentWindow) this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
