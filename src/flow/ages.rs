//! Slots in the order in which they were last used: what idle limits and shedding go by. Constant time, no allocation
//! beyond the first time a slot number is seen (within the capacity reserved at the start).

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
    listed: bool,
}

/// The order.
#[derive(Debug)]
pub struct Ages {
    links: Vec<Link>,
    oldest: u32,
    newest: u32,
}

impl Ages {
    /// An empty order with room for slots `0..capacity`.
    pub fn new(capacity: usize) -> Self {
        Self {
            links: Vec::with_capacity(capacity),
            oldest: NONE,
            newest: NONE,
        }
    }

    /// The slot that was used longest ago.
    pub fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// Makes a slot the newest, listed or not.
    pub fn touch(&mut self, slot: u32) {
        if self.newest == slot {
            return;
        }
        self.remove(slot);
        let index = slot as usize;
        if index >= self.links.len() {
            let unlisted = Link {
                older: NONE,
                newer: NONE,
                listed: false,
            };
            self.links.resize(index + 1, unlisted);
        }
        self.links[index] = Link {
            older: self.newest,
            newer: NONE,
            listed: true,
        };
        match self.newest {
            NONE => self.oldest = slot,
            newest => self.links[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    /// Takes a slot out; nothing happens where it is not listed.
    pub fn remove(&mut self, slot: u32) {
        let Some(link) = self.links.get_mut(slot as usize).filter(|l| l.listed) else {
            return;
        };
        link.listed = false;
        let (older, newer) = (link.older, link.newer);
        match older {
            NONE => self.oldest = newer,
            older => self.links[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.links[newer as usize].older = older,
        }
    }

    /// All slots, oldest first.
    #[cfg(any(test, debug_assertions))]
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = self.links[slot as usize].newer;
            Some(slot)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn behaves_like_a_list(steps in proptest::collection::vec((any::<bool>(), 0u32..10), 0..100)) {
            let mut ages = Ages::new(10);
            let mut model: Vec<u32> = Vec::new();
            for (touch, slot) in steps {
                model.retain(|s| *s != slot);
                if touch {
                    ages.touch(slot);
                    model.push(slot);
                } else {
                    ages.remove(slot);
                }
                prop_assert_eq!(ages.iter().collect::<Vec<_>>(), model.clone());
                prop_assert_eq!(ages.oldest(), model.first().copied());
            }
        }
    }
}
