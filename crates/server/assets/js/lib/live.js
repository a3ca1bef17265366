// What changes while the page is open: streams of events, and questions asked again and again.
import {get} from './api.js';

/**
 * Listens to server-sent events. The browser reconnects by itself and sends the id of the last event; where it has given
 * up, because the server refused, we begin anew after a while, behind the last event. `handlers` has a function for each event's name.
 * Returns a function that ends it.
 */
export function listen(path, handlers, onState = () => {}) {
  let source, timer, last, ended = false, wait = 1000;
  const begin = () => {
    const from = new URL(path, location.href);
    if (last) from.searchParams.set('after', last);
    source = new EventSource(from);
    source.onopen = () => { wait = 1000; onState('live'); };
    source.onerror = () => {
      onState(ended ? 'ended' : 'lost');
      if (ended || source.readyState !== EventSource.CLOSED) return;
      // A stream does not say why it was refused. If it is for want of a key, this leads to the login.
      get('/v1/garden/machine').catch(() => {});
      timer = setTimeout(begin, wait);
      wait = Math.min(2 * wait, 30000);
    };
    for (const [name, handle] of Object.entries(handlers)) {
      source.addEventListener(name, event => {
        last = event.lastEventId || last;
        let data;
        try { data = JSON.parse(event.data); } catch { return; }
        handle(data);
      });
    }
  };
  const pause = () => { clearTimeout(timer); source.close(); };
  // The browser may keep a page that was left and show it again as it was.
  const resume = event => { if (event.persisted && !ended) begin(); };
  addEventListener('pagehide', pause);
  addEventListener('pageshow', resume);
  begin();
  return () => {
    ended = true;
    pause();
    removeEventListener('pagehide', pause);
    removeEventListener('pageshow', resume);
  };
}

/** Does something now and every `seconds`, never twice at once, and not while nobody looks. */
export function repeat(seconds, work) {
  let busy = false;
  const turn = async () => {
    if (busy || document.hidden) return;
    busy = true;
    try { await work(); } finally { busy = false; }
  };
  const timer = setInterval(turn, 1000 * seconds);
  document.addEventListener('visibilitychange', turn);
  turn();
  return () => { clearInterval(timer); document.removeEventListener('visibilitychange', turn); };
}

/** Calls `work` once the calls have stopped for a while; a newer call aborts the one under way. */
export function settled(milliseconds, work) {
  let timer, controller;
  return (...values) => {
    clearTimeout(timer);
    controller?.abort();
    timer = setTimeout(() => {
      controller = new AbortController();
      work(controller.signal, ...values);
    }, milliseconds);
  };
}

/** Turns of a view: each call begins a turn and gives whether it is still the newest. An answer that comes late must not replace a newer one. */
export function turns() {
  let newest = 0;
  return () => {
    const mine = ++newest;
    return () => mine === newest;
  };
}
