// Calls of the server's API. An error carries the server's own words, which are written for people.

export class ApiError extends Error {
  constructor(status, {message, param, code} = {}) {
    super(message ?? `The server answered ${status}.`);
    Object.assign(this, {status, param, code});
  }
}

/** The answer to a request: JSON where it is JSON, else text. */
export async function call(method, path, body, {signal} = {}) {
  const isPlain = body === undefined || body instanceof Blob || body instanceof FormData;
  const headers = isPlain ? {} : {'content-type': 'application/json'};
  let response;
  try {
    response = await fetch(path, {method, headers, body: isPlain ? body : JSON.stringify(body), signal});
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, {message: 'The server does not answer. Does it run?'});
  }
  return read(response);
}

async function read(response) {
  const isJson = response.headers.get('content-type')?.includes('json');
  const answer = isJson ? await response.json() : await response.text();
  if (response.ok) return answer;
  if (response.status === 401) location.href = `/login?next=${encodeURIComponent(location.pathname + location.search)}`;
  throw new ApiError(response.status, answer?.error);
}

/** Why the server refuses a path that gives a stream; null where it does not. Only the head of the answer is read. */
export async function refusal(path) {
  const controller = new AbortController();
  try {
    const response = await fetch(path, {signal: controller.signal});
    if (!response.ok) await read(response);
  } catch (error) {
    return error instanceof ApiError ? error : null;
  } finally {
    controller.abort();
  }
  return null;
}

export const get = (path, options) => call('GET', path, undefined, options);
export const post = (path, body = {}, options) => call('POST', path, body, options);
export const del = path => call('DELETE', path);

/** All objects of a list, page by page, up to `most`. */
export async function all(path, most = 1000) {
  const found = [];
  let after = '';
  for (;;) {
    const page = await get(`${path}${path.includes('?') ? '&' : '?'}limit=100${after}`);
    found.push(...page.data);
    if (!page.has_more || !page.data.length || found.length >= most) return found;
    after = `&after=${encodeURIComponent(page.data.at(-1).id)}`;
  }
}

/** Sends a form with a file and tells how far it is. */
export function send(path, form, onProgress) {
  const request = new XMLHttpRequest();
  const done = new Promise((resolve, reject) => {
    const answer = () => { try { return JSON.parse(request.responseText); } catch { return {}; } };
    request.onload = () => request.status < 300 ? resolve(answer()) : reject(new ApiError(request.status, answer().error));
    request.onerror = () => reject(new ApiError(0, {message: 'The upload broke off. Does the server run, and is there room on its disk?'}));
    request.onabort = () => reject(new ApiError(0, {message: 'The upload was cancelled.'}));
  });
  request.upload.onprogress = event => onProgress(event.loaded, event.total);
  request.open('POST', path);
  request.send(form);
  return {done, abort: () => request.abort()};
}
