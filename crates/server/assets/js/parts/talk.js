// A model's answer as it is written, from the chat route's stream.
import {ApiError} from '../lib/api.js';

/** Asks a model; `onText` gets all that it has said so far. Gives `{text, reason, usage, seconds}`. */
export async function ask({model, messages, settings, signal}, onText) {
  const began = performance.now();
  const response = await fetch('/v1/chat/completions', {method: 'POST', headers: {'content-type': 'application/json'}, signal,
    body: JSON.stringify({model, messages, stream: true, stream_options: {include_usage: true}, ...settings})});
  if (!response.ok) throw new ApiError(response.status, (await response.json().catch(() => ({}))).error);
  let text = '', reason = null, usage = null, first = null;
  for await (const event of eventsOf(response.body)) {
    if (event.error) throw new ApiError(500, event.error);
    const [choice] = event.choices ?? [];
    if (choice?.delta?.content) {
      first ??= performance.now();
      text += choice.delta.content;
      onText(text);
    }
    reason = choice?.finish_reason ?? reason;
    usage = event.usage ?? usage;
  }
  const now = performance.now();
  return {text, reason, usage, seconds: (now - began) / 1000, first: first === null ? null : (first - began) / 1000};
}

/** The JSON events of a stream, until `[DONE]`. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      const data = line.startsWith('data:') ? line.slice(5).trim() : '';
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

/** A file as a data URI. */
export const asUri = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});
