// A job's points as they come: what was there at first, and what a stream adds. A step that comes again replaces itself.

const LISTS = {train: ['step', 'loss', 'learning_rate', 'grad_norm', 'seconds', 'tokens_per_second'], eval: ['step', 'loss', 'token_accuracy']};

export class Curves {
  constructor(points) { this.points = points; }

  /** Adds a point to a group, in the order of its steps; a run that went back to a checkpoint drops what came after. */
  put(group, values) {
    const lists = this.points[group];
    const at = lists.step.findIndex(step => step >= values.step);
    const place = at < 0 ? lists.step.length : at;
    for (const name of LISTS[group]) lists[name][place] = values[name] ?? null;
  }

  step(event) { this.put('train', {...event, tokens_per_second: event.seconds > 0 ? event.tokens / event.seconds : 0}); }
  evaluation(event) { this.put('eval', event); }

  /** A run that goes on from a checkpoint repeats what came after it. */
  started({step}) {
    for (const [group, names] of Object.entries(LISTS)) {
      const keep = this.points[group].step.filter(at => at <= step).length;
      for (const name of names) this.points[group][name].length = keep;
    }
  }

  /** A reading of memory, `time` in seconds since the first event. */
  memory(time, bytes, step) {
    const {memory} = this.points;
    if (memory.time.length && time <= memory.time.at(-1)) return;
    memory.time.push(time);
    memory.bytes.push(bytes);
    memory.step.push(step ?? null);
  }

  get isEmpty() { return !this.points.train.step.length; }

  line(group, name, title) { return {name: title, x: this.points[group].step, y: this.points[group][name]}; }
}
