// An image as (part of) the query: chosen, pasted, or dropped anywhere on the page.

const $ = (id) => document.getElementById(id);

export function pictures({ onPicture, onRemoved, onRefused }) {
  const chip = $("picture"), shown = chip.querySelector("img"), chooser = $("file"), drop = $("drop");

  function clear() {
    if (shown.src.startsWith("blob:")) URL.revokeObjectURL(shown.src);
    shown.removeAttribute("src");
    chip.hidden = true;
    chooser.value = "";
  }

  function take(file) {
    if (!file) return;
    if (!file.type.startsWith("image/")) {
      onRefused(`“${file.name}” is not an image: drop a JPEG, PNG or WebP file.`);
      return;
    }
    clear();
    shown.src = URL.createObjectURL(file);
    shown.alt = `Query image ${file.name}`;
    chip.hidden = false;
    onPicture(file);
  }

  chooser.addEventListener("change", () => take(chooser.files[0]));
  chip.querySelector("button").addEventListener("click", () => {
    clear();
    onRemoved();
  });
  addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (!file) return;
    event.preventDefault();
    take(file);
  });

  // dragenter and dragleave also come for every element under the pointer: count them.
  let inside = 0;
  const brings = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragenter", (event) => {
    if (!brings(event)) return;
    inside++;
    drop.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (brings(event) && --inside <= 0) drop.hidden = true;
  });
  addEventListener("dragover", (event) => brings(event) && event.preventDefault());
  addEventListener("drop", (event) => {
    inside = 0;
    drop.hidden = true;
    if (!brings(event)) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });

  return { clear };
}
