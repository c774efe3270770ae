// A dialog above the page: what is behind it cannot be reached until it is closed, and gets the focus back.

import { useEffect, useRef } from "./vendor/hooks.js";
import { html } from "./parts.js";

export function Modal({ label, onClose, children }) {
  const box = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  const cancelled = (event) => {
    event.preventDefault();
    onClose?.();
  };
  return html`<dialog ref=${box} aria-label=${label} class="panel modal" onCancel=${cancelled}>${children}</dialog>`;
}
