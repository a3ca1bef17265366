//! The last word of a watch, and the verdict in one line.

use garden_memory::{Assessment, ByteSize, Exhaustion, Plateau, Verdict, record::Reading};
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
        let stopped = matches!(assessment.verdict, Verdict::WarmUp | Verdict::Fill);
        lines.push(format!("{} by {}", if stopped { "grew" } else { "grows" }, rates.join(", ")));
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
pub fn write(writer: &mut dyn Write, how: Option<&str>, last: Option<&Reading>) -> io::Result<()> {
    let how = how.unwrap_or("ended by an error");
    let Some(Reading { snapshot, assessment, facts }) = last else {
        return writeln!(writer, "model-garden: {how}; nothing was seen of its memory");
    };
    let sample = &snapshot.sample;
    writeln!(writer, "model-garden: {how} after {}", super::screen::clock(sample.t))?;
    write!(
        writer,
        "  memory   {} at the end, {} at the most",
        ByteSize(sample.owned()),
        ByteSize(snapshot.peak)
    )?;
    match facts.limit {
        Some(limit) => writeln!(writer, "; limit {}", ByteSize(limit))?,
        None => writeln!(writer)?,
    }
    writeln!(writer, "  verdict  {}", headline(assessment))?;
    for line in forecast(assessment) {
        writeln!(writer, "           {line}")?;
    }
    for (title, sentences) in [("because", &assessment.evidence), ("do", &assessment.advice)] {
        for (index, sentence) in sentences.iter().enumerate() {
            writeln!(writer, "  {:<8} {sentence}", if index == 0 { title } else { "" })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use garden_memory::{Analyst, RunFacts, Sample};

    /// What is said of a run of 200 steps, 80 an epoch.
    fn said(steps: u64, bytes: impl Fn(u64) -> u64) -> (String, Vec<String>) {
        let facts = RunFacts { steps_per_epoch: Some(80.0), ..RunFacts::default() };
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
    fn endings_that_remain_are_told_in_english() {
        let (headline, lines) = said(60, |step| 1_000_000_000 + 5_000_000 * step);
        assert_eq!(headline, "undecided until step 88");
        assert!(lines.iter().any(|line| line.starts_with("if it is a fill: levels off at 1.4")), "{lines:?}");
        assert_eq!(condition(Verdict::Steady), "if it stays steady");
    }
}
