// The memory of a job in words: the verdict, and its peak against the plan.
import {h, note} from '../lib/dom.js';
import {bytes, sentence} from '../lib/words.js';
import {limitOf} from './plan.js';
import {isOver, verdictChip} from './state.js';

const MEANINGS = {steady: 'Memory stays at its level.', 'warm-up': 'Memory still grows, ever more slowly.', fill: 'Memory grows by a constant per row until every row was seen once.',
  leak: 'Memory grows without end.', undecided: 'There are too few readings to tell yet.'};

/** What stands above the chart of a job's memory. */
export function memoryWords(job) {
  const {memory, plan} = job.garden;
  if (!memory) return [];
  // A run that came to its end judged itself. Of any other there may be the words of an attempt before, with another verdict.
  const words = isOver(job) && !job.error && memory.words ? memory.words : MEANINGS[memory.verdict] ?? '';
  const told = sentence(/[.!?]$/.test(words) || !words ? words : `${words}.`);
  const isOverPlan = plan && memory.peak_bytes > plan.total_bytes;
  const within = plan && !isOverPlan ? ` The peak ${isOver(job) ? 'was' : 'is'} ${bytes(memory.peak_bytes)} of ${bytes(plan.total_bytes)} planned.` : '';
  return [h('div', {class: 'verdict'}, verdictChip(memory.verdict), h('p', {}, told + within)), isOverPlan ? overPlan(memory.peak_bytes, plan) : null];
}

const overPlan = (peak, plan) => note('warn', `The peak of ${bytes(peak)} is ${bytes(peak - plan.total_bytes)} more than the ${bytes(plan.total_bytes)} planned. A job is stopped at its limit, here ${bytes(limitOf(plan))}.`);
