// What changes while the page is open: streams of events, and questions asked again and again.
import {refusal} from './api.js';

/**
 * Listens to server-sent events. The browser reconnects by itself and sends the id of the last event; where it has given
 * up we begin anew after a while, behind the last event. `handlers` has a function for each event's name. `onState` is told
 * `live`, `lost`, `ended`, or `refused` with the server's words: then it is over. Returns a function that ends it.
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
      if (!ended && source.readyState === EventSource.CLOSED) again(from);
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
  const again = async from => {
    // A stream does not say why it was refused: a plain question does.
    const refused = await refusal(from);
    if (ended) return;
    if (refused && isFinal(refused.status)) return onState('refused', refused.message);
    timer = setTimeout(begin, wait);
    wait = Math.min(2 * wait, 30000);
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

/** Whether it is of no use to ask again: the question is wrong. A server that is busy (429) may answer later. */
const isFinal = status => status >= 400 && status < 500 && ![408, 429].includes(status);

/** Does something that needs the server; where the server does not answer, says so and tries again every three seconds. */
export async function patiently(work, onTrouble) {
  for (;;) {
    try { return await work(); } catch (error) {
      if (error.status !== 0 && !(error.status >= 500)) throw error;
      onTrouble(error);
    }
    await new Promise(resolve => setTimeout(resolve, 3000));
  }
}

const pointers = new Set();
addEventListener('pointerdown', event => pointers.add(event.pointerId), true);
// The click follows its pointer: what waits for it to end must come after both.
for (const name of ['pointerup', 'pointercancel']) addEventListener(name, event => setTimeout(() => pointers.delete(event.pointerId)), true);

/** Waits while a pointer is down: what is being pressed must not be replaced under it. */
export async function untouched() {
  while (pointers.size) await new Promise(resolve => setTimeout(resolve, 50));
}

/** Does something now and every `seconds`, never twice at once, not while nobody looks, and not during a press. */
export function repeat(seconds, work) {
  let busy = false;
  const turn = async () => {
    if (busy || document.hidden || pointers.size) return;
    busy = true;
    try { await work(); } finally { busy = false; }
  };
  const timer = setInterval(turn, 1000 * seconds);
  document.addEventListener('visibilitychange', turn);
  turn();
  return () => { clearInterval(timer); document.removeEventListener('visibilitychange', turn); };
}

/** Calls that come while `work` is under way become one more call after it. A call that fails is made up for by the next. */
export function oneAtATime(work) {
  let busy = false, again = false;
  return async function turn() {
    if (busy) { again = true; return; }
    [busy, again] = [true, false];
    // Where the server does not answer, what is shown stays.
    try { await work(); } catch (error) { if (error.status === undefined) throw error; } finally { busy = false; }
    if (again) turn();
  };
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
