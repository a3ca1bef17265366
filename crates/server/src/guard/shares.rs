//! What one of many has of something that all share.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError},
};

/// Counts what each has taken. A clone counts the same things.
#[derive(Debug)]
pub(crate) struct Shares<K>(Arc<Mutex<HashMap<K, usize>>>);

impl<K> Clone for Shares<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K> Default for Shares<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Eq + Hash + Clone> Shares<K> {
    /// Takes one more, if `who` has fewer than `most`.
    pub(crate) fn take(&self, who: K, most: usize) -> Option<Share<K>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.entry(who.clone()).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Share { who, shares: self.clone() })
    }
}

/// One that was taken; it is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Share<K: Eq + Hash> {
    who: K,
    shares: Shares<K>,
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut all = self.shares.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = all.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_own_share_and_nobody_is_remembered_without_one() {
        let shares = Shares::default();
        let held = [shares.take("anna", 2).unwrap(), shares.take("anna", 2).unwrap()];
        assert!(shares.take("anna", 2).is_none() && shares.take("berta", 2).is_some());
        drop(held);
        assert!(shares.0.lock().unwrap().is_empty());
    }
}
