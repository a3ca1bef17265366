// The memory of a job in words: the verdict, and its peak against the plan.
import {h, note} from '../lib/dom.js';
import {bytes, sentence} from '../lib/words.js';
import {isOver, verdictChip} from './state.js';

const MEANINGS = {steady: 'Memory stays at its level.', 'warm-up': 'Memory still grows, ever more slowly.', fill: 'Memory grows by a constant per row until every row was seen once.',
  leak: 'Memory grows without end.', undecided: 'There are too few readings to tell yet.'};

/** Plans are exact to a twentieth (`job/planner.rs`); what is further above is worth a warning. */
const EXACT = 1.05;

/** What stands above the chart of a job's memory. */
export function memoryWords(job) {
  const {memory, plan} = job.garden;
  if (!memory) return [];
  // A run that came to its end judged itself. Of any other there may be the words of an attempt before, with another verdict.
  const words = isOver(job) && !job.error && memory.words ? memory.words : MEANINGS[memory.verdict] ?? '';
  const told = sentence(/[.!?]$/.test(words) || !words ? words : `${words}.`);
  const isFarAbove = plan && memory.peak_bytes > EXACT * plan.total_bytes;
  return [h('div', {class: 'verdict'}, verdictChip(memory.verdict), h('p', {}, plan && !isFarAbove ? `${told} ${besidePlan(job)}` : told)),
    isFarAbove ? overPlan(memory.peak_bytes, plan) : null];
}

/** A peak that the plan foresaw, as exactly as plans do. */
function besidePlan(job) {
  const [peak, planned] = [bytes(job.garden.memory.peak_bytes), bytes(job.garden.plan.total_bytes)];
  const isAbove = job.garden.memory.peak_bytes > job.garden.plan.total_bytes && peak !== planned;
  const was = isOver(job) ? 'was' : 'is';
  return isAbove ? `The peak ${was} ${peak}; ${planned} were planned, and a plan is exact to a twentieth.` : `The peak ${was} ${peak} of ${planned} planned.`;
}

const overPlan = (peak, plan) => note('warn', `The peak of ${bytes(peak)} is ${bytes(peak - plan.total_bytes)} more than the ${bytes(plan.total_bytes)} planned. A job is stopped at its limit, here ${bytes(plan.limit_bytes)}.`);
