// Renders /openapi.json: every route with its parameters and schemas, and a form to try it. Nothing leaves this server.

const METHODS = ["get", "post", "put", "patch", "delete"];
let spec;

/** Makes an element. Text is always text, never markup. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null));
  return element;
}

/** Follows a reference within the document. */
function resolve(value) {
  for (let steps = 0; value && value.$ref && steps < 10; steps += 1) {
    value = value.$ref.slice(2).split("/").reduce((at, key) => at?.[key.replaceAll("~1", "/").replaceAll("~0", "~")], spec);
  }
  return value ?? {};
}

const nameOf = (reference) => reference.split("/").at(-1);

/** A schema's kind in a few words. */
function kind(schema) {
  if (!schema) return "anything";
  if (schema.$ref) return resolve(schema).enum ? kind(resolve(schema)) : nameOf(schema.$ref);
  const choices = schema.oneOf ?? schema.anyOf ?? schema.allOf;
  if (choices) return choices.map(kind).join(schema.allOf ? " and " : " or ");
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  const types = [schema.type ?? "anything"].flat();
  return types.map((type) => (type === "array" ? `array of ${kind(schema.items)}` : type)).join(" or ");
}

/** What a schema demands beside its kind. */
function limits(schema) {
  const names = ["format", "pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems", "default"];
  return names.filter((name) => schema[name] !== undefined).map((name) => `${name} ${JSON.stringify(schema[name])}`).join(", ");
}

/** The fields of a schema as a list, nested ones folded. */
function tree(schema, seen = []) {
  const reference = schema?.$ref;
  if (reference && seen.includes(reference)) return undefined;
  const inside = reference ? [...seen, reference] : seen;
  const at = resolve(schema);
  if (at.type === "array" || (Array.isArray(at.type) && at.type.includes("array"))) return tree(at.items, inside);
  const choices = at.oneOf ?? at.anyOf ?? at.allOf;
  if (choices) {
    const trees = choices.map((choice) => tree(choice, inside)).filter(Boolean);
    return trees.length ? make("div", {}, ...trees) : undefined;
  }
  if (!at.properties) return undefined;
  const fields = Object.entries(at.properties).map(([name, field]) => {
    const required = at.required?.includes(name);
    const below = tree(field, inside);
    const details = resolve(field);
    const line = [
      make("code", {}, name),
      make("span", { class: "soft" }, ` ${kind(field)}${required ? "" : ", optional"}`),
      details.description || field.description ? ` · ${field.description ?? details.description}` : "",
      make("span", { class: "soft" }, limits(details) ? ` (${limits(details)})` : ""),
    ];
    return make("li", {}, below ? make("details", {}, make("summary", {}, ...line), below) : make("span", {}, ...line));
  });
  return make("ul", { class: "schema" }, ...fields);
}

/** A value to begin with. */
function example(schema, depth = 0) {
  const at = resolve(schema);
  if (at.example !== undefined) return at.example;
  if (at.default !== undefined) return at.default;
  if (at.const !== undefined) return at.const;
  if (at.enum) return at.enum[0];
  const choice = (at.oneOf ?? at.anyOf ?? at.allOf)?.find((one) => resolve(one).type !== "null");
  if (choice) return depth > 4 ? null : example(choice, depth + 1);
  const type = [at.type].flat().find((one) => one !== "null");
  if (type === "object" || at.properties) {
    const wanted = Object.entries(at.properties ?? {}).filter(([name]) => at.required?.includes(name));
    return Object.fromEntries(wanted.map(([name, field]) => [name, depth > 4 ? null : example(field, depth + 1)]));
  }
  if (type === "array") return depth > 4 ? [] : [example(at.items, depth + 1)];
  if (type === "integer" || type === "number") return at.minimum ?? 0;
  if (type === "boolean") return false;
  return "";
}

function parameters(operation) {
  if (!operation.parameters?.length) return undefined;
  const rows = operation.parameters.map(resolve).map((parameter) =>
    make("tr", {},
      make("td", {}, make("code", {}, parameter.name)),
      make("td", { class: "soft" }, `${parameter.in}${parameter.required ? ", required" : ""}`),
      make("td", {}, kind(parameter.schema), make("span", { class: "soft" }, ` ${limits(resolve(parameter.schema))}`)),
      make("td", {}, parameter.description ?? "")));
  return make("div", { class: "scroll" }, make("h3", {}, "Parameters"), make("table", {}, ...rows));
}

function body(operation) {
  const content = Object.entries(resolve(operation.requestBody).content ?? {});
  if (!content.length) return undefined;
  return make("div", {}, ...content.map(([type, media]) =>
    make("div", {}, make("h3", {}, `Body: ${type}`), make("span", { class: "soft" }, kind(media.schema)), tree(media.schema))));
}

function responses(operation) {
  const rows = Object.entries(operation.responses ?? {}).map(([status, response]) => {
    const at = resolve(response);
    const media = Object.entries(at.content ?? {});
    const shown = media.map(([type, { schema }]) => make("div", {}, make("code", {}, type), make("span", { class: "soft" }, ` ${kind(schema)}`), response.$ref ? undefined : tree(schema)));
    return make("tr", {}, make("td", {}, make("code", {}, status)), make("td", {}, at.description ?? "", ...shown));
  });
  const good = rows.filter((_, index) => !Object.values(operation.responses)[index].$ref);
  const faults = rows.filter((row) => !good.includes(row));
  return make("div", { class: "scroll" },
    make("h3", {}, "Answers"),
    make("table", {}, ...good),
    faults.length ? make("details", {}, make("summary", { class: "soft" }, "Errors"), make("table", {}, ...faults)) : undefined);
}

/** A form that sends the request. */
function trial(path, method, operation) {
  const form = make("form", {}, make("h3", {}, "Try it"));
  const fields = (operation.parameters ?? []).map(resolve).map((parameter) => {
    const input = make("input", { required: parameter.required, placeholder: kind(parameter.schema) });
    form.append(make("label", {}, `${parameter.name} (${parameter.in})`, input));
    return { parameter, input };
  });
  const [type, media] = Object.entries(resolve(operation.requestBody).content ?? {})[0] ?? [];
  const parts = [];
  let text;
  if (type === "multipart/form-data") {
    const schema = resolve(media.schema);
    for (const [name, field] of Object.entries(schema.properties ?? {})) {
      const isFile = resolve(field).format === "binary";
      const input = make("input", { type: isFile ? "file" : "text", required: schema.required?.includes(name), placeholder: isFile ? undefined : kind(resolve(field)) });
      form.append(make("label", {}, name, input));
      parts.push({ name, input, isFile });
    }
  } else if (type) {
    text = make("textarea", { spellcheck: "false", "aria-label": "Body" });
    text.value = JSON.stringify(example(media.schema), null, 2);
    form.append(make("label", {}, "body", text));
  }
  const answer = make("div", { role: "status" });
  form.append(make("button", { type: "submit" }, `Send ${method.toUpperCase()}`), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    answer.replaceChildren("…");
    const start = performance.now();
    try {
      const { url, options } = request(path, method, fields, parts, text, type);
      const response = await fetch(url, options);
      answer.replaceChildren(...(await shown(response, performance.now() - start)));
    } catch (error) {
      answer.replaceChildren(make("p", { class: "bad" }, String(error)));
    }
  });
  return form;
}

function request(path, method, fields, parts, text, type) {
  const query = new URLSearchParams();
  const headers = {};
  for (const { parameter, input } of fields) {
    const { name } = parameter;
    if (parameter.in === "path") path = path.replace(`{${name}}`, encodeURIComponent(input.value));
    else if (input.value === "") continue;
    else if (parameter.in === "header") headers[name] = input.value;
    else query.append(name, input.value);
  }
  const key = document.querySelector("#key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = { method: method.toUpperCase(), headers };
  if (parts.length) {
    options.body = new FormData();
    for (const { name, input, isFile } of parts) {
      const value = isFile ? input.files[0] : input.value;
      if (value) options.body.append(name, value);
    }
  } else if (text) {
    options.body = text.value;
    headers["Content-Type"] = type;
  }
  const asked = query.toString();
  return { url: asked ? `${path}?${asked}` : path, options };
}

/** An answer as it came; one that streams is shown piece by piece. */
async function shown(response, milliseconds) {
  const head = make("p", { class: response.ok ? "" : "bad" },
    `${response.status} ${response.statusText} after ${milliseconds.toFixed(0)} ms, ${response.headers.get("x-request-id") ?? ""}`);
  const type = response.headers.get("content-type") ?? "";
  const out = make("pre", {});
  if (type.startsWith("text/event-stream")) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    (async () => {
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) out.append(piece.value);
    })().catch((error) => out.append(String(error)));
  } else if (type.startsWith("application/json")) {
    const text = await response.text();
    try {
      out.append(JSON.stringify(JSON.parse(text), null, 2));
    } catch {
      out.append(text);
    }
  } else if (type.startsWith("text/")) {
    out.append((await response.text()).slice(0, 200000));
  } else {
    const blob = await response.blob();
    const link = make("a", { href: URL.createObjectURL(blob), download: "" }, `${blob.size} bytes of ${type || "something"}`);
    return [head, link];
  }
  return [head, out];
}

function route(path, method, operation, id) {
  const summary = make("summary", {},
    make("span", { class: `method ${method}` }, method.toUpperCase()),
    make("span", { class: "path" }, path),
    make("span", { class: "soft" }, ` · ${operation.summary ?? ""}`));
  const details = make("details", { class: "route", id }, summary);
  // Filled when it is opened: a long document stays quick.
  details.addEventListener("toggle", () => {
    if (!details.open || details.children.length > 1) return;
    details.append(make("div", {},
      operation.description ? make("p", {}, operation.description) : undefined,
      parameters(operation), body(operation), responses(operation), trial(path, method, operation)));
  });
  return details;
}

function render() {
  const contents = document.querySelector("#contents");
  const routes = document.querySelector("#routes");
  const tags = new Map();
  for (const [path, item] of Object.entries(spec.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = item[method];
      const tag = operation.tags?.[0] ?? "Other";
      if (!tags.has(tag)) tags.set(tag, []);
      tags.get(tag).push({ path, method, operation });
    }
  }
  contents.replaceChildren();
  routes.replaceChildren(make("p", { class: "soft" }, `${spec.info.title} ${spec.info.version}. ${spec.info.description ?? ""} `, make("a", { href: "/openapi.json" }, "The document")));
  for (const [tag, entries] of tags) {
    const section = make("section", {}, make("h2", {}, tag));
    contents.append(make("h2", {}, tag));
    for (const { path, method, operation } of entries) {
      const id = operation.operationId ?? `${method}${path}`;
      section.append(route(path, method, operation, id));
      const link = make("a", { href: `#${id}` }, make("span", { class: `method ${method}` }, method.toUpperCase()), path.replace(/^\/v1\//, ""));
      contents.append(link);
    }
    routes.append(section);
  }
  open();
}

/** Opens the route that the address names. */
function open() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named) {
    named.open = true;
    named.scrollIntoView();
  }
}

addEventListener("hashchange", open);
try {
  const response = await fetch("/openapi.json");
  if (!response.ok) throw new Error(`the document is not to be had: ${response.status}`);
  spec = await response.json();
  render();
} catch (error) {
  document.querySelector("#routes").replaceChildren(make("p", { class: "bad" }, String(error)));
}
