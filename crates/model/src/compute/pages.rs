//! Who holds which page of the cache, and which full pages can be used again.
//!
//! Takes sequences that come and go, and gives each its pages. A full page is known by its tokens, by the
//! images among them and by the page before it, all compared exactly; a prompt that begins with known pages
//! shares them. A page that nobody holds keeps its contents until its place is needed, the one unused for the
//! longest time first.
//!
//! Pages are as large as a tile of attention: sequences of any length share one room, each wastes less than a
//! page, and reading them costs nothing over rows that lie together.

use garden_engine::ops::attention::PAGE;
use std::collections::HashMap;

/// A fingerprint of an image: SHA-256 of its grid and its patches.
pub(super) type ImageHash = [u8; 32];

/// What a full page holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Contents {
    /// The serial number of the page before it; 0 for the first one.
    pub before: u64,
    pub tokens: Vec<u32>,
    /// The images that have a token on the page, in order.
    pub images: Vec<ImageHash>,
}

#[derive(Debug, Clone, Default)]
struct Page {
    holders: usize,
    /// When it was let go.
    used: u64,
    /// Another number for every filling, so that nothing follows a page that was overwritten.
    serial: u64,
    contents: Option<Contents>,
}

/// All pages.
#[derive(Debug)]
pub(super) struct Pages {
    pages: Vec<Page>,
    known: HashMap<Contents, u32>,
    serials: u64,
    time: u64,
}

/// Pages for so many tokens.
pub(super) fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE)
}

impl Pages {
    pub fn new(count: usize) -> Self {
        Self { pages: vec![Page::default(); count], known: HashMap::new(), serials: 0, time: 0 }
    }

    /// Pages that nobody holds.
    pub fn free(&self) -> usize {
        self.pages.iter().filter(|page| page.holders == 0).count()
    }

    /// Holds the known page with these contents, if there is one; gives it and its serial number.
    pub fn find(&mut self, contents: &Contents) -> Option<(u32, u64)> {
        let at = *self.known.get(contents)?;
        let page = &mut self.pages[at as usize];
        page.holders += 1;
        Some((at, page.serial))
    }

    /// Holds `count` pages to write to; none where there are not so many.
    pub fn take(&mut self, count: usize) -> Option<Vec<u32>> {
        if self.free() < count {
            return None;
        }
        Some((0..count).map_while(|_| self.take_one()).collect())
    }

    fn take_one(&mut self) -> Option<u32> {
        let free = self.pages.iter().enumerate().filter(|(_, page)| page.holders == 0);
        let (at, _) = free.min_by_key(|(_, page)| (page.contents.is_some(), page.used))?;
        let page = &mut self.pages[at];
        page.holders = 1;
        if let Some(contents) = page.contents.take() {
            self.known.remove(&contents);
        }
        Some(at as u32)
    }

    /// A page was filled; gives the serial number of the page that holds these contents from now on.
    pub fn fill(&mut self, at: u32, contents: Contents) -> u64 {
        if let Some(&other) = self.known.get(&contents) {
            // Two sequences read the same at once: the first one's page stays known.
            return self.pages[other as usize].serial;
        }
        self.serials += 1;
        let page = &mut self.pages[at as usize];
        (page.serial, page.contents) = (self.serials, Some(contents.clone()));
        self.known.insert(contents, at);
        self.serials
    }

    /// Lets go of a sequence's pages. Later ones go first: without those before them they are of no use.
    pub fn release(&mut self, pages: &[u32]) {
        for &at in pages.iter().rev() {
            self.time += 1;
            let page = &mut self.pages[at as usize];
            page.holders = page.holders.saturating_sub(1);
            page.used = self.time;
        }
    }

    /// Forgets all contents that nobody holds.
    pub fn forget(&mut self) {
        for page in self.pages.iter_mut().filter(|page| page.holders == 0) {
            if let Some(contents) = page.contents.take() {
                self.known.remove(&contents);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(before: u64, token: u32) -> Contents {
        Contents { before, tokens: vec![token; PAGE], images: Vec::new() }
    }

    #[test]
    fn known_pages_are_shared_and_the_longest_unused_is_overwritten_first() {
        let mut pages = Pages::new(3);
        let held = pages.take(2).unwrap();
        let first = pages.fill(held[0], contents(0, 1));
        pages.fill(held[1], contents(first, 2));
        assert_eq!(pages.find(&contents(0, 1)), Some((held[0], first)));
        assert_eq!(pages.find(&contents(0, 2)), None, "it is known only after the first page");
        pages.release(&held);
        pages.release(&held[..1]);
        assert_eq!(pages.free(), 3);
        assert_eq!(pages.take(4), None);
        // The empty one first, then the last of the sequence.
        let taken = pages.take(2).unwrap();
        assert_eq!(taken[1], held[1]);
        assert_eq!(pages.find(&contents(first, 2)), None, "overwritten");
        assert!(pages.find(&contents(0, 1)).is_some());
    }

    #[test]
    fn nothing_follows_a_page_that_was_overwritten() {
        let mut pages = Pages::new(2);
        let held = pages.take(2).unwrap();
        let first = pages.fill(held[0], contents(0, 1));
        pages.fill(held[1], contents(first, 2));
        pages.release(&held[..1]);
        let again = pages.take(1).unwrap();
        assert_eq!(again, held[..1]);
        let other = pages.fill(again[0], contents(0, 9));
        assert_ne!(other, first);
        assert_eq!(pages.find(&contents(other, 2)), None);
    }
}
