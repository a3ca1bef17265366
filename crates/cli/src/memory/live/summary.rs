//! The last word of a watch, and the verdict in one line.

use super::{Ending, Seen};
use garden_memory::{
    Assessment, ByteSize, Exhaustion, Holder, Moment, Plateau, Reading, Verdict, WhoReport, probe::Spike,
};
use std::io::{self, Write};

/// The verdict and the probability of the ending that it names.
pub fn headline(assessment: &Assessment) -> String {
    let word = verdict_word(assessment.verdict);
    match assessment.verdict {
        Verdict::Undecided => match assessment.decidable_at_step {
            Some(step) => format!("{word} until step {step}"),
            None => word.to_owned(),
        },
        _ => format!("{word} ({})", assessment.ending()),
    }
}

/// The verdict as it is written.
pub fn verdict_word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Steady => "steady",
        Verdict::WarmUp => "warm-up",
        Verdict::Fill => "fill",
        Verdict::Leak => "leak",
        Verdict::Undecided => "undecided",
    }
}

/// What lies ahead, a sentence each: rates, plateau, exhaustion, endings.
pub fn forecast(assessment: &Assessment) -> Vec<String> {
    let mut lines = Vec::new();
    let size = |bytes: f64| ByteSize(bytes.abs() as u64);
    let rates = [
        (assessment.growth_per_step, "step"),
        (assessment.growth_per_sample, "sample"),
        (assessment.growth_per_minute, "minute"),
    ];
    let rates: Vec<String> = rates
        .into_iter()
        .filter_map(|(rate, unit)| rate.map(|rate| format!("{} per {unit}", size(rate))))
        .collect();
    if !rates.is_empty() {
        let verb = if assessment.grows_now { "grows" } else { "grew" };
        let is_open = assessment.verdict == Verdict::Undecided && !assessment.grows_now;
        let now = if is_open { " while it grew, level now" } else { "" };
        lines.push(format!("{verb} by {}{now}", rates.join(", ")));
    }
    let ending = |verdict: Verdict, plateau: Option<Plateau>, exhaustion: Option<Exhaustion>| {
        let level = plateau.map(|plateau| {
            let size = ByteSize(plateau.bytes);
            match (verdict, plateau.step) {
                (Verdict::Steady, _) => size.to_string(),
                (_, Some(step)) => format!("levels off at {size} at step {step}"),
                (_, None) => format!("levels off at {size}"),
            }
        });
        let end = exhaustion.and_then(|exhaustion| match (exhaustion.step, exhaustion.seconds) {
            (Some(step), _) => Some(format!("reaches the limit at step {step}")),
            (None, Some(seconds)) => Some(format!("reaches the limit in {}", super::screen::clock(seconds))),
            (None, None) => None,
        });
        [level, end].into_iter().flatten().collect::<Vec<_>>().join(", ")
    };
    match assessment.plateau {
        Some(plateau) if assessment.verdict == Verdict::Steady => {
            lines.push(format!("stays at {}", ByteSize(plateau.bytes)));
        }
        Some(plateau) => {
            let step = plateau.step.map(|step| format!(" at step {step}")).unwrap_or_default();
            lines.push(format!("levelled off at {}{step}", ByteSize(plateau.bytes)));
        }
        None => {
            let own = ending(assessment.verdict, None, assessment.exhaustion);
            lines.extend((!own.is_empty()).then_some(own));
        }
    }
    for possible in &assessment.endings {
        let what = ending(possible.verdict, possible.plateau, possible.exhaustion);
        if !what.is_empty() {
            lines.push(format!("{}: {what}", condition(possible.verdict)));
        }
    }
    lines
}

/// The condition under which a possible ending comes.
fn condition(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Steady => "if it stays steady",
        Verdict::WarmUp => "if it is a warm-up",
        Verdict::Fill => "if it is a fill",
        Verdict::Leak => "if it is a leak",
        Verdict::Undecided => "if it stays undecided",
    }
}

/// Writes the summary.
pub fn write(writer: &mut dyn Write, ending: &Ending<'_>, seen: &Seen) -> io::Result<()> {
    let how = ending.how.unwrap_or("ended by an error");
    let after = super::screen::clock(ending.after.as_secs_f64());
    let Some(Reading { snapshot, assessment, facts }) = &seen.last else {
        return writeln!(writer, "model-garden: {how} after {after}; nothing was seen of its memory");
    };
    writeln!(writer, "model-garden: {how} after {after}")?;
    let (end, when) = match assessment.before_end {
        Some(before) => (before.owned, "before it ended"),
        None => (snapshot.sample.owned(), "at the end"),
    };
    write!(writer, "  memory   {} {when}, {} at the most", ByteSize(end), ByteSize(snapshot.peak))?;
    match (facts.leave_free, facts.limit) {
        (Some(free), _) => writeln!(writer, "; {} to leave free", ByteSize(free))?,
        (None, Some(limit)) => writeln!(writer, "; limit {}", ByteSize(limit))?,
        (None, None) => writeln!(writer)?,
    }
    if let Some(Spike { pid, command, resident }) = &snapshot.spike {
        let resident = ByteSize(*resident);
        writeln!(
            writer,
            "           between two looks process {pid} had {resident} resident, mapped files included: {}",
            short(command)
        )?;
    }
    if let Some(moment) = &seen.at_limit {
        write_holders(writer, moment)?;
    }
    writeln!(writer, "  verdict  {}", headline(assessment))?;
    for line in forecast(assessment) {
        writeln!(writer, "           {line}")?;
    }
    let holders = seen.holders().map(WhoReport::lines).unwrap_or_default();
    for (index, line) in holders.iter().enumerate() {
        writeln!(writer, "  {:<8} {line}", if index == 0 { "held by" } else { "" })?;
    }
    for (title, sentences) in [("because", &assessment.evidence), ("do", &assessment.advice)] {
        for (index, sentence) in sentences.iter().enumerate() {
            writeln!(writer, "  {:<8} {sentence}", if index == 0 { title } else { "" })?;
        }
    }
    Ok(())
}

/// How much each process held when the limit was acted upon, a line each.
fn write_holders(writer: &mut dyn Write, moment: &Moment) -> io::Result<()> {
    let Moment { t, owned, held } = moment;
    writeln!(writer, "  at limit {} after {}, held by", ByteSize(*owned), super::screen::clock(*t))?;
    for Holder { pid, command, owned } in held {
        writeln!(writer, "           {:>9}  process {pid:<8} {}", ByteSize(*owned), short(command))?;
    }
    match moment.others() {
        0 => Ok(()),
        others => writeln!(writer, "           {:>9}  others", ByteSize(others)),
    }
}

/// A command line, cut to what is left of a line.
fn short(command: &str) -> String {
    const WIDTH: usize = 60;
    let cut: String = command.chars().take(WIDTH).collect();
    if cut.len() < command.len() { format!("{}...", cut.trim_end()) } else { cut }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::live::lines::write_json_summary;
    use garden_memory::{Analyst, RunFacts, Sample, probe::Snapshot};
    use std::time::Duration;

    /// What is said of a run, 80 steps an epoch.
    fn said(steps: u64, bytes: impl Fn(u64) -> u64) -> (String, Vec<String>) {
        said_of(RunFacts { steps_per_epoch: Some(80.0), ..RunFacts::default() }, steps, bytes)
    }

    fn said_without_epochs(steps: u64, bytes: impl Fn(u64) -> u64) -> (String, Vec<String>) {
        said_of(RunFacts::default(), steps, bytes)
    }

    fn said_of(facts: RunFacts, steps: u64, bytes: impl Fn(u64) -> u64) -> (String, Vec<String>) {
        let mut analyst = Analyst::new(facts);
        for step in 1..=steps {
            let anon = bytes(step) + (step * 7_919) % 300_000;
            analyst.push(&Sample { t: step as f64, step: Some(step), rss: anon, anon, ..Sample::default() });
        }
        let assessment = analyst.assessment();
        (headline(&assessment), forecast(&assessment))
    }

    #[test]
    fn what_has_stopped_grew_and_what_goes_on_grows() {
        let (headline, lines) = said(200, |step| 1_000_000_000 + 5_000_000 * step.min(80));
        assert_eq!(headline, "fill (has stopped growing: 99 %)");
        assert!(lines[0].starts_with("grew by ") && lines[1].starts_with("levelled off at 1.4"), "{lines:?}");
        let (headline, lines) = said(200, |step| 1_000_000_000 + 5_000_000 * step);
        assert_eq!(headline, "leak (will go on growing: 99 %)");
        assert!(lines[0].starts_with("grows by 5.0 MB per step"), "{lines:?}");
        let (headline, lines) = said(200, |_| 341_000_000);
        assert!(headline.starts_with("steady (will stay level: "), "{headline}");
        assert_eq!(lines, ["stays at 341 MB"]);
    }

    #[test]
    fn growth_that_has_ceased_is_told_as_past_while_nothing_is_decided() {
        let until = |last: u64| move |step: u64| 1_000_000_000 + 780_000 * step.min(last);
        let (headline, lines) = said_without_epochs(110, until(100));
        assert!(headline.starts_with("undecided"), "{headline}");
        assert!(
            lines[0].starts_with("grew by ") && lines[0].ends_with(" while it grew, level now"),
            "{lines:?}"
        );
        let (_, lines) = said_without_epochs(100, until(100));
        assert!(lines[0].starts_with("grows by "), "{lines:?}");
        // Two jumps are no rate.
        let (headline, lines) = said_without_epochs(100, |step| {
            300_000_000 + 4_000_000 * (u64::from(step > 20) + u64::from(step > 70))
        });
        assert!(headline.starts_with("undecided"), "{headline}");
        assert!(!lines.iter().any(|line| line.contains("per step")), "{lines:?}");
    }

    #[test]
    fn endings_that_remain_are_told_in_english() {
        let (headline, lines) = said(60, |step| 1_000_000_000 + 5_000_000 * step);
        assert_eq!(headline, "undecided until step 88");
        assert!(lines.iter().any(|line| line.starts_with("if it is a fill: levels off at 1.4")), "{lines:?}");
        assert_eq!(condition(Verdict::Steady), "if it stays steady");
    }

    #[test]
    fn what_a_process_had_is_told_and_not_what_was_left_while_it_ended() {
        let mut analyst = Analyst::new(RunFacts::default());
        let sample = |t: u32, anon| Sample { t: f64::from(t), rss: anon, anon, ..Sample::default() };
        (0..20).for_each(|t| analyst.push(&sample(t, 1_010_000_000)));
        let last = sample(20, 273_000_000);
        analyst.push(&last);
        let snapshot = Snapshot { sample: last, peak: 1_010_000_000, ..Snapshot::default() };
        let reading = Reading { snapshot, assessment: analyst.assessment(), facts: RunFacts::default() };
        let seen = Seen { last: Some(reading), at_limit: None, who: None };
        let ending = Ending { how: Some("the command ended with code 0"), after: Duration::from_secs(20) };
        let mut text = Vec::new();
        write(&mut text, &ending, &seen).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("  memory   1.01 GB before it ended, 1.01 GB at the most\n"), "{text}");
        let mut json = Vec::new();
        write_json_summary(&mut json, &ending, &seen).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json["owned"], 1_010_000_000_u64, "{json}");
    }

    #[test]
    fn a_stop_at_the_limit_says_who_held_what_and_when_it_ended() {
        let sample = Sample { anon: 41_000, ..Sample::default() };
        let spike = Spike { pid: 12, command: "python3 train.py".into(), resident: 250_000_000 };
        let snapshot = Snapshot { sample, peak: 187_000_000, spike: Some(spike), ..Snapshot::default() };
        let facts = RunFacts { limit: Some(200_000_000), ..RunFacts::default() };
        let assessment = Analyst::new(facts.clone()).assessment();
        let holder = |pid, owned| Holder { pid, command: "python3 train.py".into(), owned };
        let held = vec![holder(12, 120_000_000), holder(13, 60_000_000)];
        let seen = Seen {
            last: Some(Reading { snapshot, assessment, facts }),
            at_limit: Some(Moment { t: 3.2, owned: 187_000_000, held }),
            who: None,
        };
        let ending =
            Ending { how: Some("the command was stopped at its limit"), after: Duration::from_secs(65) };
        let mut text = Vec::new();
        write(&mut text, &ending, &seen).unwrap();
        let text = String::from_utf8(text).unwrap();
        let expected = "\
model-garden: the command was stopped at its limit after 1:05
  memory   41 kB at the end, 187 MB at the most; limit 200 MB
           between two looks process 12 had 250 MB resident, mapped files included: python3 train.py
  at limit 187 MB after 3.2 s, held by
              120 MB  process 12       python3 train.py
               60 MB  process 13       python3 train.py
              7.0 MB  others
";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn what_was_to_stay_free_stands_in_the_place_of_a_limit_that_moves() {
        let facts = RunFacts { limit: Some(0), leave_free: Some(2_000_000_000), ..RunFacts::default() };
        let mut analyst = Analyst::new(facts.clone());
        for t in 0..40 {
            let anon = if t < 8 { 107_000_000 } else { 207_000_000 };
            analyst.push(&Sample { t: f64::from(t), rss: anon, anon, ..Sample::default() });
        }
        let sample = Sample { anon: 207_000_000, ..Sample::default() };
        let snapshot = Snapshot { sample, peak: 207_000_000, ..Snapshot::default() };
        let last = Some(Reading { snapshot, assessment: analyst.assessment(), facts });
        let ending = Ending { how: Some("stopped by hand"), after: Duration::from_secs(40) };
        let mut text = Vec::new();
        write(&mut text, &ending, &Seen { last, at_limit: None, who: None }).unwrap();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("207 MB at the end, 207 MB at the most; 2.00 GB to leave free\n"), "{text}");
        assert!(text.contains("It does not fit now: 207 MB beside 2.00 GB to leave free."), "{text}");
    }
}
