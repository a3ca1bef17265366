// A form that is kept while the tab is open: a reload, or the way back, finds what was entered.

/** The draft of this page; pages with other queries have others. Without storage nothing is kept. */
export class Draft {
  constructor(name) { this.key = `${name}${location.search}`; }

  read() { try { return JSON.parse(sessionStorage.getItem(this.key)); } catch { return null; } }
  keep(values) { try { sessionStorage.setItem(this.key, JSON.stringify(values)); } catch { /* It is on the page. */ } }
  drop() { try { sessionStorage.removeItem(this.key); } catch { /* Nothing was kept. */ } }
}
