//! Chooses the next token.
//!
//! Takes the logits of all tokens and how adventurous to be, and gives one token. The same seed and logits
//! give the same tokens on every machine. Without a temperature it is always the likeliest, and of equally
//! likely ones the first.

use crate::random::Stream;

/// Why tokens cannot be chosen as asked.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The temperature is negative or not a number.
    #[error("a temperature of {0} is not usable; it must be 0 or more")]
    Temperature(f32),
    /// The penalty is not above zero.
    #[error("a repetition penalty of {0} is not usable; it must be above 0")]
    Penalty(f32),
    /// The share is not above 0, or above 1.
    #[error("a top_p of {0} is not usable; it must be above 0 and at most 1")]
    TopP(f32),
    /// The model gave NaN for a token, or so much that nothing can be compared with it.
    #[error(
        "the model's output for token {token} is {value}: its weights or its adapter hold values that are not finite, or too \
         large"
    )]
    NotFinite {
        /// The first token without a finite number.
        token: usize,
        /// What it has instead.
        value: f32,
    },
    /// No token is possible at all.
    #[error("the model rules out every token: all of its outputs are minus infinity")]
    Nothing,
}

/// Chooses tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    temperature: f32,
    /// What the logits of tokens seen before are divided by; 1 for none.
    penalty: f32,
    /// The likeliest tokens that have this share together are drawn from; 1 for all.
    top_p: f32,
    stream: Stream,
    drawn: u64,
    /// The logits after the penalty; its room stays for the next token.
    penalised: Vec<f32>,
    /// Tokens by likelihood; likewise.
    ranked: Vec<u32>,
}

impl Sampler {
    /// A sampler; temperature 0 always takes the likeliest token. `penalty` above 1 makes repetitions less
    /// likely, as Hugging Face's `repetition_penalty` does.
    pub fn new(temperature: f32, penalty: f32, seed: u64) -> Result<Self, SampleError> {
        if !(temperature.is_finite() && temperature >= 0.0) {
            return Err(SampleError::Temperature(temperature));
        }
        if !(penalty.is_finite() && penalty > 0.0) {
            return Err(SampleError::Penalty(penalty));
        }
        Ok(Self {
            temperature,
            penalty,
            top_p: 1.0,
            stream: Stream::new(seed, "sample"),
            drawn: 0,
            penalised: Vec::new(),
            ranked: Vec::new(),
        })
    }

    /// Draws only from the likeliest tokens that together have the share `top_p`.
    pub fn with_top_p(self, top_p: f32) -> Result<Self, SampleError> {
        match top_p > 0.0 && top_p <= 1.0 {
            true => Ok(Self { top_p, ..self }),
            false => Err(SampleError::TopP(top_p)),
        }
    }

    /// The next token after `seen`.
    pub fn choose(&mut self, logits: &[f32], seen: &[u32]) -> Result<u32, SampleError> {
        check(logits)?;
        Ok(self.choose_of(logits, seen))
    }

    /// The next token of those that are `allowed`.
    pub fn choose_allowed(
        &mut self,
        logits: &[f32],
        seen: &[u32],
        allowed: impl Fn(u32) -> bool,
    ) -> Result<u32, SampleError> {
        check(logits)?;
        let ruled = |(token, &logit)| if allowed(token as u32) { logit } else { f32::NEG_INFINITY };
        let left: Vec<f32> = logits.iter().enumerate().map(ruled).collect();
        check(&left)?;
        Ok(self.choose_of(&left, seen))
    }

    fn choose_of(&mut self, logits: &[f32], seen: &[u32]) -> u32 {
        if self.penalty == 1.0 {
            return self.draw(logits);
        }
        let mut penalised = std::mem::take(&mut self.penalised);
        penalised.clear();
        penalised.extend_from_slice(logits);
        for &token in seen {
            // From the untouched logits: a token counts once however often it was seen.
            if let Some(&logit) = logits.get(token as usize) {
                let factor = if logit > 0.0 { 1.0 / self.penalty } else { self.penalty };
                penalised[token as usize] = logit * factor;
            }
        }
        let token = self.draw(&penalised);
        self.penalised = penalised;
        token
    }

    fn draw(&mut self, logits: &[f32]) -> u32 {
        let best = likeliest(logits);
        if self.temperature == 0.0 {
            return best as u32;
        }
        if self.top_p < 1.0 {
            let nucleus = self.nucleus(logits, best);
            return self.draw_of(&nucleus, best);
        }
        self.draw_of(logits, best)
    }

    /// The logits with minus infinity for what is not among the likeliest: those that reach the share together,
    /// of equally likely ones the first.
    fn nucleus(&mut self, logits: &[f32], best: usize) -> Vec<f32> {
        let highest = f64::from(logits[best]);
        let weight = |logit: f32| ((f64::from(logit) - highest) / f64::from(self.temperature)).exp();
        let mut ranked = std::mem::take(&mut self.ranked);
        ranked.clear();
        ranked.extend(0..logits.len() as u32);
        ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
        let sum: f64 = logits.iter().map(|logit| weight(*logit)).sum();
        let mut left = f64::from(self.top_p) * sum;
        let mut nucleus = vec![f32::NEG_INFINITY; logits.len()];
        for &token in &ranked {
            nucleus[token as usize] = logits[token as usize];
            left -= weight(logits[token as usize]);
            if left <= 0.0 {
                break;
            }
        }
        self.ranked = ranked;
        nucleus
    }

    fn draw_of(&mut self, logits: &[f32], best: usize) -> u32 {
        let highest = f64::from(logits[best]);
        let weight = |logit: &f32| ((f64::from(*logit) - highest) / f64::from(self.temperature)).exp();
        let sum: f64 = logits.iter().map(weight).sum();
        let share = (self.stream.bits(self.drawn) >> 11) as f64 / (1u64 << 53) as f64;
        self.drawn += 1;
        let mut left = share * sum;
        for (token, logit) in logits.iter().enumerate() {
            left -= weight(logit);
            if left < 0.0 {
                return token as u32;
            }
        }
        // Rounding left a crumb after the last token.
        best as u32
    }
}

/// Refuses outputs that nothing can be chosen from.
fn check(logits: &[f32]) -> Result<(), SampleError> {
    // Minus infinity rules a token out; infinity would be chosen every time, as NaN was once.
    let wrong = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
    if let Some(token) = logits.iter().position(wrong) {
        return Err(SampleError::NotFinite { token, value: logits[token] });
    }
    match logits.iter().all(|&logit| logit == f32::NEG_INFINITY) {
        true => Err(SampleError::Nothing),
        false => Ok(()),
    }
}

/// How likely a token was, and which were likelier.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbabilities {
    /// That of the chosen token, in nats.
    pub chosen: f64,
    /// The likeliest tokens with theirs, of equally likely ones the first.
    pub top: Vec<(u32, f64)>,
}

impl LogProbabilities {
    /// By the model itself, before temperature, penalty and share.
    pub fn of(logits: &[f32], chosen: u32, top: usize) -> Self {
        let highest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
        let of = |token: u32| {
            let logit = logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY);
            f64::from(logit) - highest - sum.ln()
        };
        let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
        let order = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        let top = top.min(ranked.len());
        if top > 0 {
            ranked.select_nth_unstable_by(top - 1, order);
        }
        ranked.truncate(top);
        ranked.sort_by(order);
        Self { chosen: of(chosen), top: ranked.into_iter().map(|token| (token, of(token))).collect() }
    }
}

/// The first of the highest.
fn likeliest(logits: &[f32]) -> usize {
    let better =
        |best: usize, (token, logit): (usize, &f32)| if *logit > logits[best] { token } else { best };
    logits.iter().enumerate().fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_temperature_the_first_of_the_likeliest_is_taken() {
        let mut sampler = Sampler::new(0.0, 1.0, 0).unwrap();
        assert_eq!(sampler.choose(&[0.5, 2.0, 2.0, -1.0], &[]), Ok(1));
    }

    #[test]
    fn with_one_tokens_come_as_often_as_they_are_likely() {
        let logits = [0.0f32, 1.0, 2.0];
        let mut sampler = Sampler::new(0.5, 1.0, 7).unwrap();
        let mut counts = [0u32; 3];
        for _ in 0..20_000 {
            counts[sampler.choose(&logits, &[]).unwrap() as usize] += 1;
        }
        let weights = logits.map(|logit| f64::from(2.0 * logit).exp());
        for (count, weight) in counts.into_iter().zip(weights) {
            let expected = weight / weights.iter().sum::<f64>();
            assert!((f64::from(count) / 20_000.0 - expected).abs() < 0.015, "{counts:?}");
        }
        let mut again = Sampler::new(0.5, 1.0, 7).unwrap();
        let mut other = Sampler::new(0.5, 1.0, 8).unwrap();
        let fifty = |sampler: &mut Sampler| -> Vec<u32> {
            (0..50).map(|_| sampler.choose(&logits, &[]).unwrap()).collect()
        };
        let first = fifty(&mut Sampler::new(0.5, 1.0, 7).unwrap());
        assert_eq!(first, fifty(&mut again));
        assert_ne!(first, fifty(&mut other));
    }

    #[test]
    fn what_was_seen_is_penalised_once() {
        let mut sampler = Sampler::new(0.0, 1.5, 0).unwrap();
        assert_eq!(sampler.choose(&[3.0, 2.5, -1.0], &[0, 0, 0]), Ok(1), "3 / 1.5 is below 2.5");
        assert_eq!(sampler.choose(&[3.9, 2.5, -1.0], &[0, 0, 0]), Ok(0), "3.9 / 1.5 is not");
        assert_eq!(sampler.choose(&[-2.0, -2.5, -9.0], &[0, 99]), Ok(1), "a negative one is multiplied");
    }

    #[test]
    fn outputs_that_are_no_numbers_are_an_error_not_the_first_token() {
        for temperature in [0.0, 1.0] {
            for penalty in [1.0, 1.5] {
                let mut sampler = Sampler::new(temperature, penalty, 0).unwrap();
                let mut choose = |logits: &[f32]| sampler.choose(logits, &[1]);
                let mut refused = |logits: &[f32]| choose(logits).unwrap_err().to_string();
                let said = refused(&[f32::NAN; 4]);
                assert!(said.starts_with("the model's output for token 0 is NaN"), "{said}");
                let said = refused(&[0.0, 1.0, f32::NAN]);
                assert!(said.starts_with("the model's output for token 2 is NaN"), "{said}");
                let said = refused(&[0.0, f32::INFINITY, 1.0]);
                assert!(said.starts_with("the model's output for token 1 is inf"), "{said}");
                assert_eq!(choose(&[f32::NEG_INFINITY; 4]), Err(SampleError::Nothing));
                assert_eq!(choose(&[f32::NEG_INFINITY, -3.0]), Ok(1), "some tokens may be ruled out");
            }
        }
    }

    #[test]
    fn the_likeliest_that_have_the_share_are_drawn_from() {
        // 0.64, 0.24, 0.09, 0.03
        let logits = [0.0f32, 3.0, 1.0, 2.0];
        let drawn = |top_p: f32| {
            let mut sampler = Sampler::new(1.0, 1.0, 3).unwrap().with_top_p(top_p).unwrap();
            let mut seen = [false; 4];
            (0..2000).for_each(|_| seen[sampler.choose(&logits, &[]).unwrap() as usize] = true);
            seen
        };
        assert_eq!(drawn(0.1), [false, true, false, false], "the likeliest stays in any case");
        assert_eq!(drawn(0.6), [false, true, false, false]);
        assert_eq!(drawn(0.7), [false, true, false, true]);
        assert_eq!(drawn(0.9), [false, true, true, true]);
        assert_eq!(drawn(1.0), [true; 4]);
        let hundred = |mut sampler: Sampler| -> Vec<u32> {
            (0..100).map(|_| sampler.choose(&logits, &[]).unwrap()).collect()
        };
        let plain = Sampler::new(1.3, 1.0, 3).unwrap();
        assert_eq!(hundred(plain.clone()), hundred(plain.with_top_p(1.0).unwrap()), "all is as without");
    }

    #[test]
    fn only_allowed_tokens_are_chosen() {
        let logits = [0.0f32, 3.0, 1.0, 2.0];
        for temperature in [0.0, 2.0] {
            let mut sampler = Sampler::new(temperature, 1.2, 1).unwrap();
            for _ in 0..50 {
                let token = sampler.choose_allowed(&logits, &[0], |token| token % 2 == 0).unwrap();
                assert!(token == 0 || token == 2);
            }
            assert_eq!(sampler.choose_allowed(&logits, &[], |_| false), Err(SampleError::Nothing));
        }
    }

    #[test]
    fn log_probabilities_are_those_of_the_model() {
        let logits = [1.0f32.ln(), 6.0f32.ln(), 2.0f32.ln(), 2.0f32.ln(), f32::NEG_INFINITY];
        let found = LogProbabilities::of(&logits, 0, 3);
        assert!((found.chosen - (1.0f64 / 11.0).ln()).abs() < 1e-6);
        let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(tokens, [1, 2, 3]);
        assert!((found.top[0].1 - (6.0f64 / 11.0).ln()).abs() < 1e-6);
        assert_eq!(LogProbabilities::of(&logits, 0, 20).top.len(), 5);
        assert!(LogProbabilities::of(&logits, 0, 0).top.is_empty());
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        for wrong in [0.0, -0.5, 1.01, f32::NAN] {
            assert!(Sampler::new(1.0, 1.0, 0).unwrap().with_top_p(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Sampler::new(-1.0, 1.0, 0).unwrap_err(), SampleError::Temperature(-1.0));
        assert!(Sampler::new(f32::NAN, 1.0, 0).is_err());
        assert_eq!(Sampler::new(1.0, 0.0, 0).unwrap_err(), SampleError::Penalty(0.0));
    }
}
