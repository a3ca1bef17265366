//! What a person has scrolled to on the live screen.

use ratatui::crossterm::event::KeyCode;

/// A panel whose content may be longer than its place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Panel {
    /// The verdict with its reasons.
    #[default]
    Verdict,
    /// The processes of the tree.
    Processes,
}

/// Which panel the keys move, and how far each was moved.
#[derive(Debug, Default)]
pub struct Scroll {
    /// The panel that the keys move.
    pub focus: Panel,
    offsets: [usize; 2],
    /// Lines that a page had when it was last drawn.
    page: usize,
}

impl Scroll {
    /// Handles a key; gives whether it meant anything.
    pub fn key(&mut self, key: KeyCode) -> bool {
        let page = self.page.max(1);
        let offset = &mut self.offsets[self.focus as usize];
        match key {
            KeyCode::Up | KeyCode::Char('k') => *offset = offset.saturating_sub(1),
            // The drawing limits how far this goes.
            KeyCode::Down | KeyCode::Char('j') => *offset = offset.saturating_add(1),
            KeyCode::PageUp => *offset = offset.saturating_sub(page),
            KeyCode::PageDown | KeyCode::Char(' ') => *offset = offset.saturating_add(page),
            KeyCode::Home => *offset = 0,
            KeyCode::End => *offset = usize::MAX,
            KeyCode::Tab | KeyCode::BackTab => {
                self.focus = match self.focus {
                    Panel::Verdict => Panel::Processes,
                    Panel::Processes => Panel::Verdict,
                };
            }
            _ => return false,
        }
        true
    }

    /// The first line to show of `lines` where there is room for `room`: never past the end.
    pub fn offset(&mut self, panel: Panel, lines: usize, room: usize) -> usize {
        let offset = &mut self.offsets[panel as usize];
        *offset = (*offset).min(lines.saturating_sub(room));
        if panel == self.focus {
            self.page = room;
        }
        *offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_move_the_chosen_panel_within_its_content() {
        let mut scroll = Scroll::default();
        assert!(scroll.key(KeyCode::Down) && scroll.key(KeyCode::Down));
        assert_eq!(scroll.offset(Panel::Verdict, 10, 4), 2);
        scroll.key(KeyCode::End);
        assert_eq!(scroll.offset(Panel::Verdict, 10, 4), 6);
        scroll.key(KeyCode::PageUp);
        assert_eq!(scroll.offset(Panel::Verdict, 10, 4), 2, "a page is what was seen");
        scroll.key(KeyCode::Tab);
        scroll.key(KeyCode::Down);
        assert_eq!(scroll.offset(Panel::Verdict, 10, 4), 2, "the other panel moves");
        assert_eq!(scroll.offset(Panel::Processes, 10, 4), 1);
        assert_eq!(scroll.offset(Panel::Processes, 3, 4), 0, "what fits does not move");
        assert!(!scroll.key(KeyCode::Char('x')));
    }
}
