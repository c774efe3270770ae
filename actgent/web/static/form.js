// Forms of approvals: renders the fields by type, and reads their values.

import { html } from "./parts.js";

const KINDS = ["boolean", "text", "select", "multiselect", "number", "date", "datetime", "file", "confirm", "custom"];
const FORMATS = { date: "date", "date-time": "datetime" };
const MAX_FILE = 1000000;

function kindOf(member, options) {
  if (KINDS.includes(member["x-input"])) return member["x-input"];
  if (member.type === "boolean") return "boolean";
  if (member.type === "number" || member.type === "integer") return "number";
  if (member.type === "array") return options.length ? "multiselect" : "custom";
  if (options.length) return "select";
  return member.type === "string" ? FORMATS[member.format] || "text" : "custom";
}

export function fieldsOf(form) {
  const required = form?.required || [];
  return Object.entries(form?.properties || {}).map(([name, member]) => {
    const options = (member.items?.enum || member.enum || []).map(String);
    const label = member.title || name;
    return { name, member, options, label, kind: kindOf(member, options), required: required.includes(name) };
  });
}

export function FormFields({ asked, id }) {
  return asked.map((field) => html`<${FormField} key=${field.name} field=${field} id="${id}-${field.name}" />`);
}

const TYPES = { text: "text", number: "number", date: "date", datetime: "datetime-local", file: "file" };

function FormField({ field, id }) {
  const { name, kind, label, member, options, required } = field;
  const help = member.description && html`<span class="dim" id="${id}-help">${member.description}</span>`;
  const described = member.description ? `${id}-help` : undefined;
  const named = html`<label for=${id}>${label}${required && kind !== "boolean" ? " *" : ""}</label>`;
  if (kind === "boolean" || kind === "confirm")
    return html`<p class="field"><input type="checkbox" id=${id} name=${name} required=${kind === "confirm" && required} defaultChecked=${member.default === true} aria-describedby=${described} /> ${named} ${help}</p>`;
  if (kind === "select" || kind === "multiselect") {
    const chosen = [].concat(member.default ?? []).map(String);
    return html`<p class="field">${named} ${help}<select id=${id} name=${name} multiple=${kind === "multiselect"} required=${required} aria-describedby=${described}>
      ${kind === "select" && html`<option value=""></option>`}
      ${options.map((each) => html`<option key=${each} value=${each} selected=${chosen.includes(each)}>${each}</option>`)}
    </select></p>`;
  }
  if (kind === "custom")
    return html`<p class="field">${named} ${help}<textarea id=${id} name=${name} rows="3" required=${required} aria-describedby=${described} placeholder="JSON"></textarea></p>`;
  return html`<p class="field">${named} ${help}<input id=${id} name=${name} type=${TYPES[kind]} step=${kind === "number" && member.type !== "integer" ? "any" : undefined} min=${member.minimum} max=${member.maximum} minlength=${member.minLength} maxlength=${member.maxLength} required=${required} defaultValue=${kind === "file" ? undefined : member.default} aria-describedby=${described} /></p>`;
}

async function fileOf(file) {
  if (file.size > MAX_FILE) throw new Error(`${file.name} has more than ${MAX_FILE.toLocaleString()} bytes`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let at = 0; at < bytes.length; at += 32768) text += String.fromCharCode(...bytes.subarray(at, at + 32768));
  return { name: file.name, media_type: file.type || "application/octet-stream", data: btoa(text) };
}

async function valueOf({ kind, label, options }, input) {
  if (kind === "boolean") return input.checked;
  if (kind === "confirm") return input.checked || undefined;
  if (kind === "multiselect") return options.filter((each) => [...input.selectedOptions].some((one) => one.value === each));
  if (kind === "file") return input.files.length ? fileOf(input.files[0]) : undefined;
  if (input.value === "") return undefined;
  if (kind === "number") return Number(input.value);
  if (kind === "datetime") return new Date(input.value).toISOString();
  if (kind !== "custom") return input.value;
  try {
    return JSON.parse(input.value);
  } catch (error) {
    throw new Error(`${label}: ${error.message}`);
  }
}

export async function valuesOf(asked, form) {
  const values = {};
  for (const field of asked) {
    const value = await valueOf(field, form.elements.namedItem(field.name));
    const isEmpty = value === undefined || (field.kind === "multiselect" && !value.length && !field.required);
    if (!isEmpty) values[field.name] = value;
  }
  return values;
}
