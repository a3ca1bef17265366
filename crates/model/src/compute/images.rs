//! Keeps what the vision tower gave for images seen lately.
//!
//! Takes rows of the language model by an image's fingerprint, and gives them back while they are kept. Their
//! bytes never exceed a limit: the image unused for the longest time goes first, and one larger than the
//! limit is not kept at all.

use super::pages::ImageHash;
use crate::positions::Grid;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of one image in the order of its tokens.
pub(super) type ImageRows = Arc<[f32]>;

/// The images.
#[derive(Debug)]
pub(super) struct Images {
    kept: HashMap<ImageHash, (ImageRows, u64)>,
    /// Values that may be kept, and those that are.
    room: usize,
    values: usize,
    time: u64,
}

impl Images {
    /// Room for so many values.
    pub fn new(room: usize) -> Self {
        Self { kept: HashMap::new(), room, values: 0, time: 0 }
    }

    pub fn find(&mut self, hash: &ImageHash) -> Option<ImageRows> {
        self.time += 1;
        let (rows, used) = self.kept.get_mut(hash)?;
        *used = self.time;
        Some(Arc::clone(rows))
    }

    pub fn keep(&mut self, hash: ImageHash, rows: &ImageRows) {
        if rows.len() > self.room || self.kept.contains_key(&hash) {
            return;
        }
        while self.values + rows.len() > self.room {
            let oldest = self.kept.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash);
            let Some((gone, _)) = oldest.and_then(|hash| self.kept.remove(&hash)) else { break };
            self.values -= gone.len();
        }
        self.time += 1;
        self.values += rows.len();
        self.kept.insert(hash, (Arc::clone(rows), self.time));
    }

    pub fn forget(&mut self) {
        self.kept.clear();
        self.values = 0;
    }
}

/// The fingerprint of an image.
pub(super) fn hash(grid: Grid, patches: &[u8]) -> ImageHash {
    let mut hash = Sha256::new();
    grid.iter().for_each(|side| hash.update((*side as u64).to_le_bytes()));
    hash.update(patches);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_unused_for_longest_makes_room() {
        let mut images = Images::new(10);
        let rows = |len: usize| ImageRows::from(vec![0.5; len]);
        let [a, b, c] = [1, 2, 3].map(|byte| hash([1, 2, 2], &[byte]));
        images.keep(a, &rows(4));
        images.keep(b, &rows(4));
        assert!(images.find(&a).is_some());
        images.keep(c, &rows(6));
        assert!(images.find(&b).is_none() && images.find(&a).is_some() && images.find(&c).is_some());
        images.keep(b, &rows(11));
        assert!(images.find(&b).is_none(), "larger than all room");
        assert_eq!(images.values, 10);
        assert_ne!(hash([1, 2, 4], &[1]), hash([1, 4, 2], &[1]), "the grid is a part of an image");
    }
}
