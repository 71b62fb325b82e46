// Browsers start no workers from files. Where this page is one, a hidden frame runs the script of the
// worker instead: it gets messages by its window, and answers to whoever listens here.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      this.ready = new Promise((resolve, reject) => {
        const inside = this.frame.contentWindow
        // What a worker would call in itself.
        inside.postMessage = (data) => {
          const event = new MessageEvent("message", { data })
          if (this.onmessage) this.onmessage(event)
          this.dispatchEvent(event)
        }
        inside.importScripts = (...urls) =>
          urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve())
        this.load(url).then(resolve, reject)
      })
    }

    load(url) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script")
        script.src = new URL(url, document.baseURI)
        script.onload = resolve
        script.onerror = () => reject(new Error(`${url} does not load`))
        this.frame.contentDocument.body.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => {
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      })
    }

    terminate() {
      this.frame.remove()
    }
  }
}
