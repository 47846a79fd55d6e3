// Browsers refuse workers to a page opened from a disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.scope = frame.contentWindow
      this.scope.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        this.onmessage?.(event)
      }
      this.scope.importScripts = (...urls) => Promise.all(urls.map(each => this.load(each)))
      this.load(url).then(() => {
        this.ready = true
        this.waiting.splice(0).forEach(data => this.postMessage(data))
      })
    }
    load(url) {
      return new Promise((done, failed) => {
        const page = this.scope.document
        const script = page.createElement("script")
        Object.assign(script, { src: new URL(url, location), onload: done, onerror: failed })
        page.body.appendChild(script)
      })
    }
    postMessage(data) {
      if (this.ready) this.scope.dispatchEvent(new this.scope.MessageEvent("message", { data }))
      else this.waiting.push(data)
    }
    terminate() {
      this.scope.frameElement.remove()
    }
  }
}
