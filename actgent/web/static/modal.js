// A modal dialog. The page behind it is inert until it closes, and then gets the focus back.

import { useLayoutEffect, useRef } from "./vendor/hooks.js";
import { html } from "./parts.js";

export function Modal({ label, onClose, children }) {
  const box = useRef(null);
  // Before the first paint: a key press directly after the paint must reach the dialog.
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
  // Browsers close dialogs without a cancel event if they were opened without a key press or click. The event of a removed dialog
  // arrives late: it must not close a dialog that was opened meanwhile.
  const closed = () => box.current && (onClose ? onClose() : box.current.showModal());
  return html`<dialog ref=${box} aria-label=${label} class="panel modal" onCancel=${cancelled} onClose=${closed}>${children}</dialog>`;
}
