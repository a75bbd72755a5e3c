/** Images of the reader as data URLs, which a model of images reads in place of a text. */

const LARGEST = 300_000; // bytes that are sent as they are
const WIDEST = 1024; // pixels of what is larger

export const isImage = (text) => text.startsWith("data:image/");

/** A file as a data URL: as it is, so that the server reads what `qkv classify` would, or scaled down. */
export async function dataUrl(file) {
  if (!file.type.startsWith("image/")) throw new TypeError(file.name);
  const bitmap = await createImageBitmap(file); // fails on what is no image
  if (file.size <= LARGEST) return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = reject;
    reader.readAsDataURL(file);
  });
  const scale = Math.min(1, WIDEST / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [bitmap.width, bitmap.height].map((side) => Math.max(1, Math.round(side * scale)));
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}
