// A dialog above the page: what is behind it cannot be reached until it is closed, and gets the focus back.

import { useLayoutEffect, useRef } from "./vendor/hooks.js";
import { html } from "./parts.js";

export function Modal({ label, onClose, children }) {
  const box = useRef(null);
  // Before anything else can happen: a key that comes as soon as it is seen is its own.
  useLayoutEffect(() => {
    const before = document.activeElement, dialog = box.current;
    dialog.showModal();
    return () => {
      dialog.close(); // until then nothing behind it takes the focus
      before?.focus?.();
    };
  }, []);
  const cancelled = (event) => {
    event.preventDefault();
    onClose?.();
  };
  // Browsers close some dialogs without asking: those that were opened without a key or click.
  const closed = () => (onClose ? onClose() : box.current?.showModal());
  return html`<dialog ref=${box} aria-label=${label} class="panel modal" onCancel=${cancelled} onClose=${closed}>${children}</dialog>`;
}
