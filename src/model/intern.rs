//! Interning of strings that repeat in every endpoint.

use hashbrown::HashSet;
use std::sync::Arc;

/// Hands out one shared `Arc<str>` per distinct string, so that 500 000 endpoints on 5 000 nodes hold 5 000 node names.
/// Owned by the source that parses; [`Interner::sweep`] drops what nobody uses any more, so memory follows the state.
#[derive(Debug, Default)]
pub struct Interner {
    strings: HashSet<Arc<str>, foldhash::fast::RandomState>,
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

    /// Drops strings that only the interner still holds.
    pub fn sweep(&mut self) {
        self.strings.retain(|s| Arc::strong_count(s) > 1);
    }

    /// How many distinct strings are held.
    pub fn len(&self) -> usize {
        self.strings.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }
}
