// The form of a job, made from what the server says its options are: a new option has its field by itself.
import {h} from '../lib/dom.js';
import {Field} from './field.js';

/** Groups that are open at first: what most people change. */
const OPEN = new Set(['Length', 'Learning']);
const TITLES = {What: 'Rows', Length: 'Length', Learning: 'Learning', Adapter: 'Adapter', Data: 'Data', Memory: 'Memory', Log: 'Evaluation, checkpoints, log'};

/** Fields for all options: `{element, read, write, blame}`. `onChange` is called after every change. */
export function optionFields(options, onChange) {
  const fields = new Map(options.map(option => [option.key, new Field(option, () => { marks(); onChange(); })]));
  const groups = [...new Set(options.map(option => option.group))];
  const folds = groups.map(group => {
    const own = [...fields.values()].filter(field => field.option.group === group);
    const changed = h('span', {class: 'soft'});
    const fold = h('details', {class: 'fold', open: OPEN.has(group)}, h('summary', {}, TITLES[group] ?? group, changed),
      h('fieldset', {class: 'fields'}, h('legend', {class: 'unseen'}, TITLES[group] ?? group), ...own.map(field => field.element)));
    return {own, changed, fold};
  });
  const marks = () => {
    for (const {own, changed} of folds) {
      const count = own.filter(field => field.isChanged()).length;
      changed.textContent = count ? `${count} changed` : '';
    }
  };
  return {
    element: h('div', {}, ...folds.map(({fold}) => fold)),
    /** What was changed, by its key. */
    read: () => Object.fromEntries([...fields.values()].filter(field => field.isChanged()).map(field => [field.option.key, field.value()])),
    write: settings => {
      for (const [key, value] of Object.entries(settings)) fields.get(key)?.set(value);
      for (const {own, fold} of folds) fold.open ||= own.some(field => field.isChanged());
      marks();
    },
    /** Shows what is wrong at its field, which it gives; nothing if the field is not here. */
    blame: (key, words) => {
      const field = fields.get(key);
      if (!field) return undefined;
      field.element.closest('details').open = true;
      field.blame(words);
      return field;
    },
    /** The first field that is wrong. */
    firstWrong: () => [...fields.values()].find(field => field.isWrong),
    forgive: () => fields.forEach(field => field.blame('')),
  };
}
