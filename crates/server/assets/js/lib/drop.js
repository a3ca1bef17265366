// A place to drop files on, or to choose them with the keyboard.
import {h} from './dom.js';

/** `onFiles` gets the files, one after another drop. */
export function dropZone({words, accept, multiple = false, id}, onFiles) {
  const input = h('input', {type: 'file', id, accept, multiple, change: () => take(input.files)});
  const zone = h('div', {class: 'drop'}, h('p', {}, words, ' or ', h('label', {for: id}, multiple ? 'choose files' : 'choose one'), input));
  const take = files => {
    if (files.length) onFiles([...files].slice(0, multiple ? files.length : 1));
    input.value = '';
  };
  let depth = 0;
  const mark = change => { depth += change; zone.classList.toggle('over', depth > 0); };
  zone.addEventListener('dragenter', event => { event.preventDefault(); mark(1); });
  zone.addEventListener('dragleave', () => mark(-1));
  zone.addEventListener('dragover', event => event.preventDefault());
  zone.addEventListener('drop', event => {
    event.preventDefault();
    mark(-depth);
    take(event.dataTransfer.files);
  });
  return zone;
}
