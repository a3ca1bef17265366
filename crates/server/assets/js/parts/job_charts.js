// The charts of one job.
import {h} from '../lib/dom.js';
import {Chart} from '../lib/chart.js';
import {bytes} from '../lib/words.js';

/** Charts below `target`, and memory in a place of its own. `update` draws what the curves hold now. */
export function jobCharts(target, memoryTarget) {
  const sheet = () => target.appendChild(h('div', {class: 'sheet'}));
  const loss = new Chart(sheet(), {title: 'Loss', summary: 'of every step, and of the held-out rows', blank: 'The first step is still to come.'});
  const rate = new Chart(sheet(), {title: 'Learning rate', summary: 'of every step', fromZero: true, blank: 'The first step is still to come.'});
  const speed = new Chart(sheet(), {title: 'Throughput', summary: 'tokens a second', fromZero: true, blank: 'The first step is still to come.'});
  const exact = new Chart(sheet(), {title: 'Token accuracy', summary: 'share of held-out tokens that the model would have chosen', unit: 'share', blank: 'No evaluation yet. They need rows to evaluate on.'});
  const memory = new Chart(memoryTarget, {title: 'Memory of the process', summary: '', unit: 'bytes', axis: 'time', fromZero: true, wide: true, blank: 'No reading yet: it has not started.'});
  return {
    update(curves, job) {
      const {eval: evaluated, memory: readings, phases, plan_bytes: planned} = curves.points;
      loss.set({lines: [curves.line('train', 'loss', 'training'), ...(evaluated.step.length ? [curves.line('eval', 'loss', 'held out')] : [])]});
      rate.set({lines: [curves.line('train', 'learning_rate', 'rate')]});
      speed.set({lines: [curves.line('train', 'tokens_per_second', 'tokens a second')]});
      exact.set({lines: [curves.line('eval', 'token_accuracy', 'accuracy')]});
      const plan = job.garden.plan?.total_bytes ?? planned;
      memory.set({lines: [{name: 'resident', x: readings.time, y: readings.bytes}], spans: open(phases, job),
        levels: plan ? [{value: plan, text: `plan ${bytes(plan)}`, meaning: 'plan'}] : []});
      memory.summary(plan ? `resident bytes of the whole process tree, against its plan of ${bytes(plan)}` : 'resident bytes of the whole process tree');
    },
  };
}

/** The last phase goes on while the job runs. */
function open(phases, job) {
  if (!['running', 'stopping'].includes(job.garden.state) || !phases.length) return phases;
  return phases.map((phase, at) => at === phases.length - 1 ? {...phase, to: Infinity} : phase);
}
