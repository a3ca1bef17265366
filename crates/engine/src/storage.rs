//! Where the numbers of a weight live.
//!
//! One slice type for a vector and for a part of something shared, such as a mapped file. Shared bytes are
//! never copied, unless they lie at an address that the element type cannot be read from.

use bytemuck::Pod;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that several weights may share, for instance one mapped file.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A read-only slice of `T` that either owns its elements or borrows them from [`SharedBytes`].
#[derive(Clone)]
pub struct Storage<T> {
    place: Place<T>,
}

#[derive(Clone)]
enum Place<T> {
    Owned(Vec<T>),
    Shared { owner: SharedBytes, bytes: Range<usize> },
}

impl<T: Pod> Storage<T> {
    /// The elements that lie in `bytes` of `owner`; `None` if the range is not inside or is not whole
    /// elements. No number of bytes is whole elements of a type without a size.
    pub fn shared(owner: SharedBytes, bytes: Range<usize>) -> Option<Self> {
        let part = (*owner).as_ref().get(bytes.clone())?;
        if part.len().checked_rem(size_of::<T>()) != Some(0) {
            return None;
        }
        let place = match bytemuck::try_cast_slice::<u8, T>(part) {
            Ok(_) => Place::Shared { owner, bytes },
            Err(_) => {
                Place::Owned(part.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect())
            }
        };
        Some(Self { place })
    }

    /// Whether the elements belong to this storage alone (anonymous memory) rather than to a shared mapping.
    pub fn is_owned(&self) -> bool {
        matches!(self.place, Place::Owned(_))
    }

    /// The elements, to change; a shared storage is copied first.
    pub(crate) fn make_mut(&mut self) -> &mut [T] {
        if let Place::Shared { .. } = self.place {
            self.place = Place::Owned(self.to_vec());
        }
        match &mut self.place {
            Place::Owned(elements) => elements,
            Place::Shared { .. } => &mut [],
        }
    }
}

impl<T> From<Vec<T>> for Storage<T> {
    fn from(elements: Vec<T>) -> Self {
        Self { place: Place::Owned(elements) }
    }
}

impl<T: Pod> Deref for Storage<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.place {
            Place::Owned(elements) => elements,
            Place::Shared { owner, bytes } => bytemuck::cast_slice(&(**owner).as_ref()[bytes.clone()]),
        }
    }
}

impl<T> fmt::Debug for Storage<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Owned(elements) => write!(f, "Storage(owned, {} elements)", elements.len()),
            Place::Shared { bytes, .. } => write!(f, "Storage(shared, bytes {bytes:?})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(values: &[f32]) -> SharedBytes {
        Arc::new(bytemuck::cast_slice::<f32, u8>(values).to_vec())
    }

    #[test]
    fn shared_bytes_are_read_in_place_or_copied_when_misaligned() {
        let owner = bytes_of(&[1.0, 2.0, 3.0]);
        let base = (*owner).as_ref().as_ptr().align_offset(align_of::<f32>());
        let whole = Storage::<f32>::shared(owner.clone(), base..base + 8).unwrap();
        assert!(!whole.is_owned());
        let odd = Storage::<f32>::shared(owner, base + 1..base + 5).unwrap();
        assert!(odd.is_owned());
        assert_eq!(odd.len(), 1);
    }

    #[test]
    fn a_range_outside_or_of_half_elements_is_refused() {
        let owner = bytes_of(&[1.0, 2.0]);
        assert!(Storage::<f32>::shared(owner.clone(), 0..12).is_none());
        assert!(Storage::<f32>::shared(owner.clone(), 0..6).is_none());
        let backwards = std::ops::Range { start: 4, end: 0 };
        assert!(Storage::<f32>::shared(owner.clone(), backwards).is_none());
        assert!(Storage::<[f32; 0]>::shared(owner, 0..4).is_none(), "elements without a size");
    }

    #[test]
    fn changing_a_shared_storage_leaves_its_owner_alone() {
        let owner = bytes_of(&[1.0, 2.0]);
        let mut storage = Storage::<f32>::shared(owner.clone(), 0..8).unwrap();
        storage.make_mut()[0] = 9.0;
        assert_eq!(&storage[..], &[9.0, 2.0]);
        assert_eq!(&Storage::<f32>::shared(owner, 0..8).unwrap()[..], &[1.0, 2.0]);
    }
}
