//! Finds the texts that end an answer while it grows.
//!
//! Takes pieces of text, and gives what may be told: all up to a stop text, and meanwhile nothing that may be the
//! beginning of one.

/// Text on its way out.
#[derive(Debug, Clone)]
pub(crate) struct Stopper {
    stops: Vec<String>,
    /// Not told yet.
    held: String,
}

/// What may be told after a piece.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub text: String,
    /// Whether a stop text came: nothing follows.
    pub stopped: bool,
}

impl Stopper {
    pub fn new(stops: &[String]) -> Self {
        Self { stops: stops.iter().filter(|stop| !stop.is_empty()).cloned().collect(), held: String::new() }
    }

    pub fn push(&mut self, piece: &str) -> Told {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return Told { text: std::mem::take(&mut self.held), stopped: true };
        }
        let begins = |at: &usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[*at..]));
        let boundaries = self.held.char_indices().map(|(at, _)| at);
        let keep = boundaries.into_iter().find(begins).unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        Told { text: std::mem::replace(&mut self.held, rest), stopped: false }
    }

    /// What is left when no more comes.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool, String) {
        let mut stopper = Stopper::new(&stops.iter().map(ToString::to_string).collect::<Vec<_>>());
        let mut all = Vec::new();
        for piece in pieces {
            let Told { text, stopped } = stopper.push(piece);
            all.push(text);
            if stopped {
                return (all, true, stopper.finish());
            }
        }
        (all, false, stopper.finish())
    }

    #[test]
    fn what_may_begin_a_stop_text_is_held_back() {
        assert_eq!(told(&["END"], &["a E", "N", "x"]).0, ["a ", "", "ENx"]);
        assert_eq!(told(&["END"], &["a E", "ND b"]), (vec!["a ".into(), String::new()], true, String::new()));
        assert_eq!(told(&["END"], &["a EN"]), (vec!["a ".into()], false, "EN".into()), "told at the end");
        assert_eq!(told(&["bc", "abcd"], &["xab", "c"]).0, ["x", "a"], "the first that is complete");
        assert_eq!(told(&["ééx"], &["é", "é", "y"]).0, ["", "", "ééy"]);
        assert_eq!(told(&["", "q"], &["abc"]).0, ["abc"], "an empty one stops nothing");
        assert_eq!(
            told(&["aab"], &["a", "a", "a", "b"]),
            (vec!["".into(), "".into(), "a".into(), "".into()], true, "".into())
        );
    }
}
