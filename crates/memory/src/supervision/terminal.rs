//! Our terminal, and how a command relates to it.
//!
//! On a terminal the command belongs to our own process group, as under `time` or `nice`. The kernel then
//! gives it the keyboard's signals and lets it read and set the terminal, so prompts, pagers and shells work
//! as without us.

use super::streams::Passage;
use rustix::{
    process::getpgrp,
    termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr},
};
use std::{fmt, fs::File, str::FromStr};

/// How a command relates to our terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// In our process group: it uses the terminal as we do.
    WithUs,
    /// In a process group of its own: there is no terminal.
    OwnGroup,
    /// In a session of its own, out of the terminal's reach: a screen is drawn there, or nobody watches. A
    /// prompt fails at once instead of waiting for an answer that cannot come.
    OwnSession,
}

impl Standing {
    const ALL: [(Self, &str); 3] =
        [(Self::WithUs, "with-us"), (Self::OwnGroup, "own-group"), (Self::OwnSession, "own-session")];

    /// The standing of a command whose output takes this passage.
    pub(super) fn of(passage: &Passage, terminal: Option<&OurTerminal>) -> Self {
        match passage {
            Passage::Shown(_) | Passage::Swallowed => Self::OwnSession,
            Passage::Through if terminal.is_some() => Self::WithUs,
            Passage::Through => Self::OwnGroup,
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = Self::ALL.iter().find(|(standing, _)| standing == self);
        f.write_str(named.map_or("", |(_, name)| name))
    }
}

/// A word that names no standing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a standing")]
pub(super) struct BadStanding(String);

impl FromStr for Standing {
    type Err = BadStanding;

    fn from_str(text: &str) -> Result<Self, BadStanding> {
        let named = Self::ALL.iter().find(|(_, name)| *name == text);
        named.map(|(standing, _)| *standing).ok_or_else(|| BadStanding(text.to_owned()))
    }
}

/// The terminal that controls our session, with the settings it had when we came.
pub(super) struct OurTerminal {
    file: File,
    settings: Termios,
}

impl OurTerminal {
    /// `None` where there is no terminal, as in a service or a container without one.
    pub fn open() -> Option<Self> {
        let file = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let settings = tcgetattr(&file).ok()?;
        Some(Self { file, settings })
    }

    /// Restores the settings that a command changed and could not restore itself.
    pub fn restore(&self) {
        // From the background it would stop us, and the terminal belongs to somebody else.
        if tcgetpgrp(&self.file).is_ok_and(|foreground| foreground == getpgrp()) {
            let _ = tcsetattr(&self.file, OptionalActions::Drain, &self.settings);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standings_survive_the_command_line() {
        for (standing, name) in Standing::ALL {
            assert_eq!(standing.to_string(), name);
            assert_eq!(name.parse(), Ok(standing));
        }
        assert!("beside-us".parse::<Standing>().is_err());
    }

    #[test]
    fn a_command_whose_output_is_not_passed_through_has_no_terminal() {
        assert_eq!(Standing::of(&Passage::Swallowed, OurTerminal::open().as_ref()), Standing::OwnSession);
        assert_eq!(Standing::of(&Passage::Through, None), Standing::OwnGroup);
    }
}
