//! Interning of strings and hints that repeat in every endpoint.

use super::Hints;
use foldhash::fast::RandomState;
use hashbrown::{HashSet, HashTable};
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

/// Hands out one shared `Arc<str>` per distinct string, so that 500 000 endpoints on 5 000 nodes hold 5 000 node names;
/// and one shared [`Hints`] per distinct value. Owned by the source that parses; [`Interner::sweep`] drops what nobody
/// uses any more, so memory follows the state.
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashSet<Arc<str>, RandomState>,
    hints: HashTable<Arc<Hints>>,
    hasher: RandomState,
}

impl Interner {
    /// The shared copy of `s`.
    pub fn get(&mut self, s: &str) -> Arc<str> {
        if let Some(found) = self.strings.get(s) {
            return found.clone();
        }
        let new: Arc<str> = s.into();
        self.strings.insert(new.clone());
        new
    }

    /// The shared hints that name these nodes and zones, `None` where both are empty.
    pub fn hints(&mut self, nodes: &[impl AsRef<str>], zones: &[impl AsRef<str>]) -> Option<Arc<Hints>> {
        if nodes.is_empty() && zones.is_empty() {
            return None;
        }
        let hash = hash_hints(&self.hasher, nodes, zones);
        let same = |held: &Arc<Hints>| same_words(&held.for_nodes, nodes) && same_words(&held.for_zones, zones);
        if let Some(found) = self.hints.find(hash, same) {
            return Some(found.clone());
        }
        let new = Arc::new(Hints {
            for_nodes: nodes.iter().map(|n| self.get(n.as_ref())).collect(),
            for_zones: zones.iter().map(|z| self.get(z.as_ref())).collect(),
        });
        let hasher = &self.hasher;
        self.hints
            .insert_unique(hash, new.clone(), |h| hash_hints(hasher, &h.for_nodes, &h.for_zones));
        Some(new)
    }

    /// Drops what only the interner still holds.
    pub fn sweep(&mut self) {
        self.hints.retain(|h| Arc::strong_count(h) > 1);
        self.strings.retain(|s| Arc::strong_count(s) > 1);
    }

    /// How many distinct strings are held.
    pub fn len(&self) -> usize {
        self.strings.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty() && self.hints.is_empty()
    }
}

fn same_words(held: &[Arc<str>], asked: &[impl AsRef<str>]) -> bool {
    held.len() == asked.len() && held.iter().zip(asked).all(|(h, a)| **h == *a.as_ref())
}

fn hash_hints(hasher: &RandomState, nodes: &[impl AsRef<str>], zones: &[impl AsRef<str>]) -> u64 {
    let mut state = hasher.build_hasher();
    nodes.len().hash(&mut state);
    for word in nodes.iter().map(AsRef::as_ref) {
        word.hash(&mut state);
    }
    for word in zones.iter().map(AsRef::as_ref) {
        word.hash(&mut state);
    }
    state.finish()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn equal_values_are_shared_and_swept_when_unused() {
        let mut interner = Interner::default();
        let a = interner.get("n1");
        assert!(Arc::ptr_eq(&a, &interner.get("n1")));
        let h = interner.hints(&["n1"], &["za"]).unwrap();
        assert!(Arc::ptr_eq(&h, &interner.hints(&["n1"], &["za"]).unwrap()));
        let other = interner.hints(&["n1", "za"], &[""; 0]).unwrap();
        assert_ne!(h, other, "words must not move between nodes and zones");
        assert_eq!(interner.hints(&[""; 0], &[""; 0]), None);
        drop((h, other));
        interner.sweep();
        assert_eq!(interner.len(), 1, "n1 is still held by `a`");
        drop(a);
        interner.sweep();
        assert!(interner.is_empty());
    }
}
