// Browsers start no worker for a page that was opened from a folder. There the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inner = frame.contentWindow
      // Before the script runs: it says what it finds by this function.
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve))
      script.src = url
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data })))
    }
  }
}
